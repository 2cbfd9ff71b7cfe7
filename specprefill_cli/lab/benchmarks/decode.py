"""Decoding speed: speculative against plain decoding, in alternating rounds."""

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks.prefill import prompt_of_length
from specprefill_cli.lab.evaluation.statistics import mean_or_none, quartiles
from specprefill_cli.lab.tables import Columns, Row, figure
from specprefill_cli.record import Record
from specprefill_cli.settings import OFF, Settings

QUOTES = 4
# Words of a passage that its quotation must begin with.
OPENING_WORDS = 12
SHORT_QUESTIONS = (
    "Which fruit suffered most from the frost?",
    "In what year was the company founded?",
    "Who is the chair of the board?",
    "Where is the safety induction held?",
)
COLUMNS: Columns = {
    "task": figure("task"),
    "speculate": figure("speculate"),
    "tokens": figure("answer_tokens"),
    "plain": lambda row: f"{row['plain_tokens_per_second']:,.0f}/s",
    "speculative": lambda row: f"{row['tokens_per_second']:,.0f}/s",
    "x plain [quartiles]": figure("speedup", ".2f", interval=True),
    "accepted": figure("acceptance_rate", ".2f"),
    "a round": figure("accepted_length_mean", ".1f"),
    "proposer": figure("proposer"),
    "tokens the same": lambda row: {None: "", True: "yes", False: "no"}[row["identical"]],
}


@dataclass(frozen=True)
class Query:
    """A question of a task; opening: text that the answer has to begin with.

    ignore_stop_tokens: decode up to the length limit, so that each kind of decoding produces the same number of tokens
    """

    question: str
    opening: str = ""
    ignore_stop_tokens: bool = False


@dataclass(frozen=True)
class Round:
    """All answers of a task with their token ids, and the decoding speed after the first tokens."""

    answers: Sequence[Record]
    token_ids: Sequence[Sequence[int]]
    tokens_per_second: float


def quote_task(collection: Collection) -> list[Query]:
    """Queries that make the pair repeat the document: each answer begins with words of the document.

    Raises UsageError for a document with fewer than two sentences.
    """
    text = collection.text
    sentences = [match.end() for match in re.finditer(r"\. (?=\S)", text)]
    if not sentences:
        raise UsageError("--length: too short to quote a passage of the prompt; use at least 300 tokens")
    starts = [sentences[len(sentences) * number // QUOTES] for number in range(QUOTES)]
    openings = [" ".join(text[start:].split()[:OPENING_WORDS]) for start in starts]
    return [Query(f'Repeat the passage that begins "{opening}".', f" {opening}", True) for opening in openings]


TASKS: dict[str, Callable[[Collection], list[Query]]] = {
    "quote": quote_task,
    # Ordinary questions: the target ends the answers.
    "short": lambda _collection: [Query(question) for question in SHORT_QUESTIONS],
}


def check_tasks(tasks: Sequence[str]) -> None:
    """Raise UsageError for an unknown task."""
    for task in tasks:
        if task not in TASKS:
            raise UsageError(f"--tasks {task}: unknown; use some of {', '.join(TASKS)}")


def bench_decode(
    session: Session,
    length: int,
    tasks: Sequence[str],
    speculates: Sequence[str | int],
    repeat: int,
    base: Settings,
    step: Callable[[str], None],
) -> list[Row]:
    """Measure plain decoding and every value of `--speculate` in turn, `repeat` times, after a warm-up round.

    length: prompt tokens
    """
    collection = prompt_of_length(session, length, base)
    order: list[str | int] = [*dict.fromkeys((OFF, *speculates))]
    rows = []
    for task in tasks:
        queries = TASKS[task](collection)
        rounds: dict[str | int, list[Round]] = {speculate: [] for speculate in order}
        for number in range(repeat + 1):
            # Alternate the order: the first run after a pause finds a cooler machine.
            for speculate in order if number % 2 else reversed(order):
                step(f"{task}, --speculate {speculate}, round {number} of {repeat}")
                round_result = run_task(session, collection, queries, base.varied(speculate=speculate))
                if number:
                    rounds[speculate].append(round_result)
        greedy = base.temperature == 0
        rows += [
            row_of(task, speculate, rounds[speculate], rounds[OFF], greedy) for speculate in dict.fromkeys(speculates)
        ]
    return rows


def run_task(session: Session, collection: Collection, queries: Sequence[Query], settings: Settings) -> Round:
    """Answer all queries in turn; a speed of 0 means that no answer has a second token."""
    answers, token_ids, logs = [], [], []
    for query in queries:
        stream = session.ask(collection, query.question, settings, opening=query.opening)
        if query.ignore_stop_tokens:
            stream.stop_tokens = frozenset()
        answers.append(stream.finished())
        token_ids.append(stream.tokens)
        logs.append(stream.log)
    seconds = sum(speed.seconds for speed in logs)
    return Round(answers, token_ids, sum(speed.tokens for speed in logs) / seconds if seconds else 0.0)


def row_of(task: str, speculate: str | int, rounds: Sequence[Round], plain: Sequence[Round], greedy: bool) -> Row:
    """The figures of decoding for a value of `--speculate`, paired with plain decoding round by round.

    speedup: over plain decoding in the same round: median and quartiles
    identical: whether all answers have the tokens of plain decoding; None if they were sampled
    acceptance_rate, accepted_length_mean, proposer, speculation: of the last round
    """
    pairs = list(zip(rounds, plain, strict=True))
    speeds = [(ours.tokens_per_second, base.tokens_per_second) for ours, base in pairs]
    speedups = quartiles([ours / base if base else 1.0 for ours, base in speeds])
    last_answers = rounds[-1].answers
    return {
        "task": task,
        "speculate": str(speculate),
        "answer_tokens": sum(answer.generated_tokens for answer in last_answers),
        "tokens_per_second": statistics.median(task_round.tokens_per_second for task_round in rounds),
        "plain_tokens_per_second": statistics.median(task_round.tokens_per_second for task_round in plain),
        **dict(zip(("speedup_low", "speedup", "speedup_high"), speedups, strict=True)),
        "identical": all(ours.token_ids == base.token_ids for ours, base in pairs) if greedy else None,
        "acceptance_rate": mean_or_none(answer.acceptance_rate for answer in last_answers),
        "accepted_length_mean": mean_or_none(answer.accepted_length_mean for answer in last_answers),
        "proposer": ", ".join(dict.fromkeys(answer.proposer for answer in last_answers if answer.proposer)) or None,
        "speculation": [answer.speculation.reason or answer.speculation.state for answer in last_answers],
    }
