"""`specprefill evaluate`: quality and speed on a question set."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specprefill_cli.cli.console import Notes
from specprefill_cli.cli.options import MODE_LIST, Json, Quiet, with_settings
from specprefill_cli.errors import INTERRUPTED, SOME_FAILED, UsageError
from specprefill_cli.files import check_can_write, same_file
from specprefill_cli.lab.commands.options import KEEP_LIST, SCORER_LIST, Distractors, Limit, SampleSeed, open_for_all
from specprefill_cli.models.sources.refs import is_endpoint
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.lab.evaluation.datasets import Item
    from specprefill_cli.lab.evaluation.runner import Configuration, LeftOut
    from specprefill_cli.lab.tables import Columns, Row
    from specprefill_cli.record import Record


@with_settings("models", "prefill", "tuning", "max_new_tokens", "confirm", lists=(MODE_LIST, KEEP_LIST, SCORER_LIST))
def evaluate(
    questions: Annotated[
        Path, typer.Argument(help="JSONL (or .xz) of {id, context | document | documents, question, answers}.")
    ],
    limit: Limit = None,
    distractors: Distractors = 0,
    sample_seed: SampleSeed = 0,
    answers: Annotated[Path | None, typer.Option(help="Write every answer as JSONL to this file.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare with the --answers of an earlier run: answers, TTFT, tokens/s, memory.")
    ] = None,
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

      specprefill evaluate squad.jsonl.xz --limit 100 --answers after.jsonl --against before.jsonl
    """
    check_options(questions, answers, against, settings, scorers)
    from specprefill_cli.lab.evaluation import changes, confirming, runner
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.record import json_line

    notes = Notes(quiet)
    before = None if against is None else changes.read_answers(against)
    after: list[Row] = []
    items = read_items(questions, limit, distractors, sample_seed)
    if distractors and not any(item.buried for item in items):
        raise UsageError(
            f"--distractors {distractors}: rows of {questions} name documents, and only a context can be put among "
            "others; leave it out"
        )
    cases = runner.configurations(["select"] if settings.confirm else modes, keeps, scorers)
    variants = [case.settings(settings) for case in cases]
    with notes.progress("loading the models"):
        session = open_target(settings, variants)
    with (
        answers.open("w", encoding="utf-8") if answers else nullcontext() as out,
        notes.progress(f"asking {len(items):,} questions") as update,
    ):

        def write(text: str, record: Row) -> None:
            update(f"asking {len(items):,} questions{text}")
            if out:
                out.write(json_line(record) + "\n")
                out.flush()

        def step(number: int, item: Item, case: Configuration, answer: Record) -> None:
            names = {"id": item.identifier, "configuration": case.mode, "keep": case.keep, "scorer": case.scorer}
            row = answer.to_json() | {"references": item.answers} | names
            after.append({name: row[name] for name in changes.COMPARED})
            write(f" in {len(cases)} configurations: {number + 1:,} done", row)

        if settings.confirm:
            outcomes, left_out, interrupted = confirming.measure(
                session, items, keeps, variants[0], lambda row: write(f": {row['item']}", row)
            )
            figures, columns = confirming.figures(outcomes), confirming.COLUMNS
        else:
            cases = list(dict.fromkeys(case.resolve(session) for case in cases))
            run = runner.run(session, items, cases, settings, step)
            figures, columns = runner.rows(run.results, run.kept), runner.COLUMNS
            left_out, interrupted = run.left_out, run.interrupted
    changed = {} if before is None else {"changes": changes.changes(before, after)}
    report(figures, columns, left_out, interrupted, notes, json, questions=str(questions), **changed)


def check_options(
    questions: Path, answers: Path | None, against: Path | None, settings: Settings, scorers: Sequence[str]
) -> None:
    """Raise UsageError for options that cannot be used together, before anything is loaded."""
    if answers is not None:
        if same_file(answers, questions):
            raise UsageError(f"--answers {answers}: this is the file of questions; give another name")
        check_can_write(answers, "--answers")
    if against is not None and settings.confirm:
        raise UsageError("--against compares answers without confirmation; leave out --confirm")
    if settings.confirm and len(scorers) > 1:
        raise UsageError("--confirm measures one scorer; give --scorer one name")


def open_target(settings: Settings, variants: Sequence[Settings]) -> Session:
    """Open the endpoint of the settings, or load the pair."""
    if not is_endpoint(settings.target):
        return open_for_all(settings, variants)
    from specprefill_cli.endpoint.session import open_endpoint

    return open_endpoint(settings)


def report(
    figures: Sequence[Row],
    columns: Columns,
    left_out: Sequence[LeftOut],
    interrupted: bool,
    notes: Notes,
    json: bool,
    **others: Any,
) -> None:
    """Print the figures, and what changed. Raises Exit if the run was interrupted or questions were left out."""
    from specprefill_cli.lab.evaluation import changes
    from specprefill_cli.lab.tables import show_rows

    if not figures:
        raise left_out[0][1] if left_out else KeyboardInterrupt
    for item, error in left_out:
        notes.warn(f"question {item.identifier} was left out: {error}")
    show_rows(figures, columns, json, left_out=[item.identifier for item, _ in left_out], **others)
    if "changes" in others and not json:
        show_rows(others["changes"], changes.COLUMNS, json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if left_out:
        raise typer.Exit(SOME_FAILED)
