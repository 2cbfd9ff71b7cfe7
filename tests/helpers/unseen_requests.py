"""Requests without a part in the fit of what a text asks, in clients' shapes."""

import json
import lzma
from collections import Counter
from pathlib import Path

from specprefill_cli.serving.messages import Untouched, find_document

DATA = Path(__file__).parents[1] / "data"


def thinned(name, step=1):
    """Of a set's requests, for the kinds `place` and `whole`: how many messages are thinned, and how many there are."""
    with lzma.open(DATA / "requests-unseen.jsonl.xz", "rt", encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["set"] == name]
    shapes = [row["messages"] for row in rows if "shape" in row]
    counts, totals = Counter(), Counter()
    for number, row in enumerate(row for row in rows if "text" in row):
        text = (DATA / row["document"]).read_text(encoding="utf-8")
        for turn in range(0, 20, 5 * step):
            shape = shapes[(number + turn) % len(shapes)]
            filled = [
                message | {"content": message["content"].replace("{d}", text).replace("{q}", row["text"])}
                for message in shape
            ]
            totals[row["kind"]] += 1
            try:
                find_document({"model": "m", "messages": filled})
            except Untouched:
                continue
            counts[row["kind"]] += 1
    return counts, totals
