"""`specprefill bench recall`: how often scorers keep what answers a question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import Json, Quiet, with_settings
from specprefill_cli.lab.commands.lists import KEEP_LIST, SCORER_LIST
from specprefill_cli.lab.commands.options import Distractors, SampleSeed
from specprefill_cli.settings import Settings


@with_settings("models", "prefill", without=("mode",), lists=(KEEP_LIST, SCORER_LIST))
def recall(
    questions: Annotated[
        Path,
        typer.Argument(
            help="JSONL (or .xz) of {id, context | document | documents, question, answers}, with or without evidence."
        ),
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="Questions to draw at random; default: all.")] = None,
    distractors: Distractors = 0,
    sample_seed: SampleSeed = 0,
    baseline: Annotated[
        bool, typer.Option(help="Also measure retrieval of 100-word passages by the encoder's cosine.")
    ] = True,
    *,
    settings: Settings,
    keeps: list[float | None],
    scorers: list[str],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how often the kept text holds the answer, by scorer and keep ratio, with 95 % intervals and times.

    A row's `evidence`, a list of passages, must all be kept; without it, one place where a reference answer stands.
    Differences are from the first scorer, on the same questions.

    Example:
      specprefill bench recall squad.jsonl.xz --distractors 19 --limit 300 --scorer heads,lexical --keep 0.05,0.1
    """
    settings = settings.varied(mode="select")
    from specprefill_cli.answering.resolve import resolve_scorer
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.lab.benchmarks.passage_scorer import PassageScorer
    from specprefill_cli.lab.benchmarks.recall import bench_recall
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.lab.tables import RECALL, show_benchmark
    from specprefill_cli.prefill.registry import SCORERS

    notes = Notes(quiet)
    items = [item for item in read_items(questions, limit, distractors, sample_seed) if item.answers]
    session = open_session(settings, draft=True)
    names = list(dict.fromkeys(resolve_scorer(name, session.pair, settings.mode) for name in scorers))
    measured = [*(SCORERS[name] for name in names), *([PassageScorer()] if baseline else [])]
    with notes.progress("measuring") as update:
        rows = bench_recall(session, items, measured, keeps, settings, update)
    show_benchmark(rows, RECALL, json)
