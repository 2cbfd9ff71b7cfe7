"""`plan`, `passages`, and `ask --html`."""

import os
import re

from bs4 import BeautifulSoup

from tests.helpers.samples import HANDBOOK, QUESTION


def test_plan_prints_facts_and_estimates(call, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, err = call("plan", HANDBOOK, QUESTION, "--keep", "auto")
    assert (code, err) == (0, "")
    assert re.search(r"recompute +\d+ spans?, \d+ tokens \(p\. [\d, -]*\b8\b", out)
    assert re.search(r"auto takes +select\n", out)
    assert re.search(r"this plan: auto, 0\.\d\d +\d+ +\d+\.\dx +about [\d.]+ m?s", out)
    assert "estimates: counted operations" in out
    assert "\x1b" not in out


def test_plan_says_why_auto_takes_full(call, tmp_path):
    document = tmp_path / "short.txt"
    document.write_text("The gate opens at nine.")
    _, out, _ = call("plan", str(document), "When does the gate open?", "--keep", "0.3")
    assert re.search(r"auto takes +full; before scoring, select promises only 0\.\dx", out)


def test_the_page_of_ask_is_written(call, tmp_path):
    file = tmp_path / "page.html"
    file.write_text("old")
    file.chmod(0o640)
    assert call("ask", HANDBOOK, QUESTION, "--quiet", "--html", str(file))[0] == 0
    page = BeautifulSoup(file.read_text(encoding="utf-8"), "html.parser")
    assert page.h1.get_text() == QUESTION
    assert len(page.select("h3.page")) == 22
    assert len(page.select(".card")) == 1
    assert file.stat().st_size < 1_500_000
    assert os.name == "nt" or file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_best_passages_hold_the_answer_in_document_order(call_json):
    record = call_json("passages", HANDBOOK, QUESTION, "--top", "4")
    assert any("42 pence" in passage["text"] for passage in record["passages"])
    places = [passage["start"] for passage in record["passages"]]
    assert places == sorted(places)
    assert record["kept_words"] < record["document_words"] / 10
    assert len(record["passages"]) <= 4


def test_keep_ratio_bounds_the_text_and_ends_at_sentences(call):
    words = []
    for keep in ("0.05", "0.3"):
        _, out, _ = call("passages", HANDBOOK, QUESTION, "--keep", keep)
        assert "42 pence" in out
        assert f"[{HANDBOOK}, page 8]" in out
        words.append(len(out.split()))
    assert words[0] < words[1] / 2
