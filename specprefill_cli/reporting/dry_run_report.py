"""What a dry run found: for people as tables, for programs as one object, for the page as a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from specprefill_cli.answering.cells import Cell, document_cells
from specprefill_cli.answering.dry_run import PLANNED_MODE, DryRun, Estimate
from specprefill_cli.documents.collection import Collection
from specprefill_cli.reporting.html import PageResult
from specprefill_cli.reporting.jsonl import SCHEMA
from specprefill_cli.reporting.safe import plain
from specprefill_cli.reporting.table import seconds

ESTIMATE_NOTE = (
    "estimates: counted operations and the overhead of a pass, not measurements of the target; seconds at the speed at "
    "which the draft ran here"
)


def plan_cells(run: DryRun, collection: Collection, chunk_size: int) -> list[Cell]:
    return document_cells(collection, run.offsets, run.plan, run.importance, chunk_size, run.neighbours)


def plan_facts(run: DryRun) -> list[tuple[str, str]]:
    """Labels and values of a dry run, in words."""
    return [
        ("pair", f"{run.draft or 'no draft'} -> {run.target}{'' if run.loaded else ' (its weights were not loaded)'}"),
        ("prompt", f"{run.plan.prompt_tokens:,} tokens"),
        ("would keep", f"{run.plan.kept_tokens:,} tokens, ratio {run.plan.kept_ratio:.3f}"),
        ("auto takes", f"{run.advice[0]}: {run.advice[1].removeprefix('auto: ')}"),
    ]


def plan_table(run: DryRun) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in plan_facts(run):
        table.add_row(label, plain(value))
    for warning in run.warnings:
        table.add_row("warning", plain(warning, style="yellow"))
    return table


def estimate_rows(run: DryRun) -> list[list[str]]:
    """Header and rows: the planned ratio first, then others, then full prefill."""
    rows = [["keep", "tokens computed", "speedup", "TTFT"]]
    for number, one in enumerate(run.estimates):
        keep = f"planned: {keep_word(one)}" if number == 0 else keep_word(one)
        rows.append([keep, f"{one.kept_tokens:,}", f"{one.speedup:.1f}x", seconds_word(one.ttft_seconds)])
    return [*rows, ["full", f"{run.plan.prompt_tokens:,}", "1.0x", seconds_word(run.full_seconds)]]


def keep_word(one: Estimate) -> str:
    return f"auto, {one.kept_ratio:.2f}" if one.keep is None else f"{one.keep:g}"


def seconds_word(value: float | None) -> str:
    return "-" if value is None else f"about {seconds(value)}"


def estimate_table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in rows[0]:
        table.add_column(head, justify="right")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def plan_result(run: DryRun, cells: Sequence[Cell]) -> PageResult:
    """A dry run as the page shows it."""
    reason = f"dry run; {ESTIMATE_NOTE}"
    return PageResult(
        PLANNED_MODE, reason, None, plan_facts(run), run.phases, (), run.warnings, cells, estimate_rows(run)
    )


def plan_record(run: DryRun, cells: Sequence[Cell], collection: Collection, startup_seconds: float) -> dict[str, Any]:
    """A dry run for programs; times in seconds, spans as `ask --json` has them, one entry a chunk."""
    position, chunks = run.plan.document[0], []
    for cell in cells:
        end = position + cell.tokens
        chunks.append(
            {
                "start": position,
                "end": end,
                "pages": collection.pages(cell.start, cell.end),
                "documents": [asdict(one) for one in collection.pages_by_document(cell.start, cell.end)],
                "fate": cell.fate.value,
                "importance": cell.importance,
            }
        )
        position = end
    mode, reason = run.advice
    return {
        "schema": SCHEMA,
        "question": run.question,
        "mode": PLANNED_MODE,
        "auto": {"mode": mode, "reason": reason},
        "pair": {"draft": run.draft, "target": run.target},
        "prompt_tokens": run.plan.prompt_tokens,
        "kept_tokens": run.plan.kept_tokens,
        "kept_ratio": run.plan.kept_ratio,
        "startup_seconds": startup_seconds,
        "phases": run.phases,
        "spans": [asdict(span) | {"fate": span.fate.value} for span in run.spans],
        "chunks": chunks,
        "estimates": [asdict(one) for one in run.estimates],
        "full_ttft_seconds": run.full_seconds,
        "warnings": run.warnings,
    }
