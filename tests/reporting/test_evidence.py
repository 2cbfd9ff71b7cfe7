from dataclasses import replace
from io import StringIO

from specprefill_cli.cli.console import console
from specprefill_cli.record import Passage
from specprefill_cli.reporting.table import plain_table
from specprefill_cli.reporting.text import confidence_lines, evidence_view
from tests.helpers.answers import make_answer
from tests.helpers.output import text_of

PASSAGE = Passage(document="a.pdf", page=8, start=0, end=9, text="The fee\nis 42 pence\x1b[2J.", importance=0.5)


def test_passages_show_place_and_text_without_control_characters():
    text = text_of(evidence_view(make_answer(passages=[PASSAGE])))
    assert "a.pdf, page 8" in text
    assert "The fee is 42 pence" in text
    assert "\x1b[2J" not in text


def test_neighbouring_passages_of_a_page_share_its_heading():
    passages = [replace(PASSAGE, text=text, page=page) for text, page in (("One.", 8), ("Two.", 8), ("Three.", 9))]
    lines = [line.strip() for line in text_of(evidence_view(make_answer(passages=passages))).splitlines()]
    assert lines == ["a.pdf, page 8", "One.", "...", "Two.", "a.pdf, page 9", "Three."]


def test_unsure_answers_say_so():
    assert "likely right" in confidence_lines(make_answer(confidence=0.9))[0]
    assert "unsure (30%" in confidence_lines(make_answer(confidence=0.3))[0]
    assert "passages" in confidence_lines(make_answer(answer="not found"))[0]
    assert "may not say this" in confidence_lines(make_answer(confidence=0.9, answerable=False))[0]
    assert confidence_lines(make_answer()) == []


def test_lines_of_a_pipe_end_without_spaces():
    pipe = StringIO()
    table = plain_table("name", "value")
    table.add_row("a long name", "1")
    table.add_row("b", "22")
    console(pipe).print(table)
    lines = pipe.getvalue().splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert [line.split() for line in lines] == [["name", "value"], ["a", "long", "name", "1"], ["b", "22"]]
