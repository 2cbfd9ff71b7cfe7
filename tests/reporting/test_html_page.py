"""The page: whole text, marks and bars; one file without script or network; hostile text is inert."""

import re
from html import unescape

import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup

from specprefill_cli.answering.places import document_cells
from specprefill_cli.documents.document import Collection, Document, join_pages
from specprefill_cli.prefill.fates import Plan, Span, full_plan
from specprefill_cli.record import Citation, Comparison, Fate, ModeAnswer
from specprefill_cli.reporting.html import LEVELS, render_page
from tests.helpers.answers import make_answer

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y> {{ 7*7 }} \x1b[2J[red]x[/] \u202egnp\u2066.exe \U000e0041\x00 &lt;"
# What a page may not hold: bidi overrides and isolates, tags, and controls other than line ends.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def collection_of(*texts, name="a.txt"):
    text, pages = join_pages(texts)
    return Collection((Document(name, text, pages),))


def cells_of(collection, mode, chunk=8):
    count = len(collection.text)
    offsets = np.array([(place, place + 1) for place in range(count)])
    if mode == "full":
        return document_cells(collection, offsets, full_plan(count, (0, count)), None, chunk)
    half = count // 2 // chunk * chunk
    plan = Plan(count, (0, count), (Span(0, half, Fate.DROP), Span(half, count, Fate.RECOMPUTE)))
    return document_cells(collection, offsets, plan, torch.arange(count).float(), chunk)


def page_of(collection, *answers, question="Which allowance?"):
    compared = [
        ModeAnswer(mode=answer.mode, answer=answer, cells=cells_of(collection, answer.mode)) for answer in answers
    ]
    return render_page(collection, Comparison(question=question, answers=compared))


def soup_of(*arguments):
    return BeautifulSoup(page_of(*arguments), "html.parser")


def test_the_page_shows_the_whole_text_page_by_page_for_every_mode():
    texts = ("First  page,\n\tas it stands.", "", "Third page with 42 pence in it.")
    soup = soup_of(collection_of(*texts), make_answer(), make_answer(mode="full", phases={"target_prefill": 0.8}))
    assert [block.get_text() for block in soup.select(".text")] == [texts[0], texts[2]] * 2
    assert [head.get_text() for head in soup.select("h3.page")] == ["page 1", "page 2", "page 3"] * 2
    assert len(soup.select("details[open]")) == 1
    assert [card.h2.get_text() for card in soup.select(".card")] == ["select", "full"]
    # The bars of all modes share one scale.
    widths = [float(bar["style"].removeprefix("width:").rstrip("%")) for bar in soup.select(".track i")]
    assert widths == pytest.approx([37.5, 12.5, 100])


def test_every_cell_of_the_strip_leads_to_its_text():
    soup = soup_of(collection_of("Some text to be cut into cells. " * 4), make_answer())
    links = soup.select(".strips a")
    assert len(links) == 16
    assert all(soup.find(id=link["href"][1:]) for link in links)
    assert len({node["id"] for node in soup.select("[id]")}) == len(soup.select("[id]"))
    assert {link["class"][0] for link in links} == {"drop", "recompute"}
    assert links[-1]["title"] == "chunk 16, recompute"
    assert f"l{LEVELS}" in links[-1]["class"]
    assert "l1" in links[0]["class"]


def test_the_source_of_the_answer_is_marked_and_linked():
    collection = collection_of("Nothing here.", "The allowance is 42 pence per mile.")
    start = collection.text.index("42 pence")
    answer = make_answer(citations=[Citation("a.txt", 2, start, start + 8, "The allowance is 42 pence.")])
    soup = soup_of(collection, answer)
    assert "".join(mark.get_text() for mark in soup.select(".text mark")) == "42 pence"
    target = soup.find(id=soup.select_one(".sources a")["href"][1:])
    assert target.mark is not None
    assert soup.select(".strips a.cited")


def test_the_page_needs_nothing_from_outside():
    page = page_of(collection_of("Some text."), make_answer())
    soup = BeautifulSoup(page, "html.parser")
    assert soup.find(attrs={"http-equiv": "Content-Security-Policy"})["content"].startswith("default-src 'none'")
    assert not soup.find_all(["script", "link", "img", "iframe", "object", "form"])
    assert not re.search(r"url\(|@import|https?://", page)


def test_hostile_text_is_inert():
    collection = collection_of(HOSTILE * 3, name=HOSTILE)
    citations = [Citation(HOSTILE, 1, 3, 30, HOSTILE)]
    answer = make_answer(answer=HOSTILE, citations=citations, warnings=[HOSTILE], reason=HOSTILE)
    page = page_of(collection, answer, question=HOSTILE)
    assert not OBEYED.search(unescape(page))
    soup = BeautifulSoup(page, "html.parser")
    assert not soup.find_all(["script", "img"])
    assert not [name for node in soup.find_all(True) for name in node.attrs if name.startswith("on")]
    expected = "<script>alert(1)</script>\"'><img src=x onerror=y> {{ 7*7 }} \\u001b[2J[red]x[/] \\u202egnp\\u2066.exe"
    assert soup.h1.get_text().startswith(expected)
    assert soup.select_one(".answer").get_text().startswith(expected)
    assert soup.select_one(".text").get_text().startswith(expected)
    assert soup.h1.get_text().endswith(" \\U000e0041\\u0000 &lt;")


def test_accepted_spans_have_their_own_mark():
    collection = collection_of("x" * 64)
    plan = Plan(64, (0, 64), (Span(0, 32, Fate.ACCEPT), Span(32, 64, Fate.RECOMPUTE)))
    cells = document_cells(collection, np.array([(place, place + 1) for place in range(64)]), plan, None, 32)
    answer = ModeAnswer(mode="hybrid", answer=make_answer(), cells=cells)
    soup = BeautifulSoup(render_page(collection, Comparison(question="q", answers=[answer])), "html.parser")
    assert [span["class"][0] for span in soup.select(".text span")] == ["accept", "recompute"]
    assert [sample.get_text() for sample in soup.select(".sample")] == ["accept", "recompute"]
    assert ".text .accept" in soup.style.get_text()
