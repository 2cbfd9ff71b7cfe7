"""Machine output: one JSON object a line, `schema` 1."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specprefill_cli.answering.answer import Answer

SCHEMA = 1


def answer_record(answer: Answer) -> dict[str, Any]:
    """The binding keys of an answer; absent values are None."""
    return {
        "schema": SCHEMA,
        "id": answer.id or None,
        "question": answer.question,
        "answer": answer.answer,
        "mode": answer.mode,
        "reason": answer.reason,
        "pair": {"draft": answer.draft, "target": answer.target},
        "prompt_tokens": answer.prompt_tokens,
        "kept_tokens": answer.kept_tokens,
        "kept_ratio": answer.kept_ratio,
        "ttft_seconds": answer.ttft_seconds,
        "startup_seconds": answer.startup_seconds,
        "phases": answer.phases,
        "spans": [asdict(span) | {"fate": span.fate.value} for span in answer.spans],
        "generated_tokens": answer.generated_tokens,
        "tokens_per_second": answer.tokens_per_second,
        "acceptance_rate": answer.acceptance_rate,
        "accepted_length_mean": answer.accepted_length_mean,
        "accepted_histogram": answer.accepted_histogram,
        "proposer": answer.proposer,
        "speculation": asdict(answer.speculation),
        "peak_memory_bytes": answer.peak_memory_bytes,
        "citations": [asdict(citation) for citation in answer.citations],
        "reused": answer.reused,
        "scorer": answer.scorer,
        "draft_window": answer.draft_window,
        "warnings": answer.warnings,
        "stopped": answer.stopped,
    }


def line(record: dict[str, Any]) -> str:
    """One line of JSON in ASCII: readable in any locale, and no control character reaches a terminal."""
    return json.dumps(record, allow_nan=False)
