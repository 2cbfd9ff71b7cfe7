"""Needles in long documents: whether the one sentence that answers is found, how soon, and in how much memory."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.evaluation.metrics import contains_answer
from specprefill_cli.lab.evaluation.statistics import quartiles
from specprefill_cli.lab.plots import Series, line_plot
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.record import Record
from specprefill_cli.settings import Settings

THINGS = ("door code", "locker number", "pass number", "ticket number", "account number")
NAMES = ("Ashcombe", "Bellwater", "Coldbrook", "Deepdale", "Elmstead", "Farrow", "Greyling", "Holloway")
# Characters from which the text's characters for each token are counted.
SAMPLE = 200_000
# A slice may have more tokens than the text has on average: the keep ratio leaves so much of the budget for that.
MARGIN = 0.9
# Tokens that the time is given for.
UNIT = 100_000


@dataclass(frozen=True)
class Needle:
    """A document with one sentence that answers the question."""

    collection: Collection
    question: str
    value: str


@dataclass(frozen=True, kw_only=True)
class NeedleRow:
    """Figures of the needles of one length; times are medians, ttft_low and ttft_high quartiles.

    right: answers that contain the value; prompt_tokens: median; kept_tokens, peak_memory_bytes: the largest
    unit_seconds: the time to first token for 100,000 tokens
    """

    length: int
    n: int
    right: int
    prompt_tokens: int
    kept_tokens: int
    ttft_seconds: float
    ttft_low: float
    ttft_high: float
    unit_seconds: float
    peak_memory_bytes: int | None


def bench_needles(
    session: Session,
    text: str,
    lengths: Sequence[int],
    count: int,
    kept_tokens: int,
    settings: Settings,
    step: Callable[[str], None],
) -> list[NeedleRow]:
    """Ask `count` questions at every length, at depths spread evenly over slices of a text at random places.

    Raises UsageError for a length that the text does not have.
    """
    characters = len(text[:SAMPLE]) / len(encode_text(session.pair.target.tokenizer, text[:SAMPLE])[0])
    longest = int(max(lengths) * characters)
    if longest > len(text):
        raise UsageError(f"--lengths {max(lengths)}: --text has only about {int(len(text) / characters):,} tokens")
    session.warm_up(settings)
    table = []
    for length in lengths:
        generator = random.Random(length)
        keep_settings = settings.varied(keep=min(1.0, MARGIN * kept_tokens / length))
        answers = []
        for number in range(count):
            step(f"{length:,} tokens, {number} of {count}")
            needle = hide_needle(text, int(length * characters), (number + 0.5) / count, generator)
            answer = session.ask(needle.collection, needle.question, keep_settings).finished()
            answers.append((answer, contains_answer(answer.answer, [needle.value])))
        table.append(needle_row(length, answers))
    return table


def hide_needle(text: str, size: int, depth: float, generator: random.Random) -> Needle:
    """A slice of `size` characters with a needle behind the sentence that ends at a share `depth` of it."""
    start = generator.randrange(len(text) - size + 1)
    prose = text[start : start + size]
    end = prose.find(". ", int(depth * size))
    place = end + 2 if end >= 0 else size
    thing, name, value = generator.choice(THINGS), generator.choice(NAMES), str(generator.randint(10_000, 99_999))
    document = f"{prose[:place]}The {thing} for {name} is {value}. {prose[place:]}"
    return Needle(
        collection=Collection((one_page_document("needle", document, "text/plain"),)),
        question=f"What is the {thing} for {name}?",
        value=value,
    )


def needle_row(length: int, answers: Sequence[tuple[Record, bool]]) -> NeedleRow:
    """The figures of the answers at one length, each with whether it is right."""
    times = [answer.ttft_seconds for answer, _ in answers]
    low, high = quartiles(times)
    peaks = [answer.peak_memory_bytes for answer, _ in answers if answer.peak_memory_bytes is not None]
    return NeedleRow(
        length=length,
        n=len(answers),
        right=sum(right for _, right in answers),
        prompt_tokens=int(statistics.median(answer.prompt_tokens for answer, _ in answers)),
        kept_tokens=max(answer.kept_tokens for answer, _ in answers),
        ttft_seconds=statistics.median(times),
        ttft_low=low,
        ttft_high=high,
        unit_seconds=statistics.median(UNIT * answer.ttft_seconds / answer.prompt_tokens for answer, _ in answers),
        peak_memory_bytes=max(peaks, default=None),
    )


def needle_plot(rows: Sequence[NeedleRow]) -> str:
    """Seconds to the first token for 100,000 tokens against the prompt's length, as SVG."""
    points = [(float(row.prompt_tokens), row.unit_seconds) for row in sorted(rows, key=lambda row: row.length)]
    return line_plot(
        "Time to first token of long documents",
        "prompt length in tokens (logarithmic)",
        f"seconds for {UNIT:,} tokens",
        [Series("select", points)],
        x_log=True,
    )
