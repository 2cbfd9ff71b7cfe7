"""Machine output: one JSON object a line."""

from __future__ import annotations

import json
from typing import Any


def line(record: dict[str, Any]) -> str:
    """Write one line of JSON in ASCII: readable in any locale, and no control character reaches a terminal."""
    return json.dumps(record, allow_nan=False)
