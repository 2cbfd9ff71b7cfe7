"""What changed since an earlier run over the same questions: answers, times and memory."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.tables import Columns, Row, figure, keep_text

COLUMNS: Columns = {
    "mode": figure("mode"),
    "keep": keep_text,
    "scorer": figure("scorer"),
    "n": figure("n"),
    "answers changed": lambda row: str(len(row["changed"])),
    "TTFT, x before": figure("ttft_seconds", ".2f"),
    "tokens/s": figure("tokens_per_second", ".2f"),
    "peak memory": figure("peak_memory_bytes", ".2f"),
}
RATIOS = ("ttft_seconds", "tokens_per_second", "peak_memory_bytes")
# The keys of an answer's row that are compared.
COMPARED = ("configuration", "keep", "scorer", "id", "answer", *RATIOS)


def read_answers(path: Path) -> list[Row]:
    """The rows that `evaluate --answers` wrote. Raises SpecprefillError for another file."""
    try:
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [{name: row[name] for name in COMPARED} for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecprefillError(f"--against {path}: not a file of answers; give what --answers wrote") from error


def by_question(row: Row) -> tuple:
    """What an answer must share with an earlier one: configuration and question."""
    return row["configuration"], row["keep"], row["scorer"], row["id"]


def changes(before: Iterable[Row], after: Iterable[Row]) -> list[Row]:
    """A row for each configuration of both runs, over the questions that both have answered.

    changed: ids of the questions whose answers differ; others: medians of the ratios to the earlier run, None if unknown
    """
    earlier, pairs = {by_question(row): row for row in before}, defaultdict(list)
    for row in after:
        if by_question(row) in earlier:
            pairs[by_question(row)[:3]].append((earlier[by_question(row)], row))
    return [row_of(mode, keep, scorer, answers) for (mode, keep, scorer), answers in pairs.items()]


def row_of(mode: str, keep: float | None, scorer: str | None, pairs: Sequence[tuple[Row, Row]]) -> Row:
    """The figures of a configuration. pairs: the answers before and now."""
    known = {name: [now[name] / old[name] for old, now in pairs if now[name] and old[name]] for name in RATIOS}
    return {
        "mode": mode,
        "keep": keep,
        "scorer": scorer,
        "n": len(pairs),
        "changed": [now["id"] for old, now in pairs if now["answer"] != old["answer"]],
        **{name: statistics.median(ratios) if ratios else None for name, ratios in known.items()},
    }
