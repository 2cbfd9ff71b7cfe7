"""What a dry run found, as tables, as one JSON object, and as a result on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Any

from rich.table import Column, Table

from specprefill_cli.documents.document import Collection
from specprefill_cli.record import PLANNED_MODE, SCHEMA, Cell, DryRun
from specprefill_cli.reporting.html import PageResult
from specprefill_cli.reporting.table import seconds

ESTIMATE_NOTE = (
    "estimates: counted operations and the overhead of a pass, not measurements of the target; seconds at the speed at "
    "which the draft ran here"
)


def plan_facts(run: DryRun) -> list[tuple[str, str]]:
    """Return labels and values; the speedup is that of this plan.

    What `auto` expected before scoring is shown only where it decides against this plan.
    """
    mode, reason = run.advice
    advice = mode if mode == PLANNED_MODE else f"{mode}; before scoring, {reason.removeprefix('auto: ')}"
    planned = run.estimates[0]
    ttft = f", TTFT {about_seconds(planned.ttft_seconds)}" if planned.ttft_seconds is not None else ""
    measured = [f"{cost.role} {cost.tokens:,} tokens" for cost in run.pass_costs if cost.measured]
    return [
        ("pair", f"{run.draft or 'no draft'} -> {run.target}{'' if run.loaded else ' (its weights were not loaded)'}"),
        ("prompt", f"{run.prompt_tokens:,} tokens"),
        ("would keep", f"{run.kept_tokens:,} tokens, ratio {run.kept_ratio:.3f}"),
        ("auto takes", advice),
        ("expected with this plan", f"{speedup_text(run, planned.speedup)}{ttft}"),
        *([("measured fixed cost of a pass", ", ".join(measured))] if measured else []),
    ]


def estimate_rows(run: DryRun) -> list[list[str]]:
    """Return a header and rows: this plan's keep ratio first, then others, then full prefill."""
    rows = [["keep", "tokens computed", "expected speedup", "TTFT"]]
    for number, estimate in enumerate(run.estimates):
        keep = f"auto, {estimate.kept_ratio:.2f}" if estimate.keep is None else f"{estimate.keep:g}"
        label = f"this plan: {keep}" if number == 0 else keep
        ttft = about_seconds(estimate.ttft_seconds)
        rows.append([label, f"{estimate.kept_tokens:,}", speedup_text(run, estimate.speedup), ttft])
    full = about_seconds(run.full_seconds) if run.full_fits else "does not fit"
    return [*rows, ["full", f"{run.prompt_tokens:,}", speedup_text(run, 1.0), full]]


def speedup_text(run: DryRun, speedup: float) -> str:
    """Write a speedup over full prefill; a dash where that cannot run."""
    return f"{speedup:.1f}x" if run.full_fits else "-"


def about_seconds(value: float | None) -> str:
    """Write an estimated duration."""
    return "-" if value is None else f"about {seconds(value)}"


def estimate_table(rows: Sequence[Sequence[str]]) -> Table:
    """Build a table from a header and rows."""
    table = Table(*(Column(name, justify="right") for name in rows[0]), box=None, padding=(0, 2, 0, 0))
    for row in rows[1:]:
        table.add_row(*row)
    return table


def plan_result(run: DryRun) -> PageResult:
    """Return a dry run as the page shows it."""
    return PageResult(
        mode=PLANNED_MODE,
        reason=f"dry run; {ESTIMATE_NOTE}",
        answer=None,
        facts=plan_facts(run),
        phases=run.phases,
        citations=(),
        warnings=run.warnings,
        cells=run.cells,
        estimates=estimate_rows(run),
    )


def plan_record(run: DryRun, collection: Collection, startup_seconds: float) -> dict[str, Any]:
    """Return a dry run as JSON values: times in seconds, spans as `ask --json` has them, one entry a chunk."""
    mode, reason = run.advice
    return {
        "schema": SCHEMA,
        "question": run.question,
        "mode": PLANNED_MODE,
        "auto": {"mode": mode, "reason": reason},
        "pair": {"draft": run.draft, "target": run.target},
        "prompt_tokens": run.prompt_tokens,
        "kept_tokens": run.kept_tokens,
        "kept_ratio": run.kept_ratio,
        "startup_seconds": startup_seconds,
        "phases": run.phases,
        "spans": [asdict(span) for span in run.spans],
        "chunks": chunk_records(run.document_start, run.cells, collection),
        "estimates": [asdict(estimate) for estimate in run.estimates],
        "full_ttft_seconds": run.full_seconds if run.full_fits else None,
        "pass_costs": [asdict(cost) for cost in run.pass_costs],
        "warnings": run.warnings,
    }


def chunk_records(first_token: int, cells: Sequence[Cell], collection: Collection) -> list[dict[str, Any]]:
    """Return chunks as JSON values; `first_token` is the document's first position in the prompt."""
    edges = accumulate((cell.tokens for cell in cells), initial=first_token)
    return [
        {
            "start": start,
            "end": end,
            "pages": collection.pages(cell.start, cell.end),
            "documents": [asdict(touched) for touched in collection.pages_by_document(cell.start, cell.end)],
            "fate": cell.fate.value,
            "importance": cell.importance,
        }
        for cell, (start, end) in zip(cells, pairwise(edges), strict=True)
    ]
