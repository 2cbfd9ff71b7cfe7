"""Needles in long documents: whether the pair finds the only sentence with the answer, how fast, and in how much memory."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks.peak_memory import PeakMemory
from specprefill_cli.lab.evaluation.metrics import contains_answer
from specprefill_cli.lab.evaluation.statistics import quartiles
from specprefill_cli.lab.tables import Columns, Row, duration, figure, memory, ttft
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.record import Record
from specprefill_cli.settings import Settings

OBJECTS = ("door code", "locker number", "pass number", "ticket number", "account number")
NAMES = ("Ashcombe", "Bellwater", "Coldbrook", "Deepdale", "Elmstead", "Farrow", "Greyling", "Holloway")
# Leading characters of the text that are used to estimate its characters per token.
SAMPLE = 200_000
# A slice may have more tokens than the text's average: the keep ratio uses only this share of the budget.
MARGIN = 0.9
# The reported time is for this number of tokens.
UNIT = 100_000
COLUMNS: Columns = {
    "prompt": lambda row: f"{row['prompt_tokens']:,} tokens",
    "right": lambda row: f"{row['right']} of {row['n']}",
    "kept": figure("kept_tokens", ",d"),
    "TTFT [quartiles]": ttft,
    "for 100,000 tokens": duration("unit_seconds"),
    "peak memory": memory("peak_memory_bytes"),
}


@dataclass(frozen=True)
class Needle:
    """A document with a single sentence that answers the question. value: the answer."""

    collection: Collection
    question: str
    value: str


def bench_needles(
    session: Session,
    text: str,
    lengths: Sequence[int],
    count: int,
    kept_tokens: int,
    settings: Settings,
    step: Callable[[str], None],
) -> list[Row]:
    """Ask `count` questions at every length, with needles at evenly spread depths in random slices of a text.

    Raises UsageError for a length greater than that of the text.
    """
    characters = len(text[:SAMPLE]) / len(encode_text(session.pair.target.tokenizer, text[:SAMPLE])[0])
    longest = int(max(lengths) * characters)
    if longest > len(text):
        raise UsageError(f"--lengths {max(lengths)}: --text has only about {int(len(text) / characters):,} tokens")
    session.warm_up(settings)
    rows = []
    for length in lengths:
        generator = random.Random(length)
        keep_settings = settings.varied(keep=min(1.0, MARGIN * kept_tokens / length))
        answers, watch = [], PeakMemory()
        for number in range(count):
            step(f"{length:,} tokens, {number} of {count}")
            needle = hide_needle(text, int(length * characters), (number + 0.5) / count, generator)
            answer = session.ask(needle.collection, needle.question, keep_settings).finished()
            answers.append((answer, contains_answer(answer.answer, [needle.value])))
        rows.append(row_of(length, answers) | {"peak_memory_bytes": watch.bytes()})
    return rows


def hide_needle(text: str, size: int, depth: float, generator: random.Random) -> Needle:
    """Cut a random slice of `size` characters, and insert a needle after the first sentence end from `depth` (0 to 1) on."""
    start = generator.randrange(len(text) - size + 1)
    prose = text[start : start + size]
    end = prose.find(". ", int(depth * size))
    insert_at = end + 2 if end >= 0 else size
    item, name, value = generator.choice(OBJECTS), generator.choice(NAMES), str(generator.randint(10_000, 99_999))
    document = f"{prose[:insert_at]}The {item} for {name} is {value}. {prose[insert_at:]}"
    return Needle(
        collection=Collection((one_page_document("needle", document),)),
        question=f"What is the {item} for {name}?",
        value=value,
    )


def row_of(length: int, answers: Sequence[tuple[Record, bool]]) -> Row:
    """The figures of the answers at a length. answers: each with whether it contains the value.

    Times are medians with quartiles; prompt_tokens is a median; kept_tokens is a maximum
    unit_seconds: time to first token per 100,000 prompt tokens
    """
    records = [answer for answer, _ in answers]
    low, median, high = quartiles([answer.ttft_seconds for answer in records])
    return {
        "length": length,
        "n": len(records),
        "right": sum(right for _, right in answers),
        "prompt_tokens": int(statistics.median(answer.prompt_tokens for answer in records)),
        "kept_tokens": max(answer.kept_tokens for answer in records),
        "ttft_seconds": median,
        "ttft_low": low,
        "ttft_high": high,
        "unit_seconds": statistics.median(UNIT * answer.ttft_seconds / answer.prompt_tokens for answer in records),
    }
