"""`specprefill calibrate`: what a pair must learn about itself once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli import options
from specprefill_cli.cli.console import Notes, print_json
from specprefill_cli.cli.lists import whole_numbers
from specprefill_cli.errors import UsageError

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.lab.evaluation.datasets import Item
    from specprefill_cli.prefill.scoring_heads import ScoringHeads
    from specprefill_cli.settings import Settings


def calibrate(
    heads: Annotated[
        Path | None,
        typer.Option(help="JSONL (or .xz) of questions with known answers: find the draft's scoring heads on it."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Text files, or folders: fit the maps of the draft's KV into the target's on them."),
    ] = None,
    exact: Annotated[
        str, typer.Option(help="Numbers of exactly computed target layers to fit maps for, comma-separated.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Questions to draw at random from --heads.")] = 400,
    answers: Annotated[
        int,
        typer.Option(
            min=0,
            help="Of these, questions to answer in `full` and with several shares of the importance mass, to tune "
            "--keep auto by F1; 0: tune it by how often the answer's chunks are kept.",
        ),
    ] = 60,
    distractors: Annotated[
        int, typer.Option(min=0, help="Other contexts of the file around each question's own.")
    ] = 19,
    sample_seed: Annotated[int, typer.Option(help="Seed of the draw and of the distractors.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; default: the pair's calibration folder.")
    ] = None,
    look_ahead: options.LookAhead = None,
    prefill_chunk: options.PrefillChunk = None,
    chunk_size: options.ChunkSize = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    dtype: options.Dtype = None,
    quantization: options.Quantization = None,
    offline: options.Offline = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the draft's attention heads that point at answers (--heads), and map its KV into the target's (--text).

    The scorer `heads` then uses only those heads, and `--keep auto` with it the share of their importance that sufficed
    for the answers; the modes `draft-kv` and `hybrid` use the maps.

    Examples:
      specprefill calibrate --pair qwen2.5-7b --heads questions.jsonl

      specprefill calibrate --pair qwen2.5-7b --text corpus/ --exact 4
    """
    if heads is None and not text:
        raise UsageError("calibrate: nothing to do; give --heads QUESTIONS.jsonl, or --text FILES")
    if exact and not text:
        raise UsageError("--exact: belongs to the maps of draft KV; give --text FILES too")
    edges = whole_numbers(exact, "--exact") if exact.strip() else []
    settings = replace(options.settings_from(locals() | {"heads": None}), scorer="question", mode="select")
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.distributed.launch import refuse_ranks
    from specprefill_cli.documents import read_documents
    from specprefill_cli.files import make_folder
    from specprefill_cli.models.calibration import calibration_folder
    from specprefill_cli.models.pairs import find_pair
    from specprefill_cli.prefill.scoring_heads import load_heads

    refuse_ranks(settings.tensor_parallel, "calibrate")
    notes = Notes(quiet)
    folder = out or calibration_folder(find_pair(settings.pair, settings.draft, settings.target))
    make_folder(folder, "--out" if out else "the calibration's folder")
    texts = [document.text for document in read_documents([str(path) for path in text])] if text else []
    items = [] if heads is None else read_questions(heads, limit, distractors, sample_seed)
    with notes.progress("loading the models"):
        session = open_session(settings, draft=True, calibrated=False)
    if heads is not None:
        items = [item for item in items if item.answers]
        found = find_heads(session, items, settings, notes)
        # Saved before the answers too: whoever interrupts them keeps the heads.
        path = found.save(folder)
        if answers:
            found = tune_keep(session, found, items, settings, answers, notes)
            path = found.save(folder)
        show_heads(found, path, notes, json)
    if text:
        # The draft reads as it does for its scoring heads, where they are known.
        stored = (load_heads(place, session.pair.draft) for place in (folder, calibration_folder(session.pair.pair)))
        window = next((one.window for one in stored if one is not None), None)
        fit_maps(session, texts, edges, window, folder, notes, json)


def read_questions(path: Path, limit: int, distractors: int, seed: int) -> list[Item]:
    from specprefill_cli.lab.evaluation.datasets import read_items

    return read_items(path, limit, distractors, seed)


def find_heads(session: Session, items: list[Item], settings: Settings, notes: Notes) -> ScoringHeads:
    from specprefill_cli.lab.calibration.heads import calibrate_heads

    with notes.progress(f"watching the draft's heads on {len(items):,} questions") as update:
        return calibrate_heads(
            session, items, settings, lambda number: update(f"watching the draft's heads: {number:,} of {len(items):,}")
        )


def tune_keep(
    session: Session, found: ScoringHeads, items: list[Item], settings: Settings, answers: int, notes: Notes
) -> ScoringHeads:
    """The heads with the share of mass that answers want; as they were, with a warning, where answers tell nothing."""
    from specprefill_cli.lab.calibration.auto_keep import tune_auto_keep, tuning_items

    chosen = tuning_items(session, items, settings, answers)
    stays = "--keep auto holds the share of the mass that keeps the answer's chunks"
    if not chosen:
        notes.warn(f"no prompt fits the target with an answer; {stays}. Give shorter documents, or --answers 0")
        return found
    with notes.progress(f"answering {len(chosen):,} questions") as update:
        tuned = tune_auto_keep(
            session, found, chosen, settings, lambda number: update(f"answering: {number:,} of {len(chosen):,}")
        )
    if tuned.mass is None:
        notes.warn(f"no answer had a word right (questions: {tuned.questions:,}); {stays}")
    return tuned.applied(found)


def show_heads(found: ScoringHeads, path: Path, notes: Notes, json: bool) -> None:
    if json:
        from dataclasses import asdict

        print_json({"file": str(path), **asdict(found)})
        return
    notes.tell(f"wrote {path}")
    named = ", ".join(f"layer {head.layer} head {head.head}" for head in found.heads)
    print(f"{len(found.heads)} heads: {named}", file=sys.stdout)
    for name, value in found.evidence.items():
        print(f"{name}: {value:g}")
    print(
        f"mass kept by --keep auto: {found.auto_mass:.3f}; default scorer: {'heads' if found.default else 'question'}"
    )


def fit_maps(
    session: Session, texts: list[str], edges: list[int], window: int | None, folder: Path, notes: Notes, json: bool
) -> None:
    from specprefill_cli.lab.calibration.draft_kv import calibrate_kv

    with notes.progress("running the pair over the text") as update:
        found = calibrate_kv(
            session.pair,
            texts,
            edges,
            lambda number: update(f"running the pair over the text: sequence {number:,}"),
            window,
        )
    path = found.save(folder)
    if json:
        from dataclasses import asdict

        maps = {name: [asdict(fit) for fit in one.fits] for name, one in found.maps.items()}
        print_json({"file": str(path), "rows": found.rows, "maps": maps})
        return
    notes.tell(f"wrote {path}")
    for name, one in found.maps.items():
        for fit in one.fits:
            print(
                f"{name}: target layer {fit.layer} from draft layers {', '.join(map(str, fit.draft_layers)) or 'none'}; "
                f"share of variance missed: keys {fit.key_error:.3f}, values {fit.value_error:.3f}"
            )
