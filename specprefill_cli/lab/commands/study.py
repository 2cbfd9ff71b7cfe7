"""`specprefill study`: where draft KV fails, and what it gains, in numbers and pictures."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes, console
from specprefill_cli.cli.options import Quiet, with_settings
from specprefill_cli.files import write_whole
from specprefill_cli.lab.commands.options import Distractors, SampleSeed, make_folder, refuse_ranks
from specprefill_cli.settings import AUTO, Settings


@with_settings("models", "scorer", "look_ahead", "prefill_chunk", "chunk_size", "prompt", without=("tensor_parallel",))
def study(
    questions: Annotated[Path, typer.Argument(help="JSONL (or .xz) of questions, as for `evaluate`.")],
    out: Annotated[Path, typer.Option(help="Folder for the rows, study.json and the pictures (.svg).")],
    limit: Annotated[int, typer.Option(min=2, help="Questions to study, drawn at random.")] = 50,
    distractors: Distractors = 19,
    sample_seed: SampleSeed = 0,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Compare so many tokens of each answer, at most.")] = 12,
    *,
    settings: Settings,
    quiet: Quiet = False,
) -> None:
    """Study draft KV: where it fails in the target, and its gain over `select` at equal time.

    Needs the maps of `calibrate --text`. Compares caches with full prefill: mapped by layer and by span, partly recomputed,
    controls, and `select` at several keep ratios. Run it again after a stop: it goes on with the next question.

    Example:
      specprefill study squad.jsonl.xz --pair qwen2.5-coder-1.5b --out study --distractors 3
    """
    make_folder(out, "--out")
    from specprefill_cli.answering.resolve import resolve_scorer
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.lab.plots import require_matplotlib
    from specprefill_cli.lab.session import questions_that_fit
    from specprefill_cli.lab.study import figures
    from specprefill_cli.lab.study.conditions import study_items
    from specprefill_cli.lab.study.summary import summary
    from specprefill_cli.record import SCHEMA

    refuse_ranks(settings.tensor_parallel, "study")
    require_matplotlib("study")
    notes = Notes(quiet)
    items = read_items(questions, limit, distractors, sample_seed)
    with notes.progress("loading the models"):
        chooser = open_session(settings.varied(mode="select", scorer=AUTO), draft=True, target_weights=False)
        session = open_session(settings.varied(mode="draft-kv"), draft=True)
    settings = settings.varied(mode="draft-kv", scorer=resolve_scorer(settings.scorer, session.pair, "draft-kv"))
    items, left_out = questions_that_fit(session, items, settings)
    for item, error in left_out:
        notes.warn(f"question {item.identifier} was left out: {error}")
    with notes.progress("studying") as update:
        rows = study_items(session, chooser, items, settings, out / "questions.jsonl", update, answer_tokens)
    pair = {"draft": session.pair.loaded_draft.name, "target": session.pair.target.name}
    record = {"schema": SCHEMA, "left_out": [item.identifier for item, _ in left_out], "pair": pair, **summary(rows)}
    write_whole(out / "study.json", json.dumps(record, indent=1) + "\n")
    for name, svg in figures.study_plots(record).items():
        write_whole(out / f"{name}.svg", svg)
    notes.line(f"wrote questions.jsonl, study.json and pictures to {out}")
    console(sys.stdout).print(figures.study_view(record))
