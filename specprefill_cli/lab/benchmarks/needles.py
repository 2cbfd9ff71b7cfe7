"""Tasks in long documents: whether the pair finds what is hidden there, how fast, and in how much memory."""

import random
import statistics
from collections.abc import Callable, Sequence

from specprefill_cli.answering.session import Session
from specprefill_cli.errors import UsageError
from specprefill_cli.lab.benchmarks.hidden import TASKS
from specprefill_cli.lab.benchmarks.peak_memory import PeakMemory
from specprefill_cli.lab.evaluation.metrics import contains_answer
from specprefill_cli.lab.evaluation.statistics import quartiles
from specprefill_cli.lab.tables import TTFT_KEYS, Columns, Row, duration, figure, memory, ttft
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.record import Record
from specprefill_cli.settings import Settings

# Leading characters of the text that are used to estimate its characters per token.
SAMPLE = 200_000
# A slice may have more tokens than the text's average: the keep ratio uses only this share of the budget.
MARGIN = 0.9
# The reported time is for this number of tokens.
UNIT = 100_000
COLUMNS: Columns = {
    "prompt": lambda row: f"{row['prompt_tokens']:,} tokens",
    "right": lambda row: f"{row['right']} of {row['n']}",
    "values found, %": figure("found", ".0f"),
    "kept": figure("kept_tokens", ",d"),
    "TTFT [quartiles]": ttft,
    "for 100,000 tokens": duration("unit_seconds"),
    "peak memory": memory("peak_memory_bytes"),
}


def bench_needles(
    session: Session,
    task: str,
    text: str,
    lengths: Sequence[int],
    count: int,
    kept_tokens: int,
    settings: Settings,
    step: Callable[[str], None],
) -> list[Row]:
    """Ask `count` questions of a task (of `TASKS`) at every length, hidden at evenly spread depths in random slices of a text.

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
            hidden = TASKS[task](text, int(length * characters), (number + 0.5) / count, generator)
            answer = session.ask(hidden.collection, hidden.question, keep_settings).finished()
            answers.append((answer, [contains_answer(answer.answer, [value]) for value in hidden.values]))
        rows.append(row_of(length, answers) | {"peak_memory_bytes": watch.bytes()})
    return rows


def row_of(length: int, answers: Sequence[tuple[Record, Sequence[bool]]]) -> Row:
    """The figures of the answers at a length. answers: each with whether it contains each value.

    right: answers with all values; found: percentage of the values

    Times are medians with quartiles; prompt_tokens is a median; kept_tokens is a maximum
    unit_seconds: time to first token per 100,000 prompt tokens
    """
    records = [answer for answer, _ in answers]
    return {
        "length": length,
        "n": len(records),
        "right": sum(all(found) for _, found in answers),
        "found": 100 * statistics.fmean(statistics.fmean(found) for _, found in answers),
        "prompt_tokens": int(statistics.median(answer.prompt_tokens for answer in records)),
        "kept_tokens": max(answer.kept_tokens for answer in records),
        **dict(zip(TTFT_KEYS, quartiles([answer.ttft_seconds for answer in records]), strict=True)),
        "unit_seconds": statistics.median(UNIT * answer.ttft_seconds / answer.prompt_tokens for answer in records),
    }
