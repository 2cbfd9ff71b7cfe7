"""Machine output: one JSON object a line, `schema` 1."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specprefill_cli.answering.answer import Answer

SCHEMA = 1


def answer_record(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON values: its fields by name, the pair's models together; absent values are None."""
    record = asdict(answer)
    pair = {"draft": record.pop("draft"), "target": record.pop("target")}
    record |= {"id": answer.id or None, "pair": pair, "document_kept_ratio": answer.document_kept_ratio}
    return {"schema": SCHEMA, **record}


def line(record: dict[str, Any]) -> str:
    """Write one line of JSON in ASCII: readable in any locale, and no control character reaches a terminal."""
    return json.dumps(record, allow_nan=False)
