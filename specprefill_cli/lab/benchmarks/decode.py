"""Decoding speed, plain and speculative, measured in turns in one run."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specprefill_cli.answering.answer import Answer
from specprefill_cli.answering.session import Session
from specprefill_cli.documents.collection import Collection
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks.prefill import prompt_of_length
from specprefill_cli.lab.evaluation.statistics import quartiles
from specprefill_cli.settings import OFF, Settings

QUOTES = 4
# Words of a passage that its quote is made to begin with.
OPENING_WORDS = 12
SHORT_QUESTIONS = (
    "Which fruit suffered most from the frost?",
    "In what year was the company founded?",
    "Who is the chair of the board?",
    "Where is the safety induction held?",
)


@dataclass(frozen=True)
class Query:
    """One question of a task.

    opening: what its answer is made to begin with; whole: it is decoded to the wanted length, stop tokens or not, so
    that every way of decoding has the same tokens to give
    """

    question: str
    opening: str = ""
    whole: bool = False


@dataclass(frozen=True)
class DecodeRow:
    """One task under one setting of `--speculate`: medians over rounds, seconds of decoding alone.

    speedup: tokens per second over those of plain decoding in the same round; low and high: its quartiles
    identical: every answer had the tokens of plain decoding; None where they were sampled
    acceptance_rate, accepted_length_mean, proposer, speculation: of the last round
    """

    task: str
    speculate: str
    answer_tokens: int
    tokens_per_second: float
    plain_tokens_per_second: float
    speedup: float
    speedup_low: float
    speedup_high: float
    identical: bool | None
    acceptance_rate: float | None
    accepted_length_mean: float | None
    proposer: str | None
    speculation: list[str]


def quote_task(collection: Collection) -> list[Query]:
    """Queries that make a pair repeat the document: the answer is begun with words of it, and goes on.

    Raises UsageError for a document without two sentences.
    """
    text = collection.text
    sentences = [match.end() for match in re.finditer(r"\. (?=\S)", text)]
    if not sentences:
        raise UsageError("--length: too short a prompt to quote a passage of it; use at least 300 tokens")
    starts = [sentences[len(sentences) * number // QUOTES] for number in range(QUOTES)]
    openings = [" ".join(text[start:].split()[:OPENING_WORDS]) for start in starts]
    return [Query(f'Repeat the passage that begins "{opening}".', f" {opening}", whole=True) for opening in openings]


def short_task(_collection: Collection) -> list[Query]:
    """Ordinary questions, whose answers end where the target ends them."""
    return [Query(question) for question in SHORT_QUESTIONS]


TASKS: dict[str, Callable[[Collection], list[Query]]] = {"quote": quote_task, "short": short_task}


@dataclass(frozen=True)
class Run:
    """All answers of a task in one round."""

    tokens: tuple[tuple[int, ...], ...]
    decoded: int
    seconds: float
    answers: tuple[Answer, ...]

    @property
    def speed(self) -> float:
        """Tokens after the first a second; 0 where no answer had a second token."""
        return self.decoded / self.seconds if self.seconds else 0.0


def check_tasks(tasks: Sequence[str]) -> None:
    """Raises UsageError for a task that is not registered."""
    for task in tasks:
        if task not in TASKS:
            raise UsageError(f"--tasks {task}: unknown; use some of {', '.join(TASKS)}")


def bench_decode(
    session: Session,
    length: int,
    tasks: Sequence[str],
    paces: Sequence[str | int],
    repeat: int,
    base: Settings,
    step: Callable[[str], None],
) -> list[DecodeRow]:
    """Measure plain decoding and every pace on every task `repeat` times, in turns, after one unmeasured round.

    length: prompt tokens; paces: values of `--speculate`, to each of which plain decoding is compared
    """
    collection = prompt_of_length(session, length, base)
    order: list[str | int] = [OFF, *paces]
    rows = []
    for task in tasks:
        queries = TASKS[task](collection)
        measured: dict[str | int, list[Run]] = {pace: [] for pace in order}
        for round_number in range(repeat + 1):
            # Whoever comes first after a pause has a cooler machine: the order turns round by round.
            for pace in order if round_number % 2 else reversed(order):
                step(f"{task}, --speculate {pace}, round {round_number} of {repeat}")
                result = run_task(session, collection, queries, replace(base, speculate=pace))
                if round_number:
                    measured[pace].append(result)
        rows += [decode_row(task, pace, measured[pace], measured[OFF], base.temperature == 0) for pace in paces]
    return rows


def run_task(session: Session, collection: Collection, queries: Sequence[Query], settings: Settings) -> Run:
    """Answer all queries, one after another."""
    tokens, answers, decoded, seconds = [], [], 0, 0.0
    for query in queries:
        stream = session.ask(collection, query.question, settings, opening=query.opening)
        if query.whole:
            stream.stop_tokens = frozenset()
        answers.append(stream.finished())
        tokens.append(tuple(stream.tokens))
        decoded += stream.speed.tokens
        seconds += stream.speed.seconds
    return Run(tuple(tokens), decoded, seconds, tuple(answers))


def decode_row(task: str, pace: str | int, runs: Sequence[Run], plain: Sequence[Run], greedy: bool) -> DecodeRow:
    """The figures of one pace, paired with plain decoding round by round."""
    ratios = [run.speed / other.speed if other.speed else 1.0 for run, other in zip(runs, plain, strict=True)]
    low, high = quartiles(ratios)
    last = runs[-1].answers
    return DecodeRow(
        task=task,
        speculate=str(pace),
        answer_tokens=sum(answer.generated_tokens for answer in last),
        tokens_per_second=statistics.median(run.speed for run in runs),
        plain_tokens_per_second=statistics.median(run.speed for run in plain),
        speedup=statistics.median(ratios),
        speedup_low=low,
        speedup_high=high,
        identical=all(run.tokens == other.tokens for run, other in zip(runs, plain, strict=True)) if greedy else None,
        acceptance_rate=mean([answer.acceptance_rate for answer in last]),
        accepted_length_mean=mean([answer.accepted_length_mean for answer in last]),
        proposer=", ".join(dict.fromkeys(answer.proposer for answer in last if answer.proposer)) or None,
        speculation=[answer.speculation.reason or answer.speculation.state for answer in last],
    )


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are there."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present else None
