"""`specprefill calibrate`: fits scoring heads, KV maps and their gate once for a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specprefill_cli.cli.console import Notes, print_json
from specprefill_cli.cli.options import Json, Quiet, with_settings
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.commands.options import Distractors, SampleSeed, make_folder, refuse_ranks
from specprefill_cli.settings import AUTO, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.confidence import ConfidenceModel
    from specprefill_cli.answering.session import Session
    from specprefill_cli.lab.evaluation.datasets import Item


@with_settings("models", "look_ahead", "prefill_chunk", "chunk_size", "prompt", without=("tensor_parallel",))
def calibrate(
    heads: Annotated[
        Path | None,
        typer.Option(help="JSONL (or .xz) of questions with known answers: find the draft's scoring heads."),
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="Text files or folders: fit maps of the draft's KV into the target's.")
    ] = None,
    auto: Annotated[
        Path | None,
        typer.Option(
            help="JSONL (or .xz) of questions with known answers: choose the target's --positions auto and --keep auto."
        ),
    ] = None,
    confidence: Annotated[
        Path | None,
        typer.Option(help="JSONL (or .xz) of questions with known answers: fit how likely an answer is right."),
    ] = None,
    unseen: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=0.99, help="Share of right answers on unseen text, if --confidence holds training questions."
        ),
    ] = None,
    answerable: Annotated[
        Path | None,
        typer.Option(help="JSONL (or .xz) of questions, some without answers: fit whether the documents state it."),
    ] = None,
    with_answers: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Share of users' questions that have an answer, for --answerable.")
    ] = 0.8,
    gate: Annotated[
        Path | None,
        typer.Option(help="JSONL (or .xz) of questions: find the highest risk allowed in accepted draft KV."),
    ] = None,
    gate_kl: Annotated[
        float, typer.Option(min=0.0, help="Mean KL of the first token to `full`, in nats, that --gate accepts.")
    ] = 0.1,
    limit: Annotated[int, typer.Option(min=1, help="Questions to draw at random from each file.")] = 400,
    distractors: Distractors = 19,
    sample_seed: SampleSeed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; default: the pair's calibration folder.")
    ] = None,
    *,
    settings: Settings,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the draft's scoring heads (--heads), or fit maps of its KV into the target's (--text).

    The scorer `heads` and --keep auto use the heads. The modes `draft-kv` and `hybrid` use the maps. --confidence fits how
    likely an answer is right, --answerable whether documents state one, --gate the highest risk allowed in accepted draft
    KV.

    Examples:
      specprefill calibrate --pair qwen2.5-7b --heads questions.jsonl

      specprefill calibrate --pair qwen2.5-7b --text corpus/
    """
    if all(questions is None for questions in (heads, confidence, answerable, gate, auto)) and not text:
        options = "--heads, --auto, --confidence, --answerable or --gate QUESTIONS.jsonl, or --text FILES"
        raise UsageError(f"calibrate: nothing to do; give {options}")
    settings = settings.varied(scorer="question", mode="select")
    from specprefill_cli.answering.confidence import ANSWERABLE_FILE, FILE
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.documents.collect import read_collection
    from specprefill_cli.lab.calibration.answers import fit_answerable, fit_confidence
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.models.sources.pairs import chosen_pair, draft_folder
    from specprefill_cli.prefill.calibration import calibration_folder

    refuse_ranks(settings.tensor_parallel, "calibrate")
    output = Output(Notes(quiet), json)
    asked, settings = settings, name_measured_draft(settings, measured=any((heads, gate, text)))
    pair = chosen_pair(settings.varied(scorer=AUTO))
    folder = out or calibration_folder(pair)
    make_folder(folder, "--out" if out else "the calibration's folder")
    sets = {"heads": heads, "gate": gate, "auto": auto, "confidence": confidence, "answerable": answerable}
    drawn = {
        name: read_items(path, limit=limit, distractors=distractors, seed=sample_seed)
        for name, path in sets.items()
        if path is not None
    }
    paths = [str(path) for path in text or ()]
    texts = [document.text for document in read_collection(paths, strict=True).documents] if paths else []
    if heads is not None or text:
        with output.notes.progress("loading the models"):
            session = open_session(settings, draft=True, calibrated=False)
        if heads is not None:
            calibrate_heads(drawn["heads"], session, settings, out or draft_folder(pair.draft), output)
        if text:
            fit_maps(session, texts, folder, output)
        # Free the pair: the other steps open it with these calibrations, and a device may not hold it twice.
        del session
    if gate is not None:
        find_gate(drawn["gate"], settings, gate_kl, folder, output)
    if heads is None:
        # Questions are answered with the draft that `--scorer auto` chooses, which only new heads change.
        settings, folder = asked, out or calibration_folder(chosen_pair(asked.varied(scorer=AUTO)))
        make_folder(folder, "the calibration's folder")
    if auto is not None:
        calibrate_target(drawn["auto"], settings, folder, output)
    if confidence is not None:
        calibrate_answers(fit_confidence, drawn["confidence"], settings, unseen, folder / FILE, output)
    if answerable is not None:
        calibrate_answers(fit_answerable, drawn["answerable"], settings, with_answers, folder / ANSWERABLE_FILE, output)


