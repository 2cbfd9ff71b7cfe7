"""`specprefill study`: where draft KV fails, and what it gains: numbers, pictures, one page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specprefill_cli.cli.console import Notes, console
from specprefill_cli.cli.options import Quiet, with_settings
from specprefill_cli.errors import UsageError
from specprefill_cli.files import make_folder, write_whole
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.lab.evaluation.datasets import Item
    from specprefill_cli.lab.study.draft_comparison import DraftFit


@with_settings(
    "models",
    "exact_layers",
    "scorer",
    "look_ahead",
    "prefill_chunk",
    "chunk_size",
    "prompt",
    without=("tensor_parallel",),
)
def study(
    questions: Annotated[Path, typer.Argument(help="JSONL (or .xz) of questions, as for `evaluate`.")],
    out: Annotated[Path, typer.Option(help="Folder for study.json, study.html and the pictures (.svg).")],
    limit: Annotated[
        int, typer.Option(min=2, help="Questions to study, drawn at random; with --answers, to try other budgets on.")
    ] = 50,
    answers: Annotated[
        int, typer.Option(min=0, help="Questions to answer in all modes and controls at equal time to first token.")
    ] = 0,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Text files, or folders: fit maps of several drafts' KV on them, and compare."),
    ] = None,
    draft_compare: Annotated[
        list[str] | None, typer.Option(help="Hub id or folder of another draft to compare; needs --text.")
    ] = None,
    distractors: Annotated[
        int, typer.Option(min=0, help="Other contexts of the file around each question's own.")
    ] = 19,
    sample_seed: Annotated[int, typer.Option(help="Seed of the draw and of the distractors.")] = 0,
    *,
    settings: Settings,
    quiet: Quiet = False,
) -> None:
    """Map where the draft's KV fails in the target, what predicts it, what repairs it, and what it gains.

    True errors by layer and depth; what checkpoints predict; with --text, how much the kinship of draft and target
    matters; with --answers, F1 at equal time to first token against the draft alone, `select` and controls.

    Examples:
      specprefill study squad.jsonl.xz --out study --limit 100

      specprefill study squad.jsonl.xz --out study --answers 500 --text corpus/ --draft-compare Qwen/Qwen3-1.7B
    """
    if draft_compare and not text:
        raise UsageError("--draft-compare needs text to fit on; give --text FILES too")
    settings = settings.varied(mode="draft-kv")
    make_folder(out, "--out")
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.distributed.launch import refuse_ranks
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.lab.plots import require_matplotlib
    from specprefill_cli.lab.study.measurements import fitting
    from specprefill_cli.reporting.jsonl import SCHEMA

    refuse_ranks(settings.tensor_parallel, "study")
    require_matplotlib("study")
    notes = Notes(quiet)
    items = read_items(questions, max(limit, answers), distractors, sample_seed)
    with notes.progress("loading the models"):
        session = open_session(settings, draft=True)
    items, left_out = fitting(session, items, settings)
    for item, error in left_out:
        notes.warn(f"question {item.identifier} was left out: {error}")
    kin = compare_drafts(session, text, draft_compare or [], settings, notes) if text else None
    record = {
        "schema": SCHEMA,
        "left_out": [item.identifier for item, _ in left_out],
        "pair": {"draft": session.pair.loaded_draft.name, "target": session.pair.target.name},
        "kinship": [asdict(row) for row in kin] if kin is not None else None,
        **measure(session, items, settings, limit, answers, notes),
    }
    write_study(out, record, notes)


def measure(
    session: Session, items: Sequence[Item], settings: Settings, limit: int, answers: int, notes: Notes
) -> dict[str, Any]:
    """Study the first `limit` questions, and answer the first `answers` at equal time to first token."""
    from specprefill_cli.lab.study.equal_cost import equal_cost
    from specprefill_cli.lab.study.measurements import study as run_study
    from specprefill_cli.lab.study.summary import summary

    studied = items[:limit]
    with notes.progress("studying") as update:
        measured = run_study(session, studied, settings, lambda number: update(f"studying {number} of {len(studied)}"))
    cost = None
    if answers:
        with notes.progress("answering") as update:
            cost = equal_cost(session, items[:answers], settings, limit, update)
    return {
        **summary(measured, cost.answer_changed if cost is not None else ()),
        "equal_cost": cost.record() if cost is not None else None,
    }


def compare_drafts(
    session: Session, text: Sequence[Path], names: Sequence[str], settings: Settings, notes: Notes
) -> list[DraftFit]:
    """Compare the pair's own draft, those named, and an unrelated one with the target; one is loaded at a time."""
    from specprefill_cli.documents import read_collection
    from specprefill_cli.lab.study.draft_comparison import fit_drafts
    from specprefill_cli.models.loading import load_model
    from specprefill_cli.models.placement import choose_placement, roomiest

    texts = [document.text for document in read_collection([str(path) for path in text], strict=True).documents]
    place = roomiest(choose_placement(settings.devices))
    others = (load_model(name, place, settings.dtype, settings.offline) for name in names)
    with notes.progress("comparing drafts") as update:
        return fit_drafts(session.pair, texts, others, update)


def write_study(out: Path, record: dict[str, Any], notes: Notes) -> None:
    """Write study.json, study.html and the pictures to a folder, and the tables to standard output."""
    import json as json_format

    from specprefill_cli.lab.study.page import finite, render_study, study_plots, study_tables

    record = finite(record)
    write_whole(out / "study.json", json_format.dumps(record, indent=1, allow_nan=False) + "\n")
    write_whole(out / "study.html", render_study(record))
    for name, svg in study_plots(record).items():
        write_whole(out / f"{name}.svg", svg)
    notes.tell(f"wrote study.json, study.html and pictures to {out}")
    console(sys.stdout).print(study_tables(record))
