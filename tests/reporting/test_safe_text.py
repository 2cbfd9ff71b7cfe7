"""Hostile text is shown, never obeyed; machine output is one line of JSON."""

import json

from specprefill_cli.documents.document import DocumentPages
from specprefill_cli.record import Citation, Fate, SpanRecord, json_line
from specprefill_cli.reporting.table import answer_table
from specprefill_cli.reporting.text import printable
from tests.helpers.answers import make_answer
from tests.helpers.output import text_of

HOSTILE = "\x1b[2J[bold red]x[/] \u202egnp.exe\x07 \x9b31m"


def hostile_answer():
    documents = [DocumentPages(HOSTILE, [1, 2]), DocumentPages("b", [1])]
    return make_answer(
        question=HOSTILE,
        answer=HOSTILE,
        reason=HOSTILE,
        spans=[
            SpanRecord(start=0, end=32, fate=Fate.RECOMPUTE, pages=[1, 2], risk=None, documents=documents),
            SpanRecord(start=32, end=92, fate=Fate.DROP, pages=[], risk=0.5),
        ],
        peak_memory_bytes=2**21,
        warnings=[HOSTILE],
        citations=[Citation(HOSTILE, 1, 0, 5, HOSTILE)],
    )


def test_control_characters_become_visible_codes():
    assert printable("a\x1b[0m\u202eb\n\tc") == "a\\u001b[0m\\u202eb\n\tc"
    assert printable("a\u2028b\u2066\ufeff\U000e0041\ud800") == "a\\u2028b\\u2066\\ufeff\\U000e0041\\ud800"
    # Joiners and Arabic signs are spelling.
    assert printable("\u0645\u06cc\u200c\u062e \u0600") == "\u0645\u06cc\u200c\u062e \u0600"
    assert printable("naïve 東京 \N{GRINNING FACE}") == "naïve 東京 \N{GRINNING FACE}"


def test_the_table_shows_hostile_text_as_text():
    text = text_of(answer_table(hostile_answer()))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold red]x[/]" in text
    for part in (
        "400 ms",
        "draft prefill   300 ms",
        "1 span, 32 tokens (\\x1b[2J[bold red]x[/] \\u202egnp.exe\\x07 \\x9b31m p. 1-2; b p. 1)",
        "ratio 0.400, of the documents 0.348",
        "2 MiB",
    ):
        assert part in text


def test_the_record_is_one_line_that_gives_everything_back():
    assert make_answer(spans=[]).to_json()["document_kept_ratio"] is None
    text = json_line(hostile_answer().to_json())
    assert "\n" not in text
    assert "\x1b" not in text
    record = json.loads(text)
    assert record["answer"] == HOSTILE
    documents = [{"document": HOSTILE, "pages": [1, 2]}, {"document": "b", "pages": [1]}]
    span = {"start": 0, "end": 32, "fate": "recompute", "pages": [1, 2], "risk": None, "documents": documents}
    assert record["spans"][0] == span
