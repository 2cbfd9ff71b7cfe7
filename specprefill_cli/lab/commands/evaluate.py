"""`specprefill evaluate`: quality and speed on a question set."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from specprefill_cli.lab.evaluation.runner import Configuration, Run
    from specprefill_cli.lab.tables import Row
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
    check_files(questions, answers, against, settings)
    from specprefill_cli.lab.evaluation import changes, confirming, runner
    from specprefill_cli.lab.evaluation.datasets import read_items
    from specprefill_cli.lab.tables import show_rows
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
    cases = runner.configurations(modes, keeps, scorers)
    variants = [case.settings(settings) for case in cases]
    with notes.progress("loading the models"):
        if is_endpoint(settings.target):
            from specprefill_cli.endpoint.session import open_endpoint

            session: Session = open_endpoint(settings)
        else:
            session = open_for_all(settings, variants)
    with (
        answers.open("w", encoding="utf-8") if answers else nullcontext() as out,
        notes.progress(f"asking {len(items):,} questions") as update,
    ):

        def write(text: str, record: Row) -> None:
            update(f"asking {len(items):,} questions{text}")
            if out:
                out.write(json_line(record) + "\n")
                out.flush()

        if settings.confirm:
            outcomes = confirming.measure(session, items, keeps, settings, lambda row: write(f": {row['item']}", row))
            show_rows(confirming.figures(outcomes), confirming.COLUMNS, json)
            return
        cases = [case.resolve(session) for case in cases]

        def step(number: int, item: Item, case: Configuration, answer: Record) -> None:
            names = {"id": item.identifier, "configuration": case.mode, "keep": case.keep, "scorer": case.scorer}
            row = answer.to_json() | {"references": item.answers} | names
            after.append({name: row[name] for name in changes.COMPARED})
            write(f" in {len(cases)} configurations: {number:,} done", row)

        outcome = runner.run(session, items, cases, settings, step)
    report(questions, outcome, json, notes, None if before is None else changes.changes(before, after))


def check_files(questions: Path, answers: Path | None, against: Path | None, settings: Settings) -> None:
    """Raise UsageError for files that cannot be used together, before anything is loaded."""
    if answers is not None:
        if same_file(answers, questions):
            raise UsageError(f"--answers {answers}: this is the file of questions; give another name")
        check_can_write(answers, "--answers")
    if against is not None and settings.confirm:
        raise UsageError("--against compares answers without confirmation; leave out --confirm")


def report(questions: Path, run: Run, json: bool, notes: Notes, changed: list[Row] | None) -> None:
    """Print the figures, and what changed. Raises Exit if the run was interrupted or questions were left out."""
    from specprefill_cli.lab.evaluation import changes
    from specprefill_cli.lab.evaluation.runner import COLUMNS, rows
    from specprefill_cli.lab.tables import show_rows

    if not any(run.results.values()):
        run.complete()
    for item, error in run.left_out:
        notes.warn(f"question {item.identifier} was left out: {error}")
    left_out = [item.identifier for item, _ in run.left_out]
    others = {} if changed is None else {"changes": changed}
    show_rows(rows(run.results, run.kept), COLUMNS, json, questions=str(questions), left_out=left_out, **others)
    if changed is not None and not json:
        show_rows(changed, changes.COLUMNS, json)
    if run.interrupted:
        raise typer.Exit(INTERRUPTED)
    if left_out:
        raise typer.Exit(SOME_FAILED)
