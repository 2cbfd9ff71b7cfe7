"""The commands of `specprefill bench` that ask questions with known answers: `needles` and `recall`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from specprefill_cli.cli.options import Json, Quiet, with_settings
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.commands.options import (
    KEEP_LIST,
    SCORER_LIST,
    Distractors,
    Lengths,
    Limit,
    SampleSeed,
    open_for_all,
    whole_numbers,
)
from specprefill_cli.settings import OFF, Settings


@with_settings("models", "prefill", "tuning", "decoding", without=("mode", "keep", "max_new_tokens"))
def needles(
    text: Annotated[Path, typer.Option(help="File with the prose, in any format that can be asked about.")],
    task: Annotated[
        str,
        typer.Option(
            help="What is hidden: needle, needles (one of many), variables (a chain), words (the most common ones)."
        ),
    ] = "needle",
    lengths: Lengths = "32768,131072",
    limit: Annotated[int, typer.Option(min=1, help="Questions of each length.")] = 10,
    kept_tokens: Annotated[int, typer.Option(min=64, help="Tokens of the prompt that the target computes.")] = 2_000,
    *,
    settings: Settings,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Ask for what is hidden in documents of any length, by the rules of RULER: count right answers, measure TTFT and memory.

    Example:
      specprefill bench needles --text books.txt --lengths 32768,131072,1000000 --limit 20
    """
    settings = settings.varied(mode="select", max_new_tokens=64, passages=OFF)
    sizes = whole_numbers(lengths, "--lengths")
    from specprefill_cli.lab.benchmarks.hidden import TASKS

    if task not in TASKS:
        raise UsageError(f"--task: '{task}' is none of {', '.join(TASKS)}")
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.documents.collect import read_collection
    from specprefill_cli.lab.benchmarks.needles import COLUMNS, bench_needles
    from specprefill_cli.lab.tables import show_benchmark

    prose = read_collection([str(text)], strict=True).text
    session = open_session(settings)
    measure = partial(bench_needles, session, task, prose, sizes, limit, kept_tokens, settings)
    show_benchmark(measure, COLUMNS, json, quiet)


@with_settings("models", "prefill", "tuning", without=("mode",), lists=(KEEP_LIST, SCORER_LIST))
def recall(
    questions: Annotated[
        Path,
        typer.Argument(
            help="JSONL (or .xz) of {id, context | document | documents, question, answers}, with or without evidence."
        ),
    ],
    limit: Limit = None,
    distractors: Distractors = 0,
    sample_seed: SampleSeed = 0,
    by: Annotated[
        str | None, typer.Option(help="Key of the rows, such as language, whose values get figures of their own.")
    ] = None,
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
    from specprefill_cli.lab.benchmarks.recall import COLUMNS, PassageScorer, bench_recall
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.lab.tables import show_benchmark
    from specprefill_cli.prefill.registry import SCORERS

    items = [item for item in read_items(questions, limit, distractors, sample_seed) if item.answers]
    session = open_for_all(settings, [settings.varied(scorer=name) for name in scorers])
    names = list(dict.fromkeys(resolve_scorer(name, session.pair, settings.mode) for name in scorers))
    measured = [*(SCORERS[name] for name in names), *([PassageScorer()] if baseline else [])]
    measure = partial(bench_recall, session, items, measured, keeps, settings, by)
    show_benchmark(measure, COLUMNS, json, quiet)
