"""`specprefill evaluate`: quality and speed on a question set."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli import completion, options
from specprefill_cli.cli.console import Notes, console, print_json
from specprefill_cli.cli.lists import ratios, split
from specprefill_cli.errors import INTERRUPTED, SOME_FAILED, UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from specprefill_cli.answering.answer import Answer
    from specprefill_cli.lab.evaluation.datasets import Item
    from specprefill_cli.lab.evaluation.runner import Configuration, Row


def evaluate(
    questions: Annotated[
        Path, typer.Argument(help="JSONL (or .xz) of {id, context | document | documents, question, answers}.")
    ],
    modes: Annotated[
        str,
        typer.Option(
            help="Modes to run, comma-separated.",
            rich_help_panel=options.PREFILL,
            autocompletion=completion.list_of(*completion.MODES),
        ),
    ] = "full,select",
    keep: Annotated[
        str | None, typer.Option(help="Keep ratios, comma-separated; auto is allowed.", rich_help_panel=options.PREFILL)
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option(
            help="Scorers, comma-separated.",
            rich_help_panel=options.PREFILL,
            autocompletion=completion.list_of(*completion.SCORERS),
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Questions to draw at random; all without it.")] = None,
    distractors: Annotated[int, typer.Option(min=0, help="Other contexts of the file to bury each context among.")] = 0,
    sample_seed: Annotated[int, typer.Option(help="Seed of the draw and of the distractors.")] = 0,
    answers: Annotated[Path | None, typer.Option(help="Write every answer as JSONL to this file.")] = None,
    recompute: options.Recompute = None,
    accept_risk: options.AcceptRisk = None,
    exact_layers: options.ExactLayers = None,
    look_ahead: options.LookAhead = None,
    draft_window: options.DraftWindow = None,
    prefill_chunk: options.PrefillChunk = None,
    chunk_size: options.ChunkSize = None,
    prompt: options.Prompt = None,
    pair: options.Pair = None,
    draft: options.Draft = None,
    target: options.Target = None,
    devices: options.Devices = None,
    tensor_parallel: options.TensorParallel = None,
    dtype: options.Dtype = None,
    quantization: options.Quantization = None,
    offline: options.Offline = None,
    max_new_tokens: options.MaxNewTokens = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Exact match, F1 with 95 % intervals, paired difference to `full`, and the ratio of times to first token.

    A question whose documents are too long for the pair is left out with a warning; the exit code is then 3. Ctrl-C
    prints the figures of the questions asked so far.

    Examples:
      specprefill evaluate sample_docs/questions.jsonl --keep 0.2,0.3

      specprefill evaluate squad.jsonl.xz --limit 500 --distractors 19 --scorer question,lexical,random --json
    """
    given = locals()
    flags = {name: value for name, value in given.items() if name not in ("keep", "scorer")}
    settings = options.settings_from(flags)
    from specprefill_cli.answering.session import check_names, loads_draft, open_session
    from specprefill_cli.cli.idle_options import without_effect
    from specprefill_cli.files import check_can_write
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.lab.evaluation.runner import configurations, rows, run
    from specprefill_cli.reporting.jsonl import answer_record, line

    wanted = configurations(
        split(modes, "--modes"), ratios(keep, settings), split(scorer or settings.scorer, "--scorer")
    )
    for configuration in wanted:
        check_names(configuration.settings(settings))
    if answers is not None:
        if answers.exists() and questions.exists() and answers.samefile(questions):
            raise UsageError(f"--answers {answers}: these are the questions; give another name")
        check_can_write(answers, "--answers")
    notes = Notes(quiet)
    items = read_items(questions, limit, distractors, sample_seed)
    if distractors and not any(item.buried for item in items):
        raise UsageError(
            f"--distractors {distractors}: rows of {questions} have no context that could be put among others, "
            "but name documents; leave it out"
        )
    with notes.progress("loading the models"):
        session = open_session(
            settings, draft=any(loads_draft(configuration.settings(settings)) for configuration in wanted)
        )
    wanted = [configuration.named(session) for configuration in wanted]
    for idle in without_effect(given, [configuration.settings(settings) for configuration in wanted]):
        notes.warn(idle)
    with ExitStack() as stack:
        out = stack.enter_context(answers.open("w", encoding="utf-8")) if answers else None
        update = stack.enter_context(notes.progress(f"asking {len(items):,} questions"))

        def step(number: int, item: Item, configuration: Configuration, answer: Answer) -> None:
            update(f"asking {len(items):,} questions in {len(wanted)} configurations: {number:,} done")
            if out:
                extra = {"references": item.answers, "keep": configuration.keep, "scorer": configuration.scorer}
                out.write(line(answer_record(answer) | extra) + "\n")

        found = run(session, items, wanted, settings, step)
    if not any(found.results.values()):
        found.complete()
    figures = rows(found.results)
    for item, error in found.left_out:
        notes.warn(f"question {item.identifier} was left out: {error}")
    if json:
        from dataclasses import asdict

        left_out = [item.identifier for item, _ in found.left_out]
        record = {
            "questions": str(questions),
            "left_out": left_out,
            "rows": [asdict(row) for row in figures],
        }
        print_json(record)
    else:
        console(sys.stdout).print(evaluation_table(figures))
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    if found.left_out:
        raise typer.Exit(SOME_FAILED)


def evaluation_table(figures: list[Row]) -> Table:
    from rich.table import Table

    from specprefill_cli.reporting.table import keep_text

    table = Table(
        "mode",
        "keep",
        "scorer",
        "n",
        "right",
        "EM",
        "F1 [95 %]",
        "F1 - full [95 %]",
        "kept",
        "TTFT",
        "x full",
        box=None,
    )
    for row in figures:
        delta = (
            "" if row.f1_delta is None else f"{row.f1_delta:+.1f} [{row.f1_delta_low:+.1f}, {row.f1_delta_high:+.1f}]"
        )
        table.add_row(
            row.mode,
            keep_text(row.mode, row.keep),
            row.scorer or "",
            str(row.n),
            str(row.right),
            f"{row.em:.1f}",
            f"{row.f1:.1f} [{row.f1_low:.1f}, {row.f1_high:.1f}]",
            delta,
            f"{row.kept_ratio:.2f}",
            f"{row.ttft_seconds * 1000:,.0f} ms",
            "" if row.ttft_ratio is None else f"{row.ttft_ratio:.2f}",
        )
    return table