@dataclass(frozen=True)
class Output:
    """Where progress and results go; json: print each result as a JSON object."""

    notes: Notes
    json: bool

    def report(self, path: Path, contents: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print what a file holds: its content as JSON, or lines about it."""
        if self.json:
            print_json({"file": str(path), **contents})
        else:
            self.notes.line(f"wrote {path}")
            print("\n".join(lines))


def name_measured_draft(settings: Settings, measured: bool) -> Settings:
    """Name the pair's draft in the settings, if a step measures it and `--scorer auto` would choose another draft."""
    from specprefill_cli.models.sources.pairs import chosen_pair

    draft, chooser = chosen_pair(settings).draft, chosen_pair(settings.varied(scorer=AUTO)).draft
    return settings.varied(draft=draft) if measured and draft != chooser else settings


def calibrate_heads(items: list[Item], session: Session, settings: Settings, folder: Path, output: Output) -> None:
    """Find the scoring heads and the share of importance that `--keep auto` keeps, and write them to the folder."""
    from specprefill_cli.lab.calibration import heads as search
    from specprefill_cli.lab.calibration.files import save_heads

    items = [item for item in items if item.answers]
    with output.notes.progress(f"searching the draft's heads with {len(items):,} questions") as update:
        heads = search.calibrate_heads(session, items, settings, update)
    places = ", ".join(f"layer {head.layer} head {head.head}" for head in heads.heads)
    scorer = "heads" if heads.default else "lexical"
    lines = [
        f"{len(heads.heads)} heads: {places}",
        *(f"{name}: {value:g}" for name, value in heads.evidence.items()),
        f"mass kept by --keep auto: {heads.auto_mass:.3f}; default scorer: {scorer}",
    ]
    output.report(save_heads(heads, folder), asdict(heads), lines)


def calibrate_target(items: list[Item], settings: Settings, folder: Path, output: Output) -> None:
    """Find what `auto` means for the target and write it to the folder."""
    from specprefill_cli.lab.calibration.answers import tune_target
    from specprefill_cli.lab.calibration.files import write_description
    from specprefill_cli.lab.session import open_with_heads
    from specprefill_cli.prefill.calibration import FILE

    settings = settings.varied(scorer=AUTO)
    session = open_with_heads(settings, folder)
    with output.notes.progress(f"answering {len(items):,} questions") as update:
        calibration = tune_target(session, [item for item in items if item.answers], settings, update)
    lines = [f"{name}: {value}" for name, value in calibration.evidence.items()]
    lines.append(f"--positions auto: {calibration.positions}; --keep auto: {calibration.auto_mass:g} of the importance")
    output.report(write_description(folder / FILE, asdict(calibration)), asdict(calibration), lines)


def calibrate_answers(
    fit: Callable[..., ConfidenceModel],
    items: list[Item],
    settings: Settings,
    share: float | None,
    path: Path,
    output: Output,
) -> None:
    """Fit a regression on questions in mode `auto`, with the pair's other calibrations in use. share: what `fit` assumes."""
    from specprefill_cli.lab.calibration.files import write_description
    from specprefill_cli.lab.session import LONGEST_ANSWER, open_with_heads

    settings = settings.varied(scorer=AUTO, mode=AUTO, max_new_tokens=LONGEST_ANSWER)
    session = open_with_heads(settings, path.parent)
    with output.notes.progress(f"asking {len(items):,} questions") as update:
        model = fit(session, items, settings, share, update)
    figures = {"intercept": model.intercept, **model.weights, **model.evidence}
    lines = [f"{name}: {value:.4g}" for name, value in figures.items()]
    output.report(write_description(path, asdict(model)), asdict(model), lines)


def fit_maps(session: Session, texts: list[str], folder: Path, output: Output) -> None:
    """Fit the maps from the draft's KV to the target's and write them to the folder."""
    from specprefill_cli.draft_kv.projection import NAME
    from specprefill_cli.lab.calibration.draft_kv import calibrate_kv
    from specprefill_cli.lab.calibration.files import save_maps
    from specprefill_cli.models.sources.pairs import draft_folder
    from specprefill_cli.prefill.calibration import load_heads

    draft = session.pair.loaded_draft
    # The draft uses the window of its stored scoring heads, if any.
    stored_heads = (load_heads(place, draft) for place in (folder, draft_folder(session.pair.pair.draft)))
    window = next((heads.window for heads in stored_heads if heads is not None), None)
    with output.notes.progress("running the pair over the text") as update:
        progress = folder / "kv_sums.pt"
        calibration = calibrate_kv(session.pair, texts, update, window, progress)
    fits = calibration.kv_map.fits
    lines = [
        f"target layer {fit.layer} from draft layers {', '.join(map(str, fit.draft_layers))}; "
        f"share of variance missed: keys {fit.key_error:.3f}, values {fit.value_error:.3f}"
        for fit in fits
    ]
    contents = {"rows": calibration.rows, "maps": {NAME: [asdict(fit) for fit in fits]}}
    path = save_maps(calibration, folder)
    progress.unlink(missing_ok=True)
    output.report(path, contents, lines)


def find_gate(items: list[Item], settings: Settings, gate_kl: float, folder: Path, output: Output) -> None:
    """Find the gate of the map in the folder, or of the pair's map, and write map and gate to the folder."""
    from specprefill_cli.draft_kv.projection import NAME, load_calibration, pair_calibration, set_calibration
    from specprefill_cli.lab.calibration.files import save_maps
    from specprefill_cli.lab.session import open_with_heads
    from specprefill_cli.lab.study.gate import calibrate_gate

    session = open_with_heads(settings.varied(scorer=AUTO), folder)
    set_calibration(session.pair, load_calibration(folder, session.pair) or pair_calibration(session.pair))
    with output.notes.progress(f"comparing {len(items):,} prompts with full prefill") as update:
        calibration = calibrate_gate(session, items, settings, gate_kl, update)
    gate = asdict(calibration.kv_map.gate) if calibration.kv_map.gate else {}
    lines = [", ".join(f"{key} {value}" for key, value in gate.items())]
    output.report(save_maps(calibration, folder), {"gates": {NAME: gate}}, lines)
