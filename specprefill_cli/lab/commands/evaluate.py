"""`specprefill evaluate`: quality and speed on a question set."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprefill_cli.cli.console import Notes, print_json
from specprefill_cli.cli.options import MODE_LIST, Json, Quiet, with_settings
from specprefill_cli.errors import INTERRUPTED, SOME_FAILED, UsageError
from specprefill_cli.files import check_can_write, same_file
from specprefill_cli.lab.commands.lists import KEEP_LIST, SCORER_LIST
from specprefill_cli.lab.commands.options import Distractors, SampleSeed
from specprefill_cli.models.refs import is_endpoint
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.lab.evaluation.datasets import Item
    from specprefill_cli.lab.evaluation.runner import Configuration, Run
    from specprefill_cli.record import Record


@with_settings("models", "prefill", "max_new_tokens", "confirm", lists=(MODE_LIST, KEEP_LIST, SCORER_LIST))
def evaluate(
    questions: Annotated[
        Path, typer.Argument(help="JSONL (or .xz) of {id, context | document | documents, question, answers}.")
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="Questions to draw at random; default: all.")] = None,
    distractors: Distractors = 0,
    sample_seed: SampleSeed = 0,
    answers: Annotated[Path | None, typer.Option(help="Write every answer as JSONL to this file.")] = None,
    *,
    settings: Settings,
    modes: list[str],
    keeps: list[float | None],
    scorers: list[str],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure exact match, F1 with 95 % intervals, the paired difference to `full`, and the ratio of times to first token.

    A question with documents too long for the pair is left out with a warning, and the exit code is 3. Ctrl-C prints the
    figures of the questions asked so far. With --confirm, measure how often and how soon full prefill confirms the answers
    of `select`.

    Examples:
      specprefill evaluate sample_docs/questions.jsonl --keep 0.2,0.3

      specprefill evaluate squad.jsonl.xz --limit 500 --distractors 19 --scorer question,lexical,random --json
    """
    if answers is not None:
        if same_file(answers, questions):
            raise UsageError(f"--answers {answers}: this is the file of questions; give another name")
        check_can_write(answers, "--answers")
    from specprefill_cli.answering.resolve import loads_draft
    from specprefill_cli.answering.session import open_session
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.lab.evaluation.runner import configurations, run
    from specprefill_cli.record import json_line

    notes = Notes(quiet)
    items = read_items(questions, limit, distractors, sample_seed)
    if distractors and not any(item.buried for item in items):
        raise UsageError(
            f"--distractors {distractors}: rows of {questions} name documents, and only a context can be put among "
            "others; leave it out"
        )
    cases = configurations(modes, keeps, scorers)
    variants = [case.settings(settings) for case in cases]
    with notes.progress("loading the models"):
        if is_endpoint(settings.target):
            from specprefill_cli.endpoint.session import open_endpoint

            session: Session = open_endpoint(settings)
        else:
            session = open_session(settings, draft=any(map(loads_draft, variants)))
    if settings.confirm:
        confirm(session, items, keeps, settings, answers, json, notes)
        return
    cases = [case.named(session) for case in cases]
    with ExitStack() as stack:
        out = stack.enter_context(answers.open("w", encoding="utf-8")) if answers else None
        update = stack.enter_context(notes.progress(f"asking {len(items):,} questions"))

        def step(number: int, item: Item, case: Configuration, answer: Record) -> None:
            update(f"asking {len(items):,} questions in {len(cases)} configurations: {number:,} done")
            if out:
                extra = {"references": item.answers, "keep": case.keep, "scorer": case.scorer}
                out.write(json_line(answer.to_json() | extra) + "\n")

        outcome = run(session, items, cases, settings, step)
    report(questions, outcome, json, notes)


def confirm(
    session: Session,
    items: list[Item],
    keeps: list[float | None],
    settings: Settings,
    answers: Path | None,
    json: bool,
    notes: Notes,
) -> None:
    """Confirm the answers of `select`, and print the figures."""
    from specprefill_cli.lab.evaluation.confirming import Confirmed, figures, measure
    from specprefill_cli.lab.tables import CONFIRMATION, show_table
    from specprefill_cli.record import json_line

    with ExitStack() as stack:
        out = stack.enter_context(answers.open("w", encoding="utf-8")) if answers else None
        update = stack.enter_context(notes.progress(f"asking {len(items):,} questions"))

        def step(outcome: Confirmed) -> None:
            update(f"asking {len(items):,} questions: {outcome.item}")
            if out:
                out.write(json_line(asdict(outcome)) + "\n")
                out.flush()

        rows = figures(measure(session, items, keeps, settings, step))
    if json:
        print_json({"rows": [asdict(row) for row in rows]})
    else:
        show_table(rows, CONFIRMATION)


def report(questions: Path, run: Run, json: bool, notes: Notes) -> None:
    """Print the figures; raises Exit where the run was interrupted or questions were left out."""
    from specprefill_cli.lab.evaluation.runner import rows
    from specprefill_cli.lab.tables import EVALUATION, show_table

    if not any(run.results.values()):
        run.complete()
    figures = rows(run.results, run.kept)
    for item, error in run.left_out:
        notes.warn(f"question {item.identifier} was left out: {error}")
    if json:
        left_out = [item.identifier for item, _ in run.left_out]
        print_json({"questions": str(questions), "left_out": left_out, "rows": [asdict(row) for row in figures]})
    else:
        show_table(figures, EVALUATION)
    if run.interrupted:
        raise typer.Exit(INTERRUPTED)
    if run.left_out:
        raise typer.Exit(SOME_FAILED)
