"""Modes side by side: for people as a table with a column for each, for programs as rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from specprefill_cli.prefill.fates import Fate
from specprefill_cli.reporting.jsonl import SCHEMA, answer_record
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import PHASE_WORDS, page_text, seconds, several_documents

if TYPE_CHECKING:
    from specprefill_cli.answering.comparison import Compared

NOTHING = "-"


def comparison_table(compared: Sequence[Compared]) -> Table:
    """A row for each figure, a column for each mode; rows that no mode has are left out."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    for one in compared:
        table.add_column(plain(one.asked), overflow="fold", ratio=1)
    for label, cell in rows(compared):
        cells = [cell(one) for one in compared]
        if any(text != NOTHING for text in cells):
            table.add_row(label, *map(plain, cells))
    return table


def rows(compared: Sequence[Compared]) -> list[tuple[str, Callable[[Compared], str]]]:
    """Labels, and what each mode has to say there."""
    phases = list(compared[0].answer.phases) if compared else []
    return [
        ("answer", lambda one: one.answer.answer or "(nothing)"),
        ("mode", lambda one: f"{one.answer.mode}  ({one.answer.reason})" if one.answer.reason else NOTHING),
        ("TTFT", lambda one: seconds(one.answer.ttft_seconds)),
        *((f"  {PHASE_WORDS.get(name, name)}", phase_cell(name)) for name in phases),
        ("reused", lambda one: ", ".join(one.answer.reused) or NOTHING),
        ("speedup", lambda one: figure(one.speedup, "{:.2f}x")),
        (
            "kept",
            lambda one: f"{one.answer.kept_tokens:,} of {one.answer.prompt_tokens:,}, {one.answer.kept_ratio:.3f}",
        ),
        *((fate.value, spans_cell(fate)) for fate in Fate),
        ("first-token KL", lambda one: figure(one.first_token_kl, "{:.4f} nats")),
        ("agreement", lambda one: figure(one.agreement, "{:.2f}")),
        ("decode", lambda one: figure(one.answer.tokens_per_second, "{:,.0f} tokens/s")),
        ("acceptance", lambda one: figure(one.answer.acceptance_rate, "{:.2f}")),
        ("warning", lambda one: "; ".join(one.answer.warnings) or NOTHING),
    ]


def figure(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)


def phase_cell(name: str) -> Callable[[Compared], str]:
    def cell(one: Compared) -> str:
        value = one.answer.phases[name]
        return seconds(value) if value > 0 else NOTHING

    return cell


def spans_cell(fate: Fate) -> Callable[[Compared], str]:
    def cell(one: Compared) -> str:
        chosen = [span for span in one.answer.spans if span.fate is fate]
        if not chosen:
            return NOTHING
        tokens = sum(span.end - span.start for span in chosen)
        pages = page_text(chosen, several_documents(one.answer))
        return f"{len(chosen)} span{'s' if len(chosen) > 1 else ''}, {tokens:,} tokens ({pages})"

    return cell


def sources_table(compared: Sequence[Compared]) -> Table:
    """Where each mode's answer stands in the documents."""
    table = Table("mode", "source", box=None, padding=(0, 2, 0, 0))
    for one in compared:
        for citation in one.answer.citations:
            text = " ".join(citation.text.split())
            table.add_row(plain(one.asked), plain(f"{citation.document}, page {citation.page}: {text}"))
    return table


def comparison_record(question: str, compared: Sequence[Compared]) -> dict[str, Any]:
    """The comparison for programs: rows as `ask --json` has them, with their differences from `full`."""
    return {
        "schema": SCHEMA,
        "question": question,
        "rows": [
            {
                **answer_record(one.answer),
                "asked": one.asked,
                "speedup": one.speedup,
                "first_token_kl": one.first_token_kl,
                "agreement": one.agreement,
            }
            for one in compared
        ],
    }
