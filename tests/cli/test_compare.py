"""`specprefill compare`: figures side by side, reuse of KV, the session, keys at a terminal."""

import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bs4 import BeautifulSoup

from specprefill_cli.answering import tasks
from specprefill_cli.answering.tasks import compare_modes, kl_divergence
from specprefill_cli.cli.compare import split_question
from specprefill_cli.errors import UsageError
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.record import Comparison
from specprefill_cli.reporting import table
from specprefill_cli.reporting.html import render_page
from specprefill_cli.reporting.table import comparison_table
from specprefill_cli.settings import Settings
from tests.helpers.output import text_of
from tests.helpers.samples import MANUAL, collection_of

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 8
COLLECTION = collection_of(TEXT)
SETTINGS = Settings(keep=0.4, max_new_tokens=4, scorer="question")


@pytest.mark.parametrize(("arguments", "expected"), [
    (["a.pdf", "Who signed it?"], (["a.pdf"], "Who signed it?")),
    (["a.pdf", "b.md", "Why?"], (["a.pdf", "b.md"], "Why?")), (["a.pdf", "b.pdf"], (["a.pdf", "b.pdf"], None)),
    (["a.pdf", "my old report.pdf"], (["a.pdf", "my old report.pdf"], None)),
    (["a.pdf", __file__], (["a.pdf", __file__], None)), (["a.pdf"], (["a.pdf"], None)),
    (["Who is it?"], (["Who is it?"], None)),
])  # fmt: skip
def test_last_argument_is_the_question_if_it_reads_like_one(arguments, expected):
    assert split_question(arguments) == expected
    with pytest.raises(UsageError, match="question is empty"):
        split_question(["a.pdf", " "])


def compare(session, *modes, question="When?"):
    return compare_modes(session, COLLECTION, question, SETTINGS, modes)


def test_modes_are_compared_with_full(random_session):
    full, select = compare(random_session, "full", "select").answers
    assert (full.speedup, full.first_token_kl, full.agreement) == (1, 0, 1)
    assert select.speedup == full.answer.ttft_seconds / select.answer.ttft_seconds
    assert select.first_token_kl > 0
    assert 0 <= select.agreement <= 1
    assert select.cells
    (single,) = compare(random_session, "select").answers
    assert (single.speedup, single.first_token_kl, single.agreement) == (None, None, None)


def test_divergence_is_kl_of_full_from_the_other():
    full, other = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    expected = float((full * (full / other).log()).sum())
    assert kl_divergence(full.log() + 3, other.log()) == pytest.approx(expected, rel=1e-6)
    assert kl_divergence(full, full) == 0
    first, second = torch.tensor([1.0, 2.0, -torch.inf]), torch.tensor([1.0, 2.5, -torch.inf])
    assert kl_divergence(first, second) == pytest.approx(kl_divergence(first[:2], second[:2]))
    assert kl_divergence(first, first) == 0.0
    assert math.isnan(kl_divergence(first, torch.tensor([math.nan, 0.0, 0.0]))), "not a number is no agreement"


def test_compared_modes_start_cold_for_every_question(random_session):
    session = random_session.with_cache(DocumentCache())
    for question in ("When does it open?", "What do tickets cost?"):
        answers = compare(session, "full", "select", "draft-kv", "hybrid", "auto", question=question).answers
        assert [row.answer.reused for row in answers] == [[], [], [], [], []]
    # A question in one mode does not warm a later comparison either.
    compare(session, "full")
    assert [row.answer.reused for row in compare(session, "full", "select").answers] == [[], []]


def page_facts(comparison):
    """The facts on each card of a comparison's page, by label."""
    page = BeautifulSoup(render_page(COLLECTION, comparison), "html.parser")
    return [
        {label.get_text(): value.get_text() for label, value in zip(card("dt"), card("dd"), strict=True)}
        for card in page.select(".card")
    ]


def test_page_shows_the_differences_from_full(random_session):
    comparison = compare(random_session, "full", "select")
    full, select = page_facts(comparison)
    _, answer = comparison.answers
    assert full["speedup"] == "1.00x"
    assert select["speedup"] == f"{answer.speedup:.2f}x"
    assert select["first-token KL"] == f"{answer.first_token_kl:.4f} nats"
    assert select["agreement"] == f"{answer.agreement:.2f}"
    assert not {"speedup", "first-token KL", "agreement"} & set(page_facts(compare(random_session, "select"))[0])


@pytest.mark.slow
def test_one_question_gives_table_page_or_object(call, call_json, tmp_path):
    page = tmp_path / "compare.html"
    options = ("--keep", "0.3", "--max-new-tokens", "6")
    code, out, _ = call("compare", MANUAL, "How heavy is the pump?", *options, "--html", str(page))
    assert code == 0
    for word in ("full", "select", "answer", "TTFT", "target prefill", "speedup", "kept", "KL", "agreement", "drop"):
        assert word in out
    assert "How heavy is the pump?" in page.read_text()
    record = call_json("compare", MANUAL, "How heavy is the pump?", *options)
    assert [row["mode"] for row in record["rows"]] == ["full", "select"]
    assert record["rows"][0]["speedup"] == 1
    assert set(record["rows"][1]) >= {"speedup", "first_token_kl", "agreement", "reused", "phases"}


def test_session_reads_lines_from_a_pipe_and_reuses_kv(call):
    lines = b"How heavy is the pump?\n\nWhat colour is it?\n"
    code, out, _ = call("compare", MANUAL, "--modes", "select", "--max-new-tokens", "4", stdin=lines)
    assert code == 0
    first, second = out.split("> What colour is it?")
    assert "> How heavy is the pump?" in first
    assert "draft document KV" not in first
    assert "draft document KV" in second


def test_errors_and_ctrl_c_end_the_answer_not_the_session(call, monkeypatch):
    replies = iter([RuntimeError("out of memory"), KeyboardInterrupt(), "the answer"])

    def reply(*_):
        outcome = next(replies)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(tasks, "compare_modes", reply)
    monkeypatch.setattr(table, "comparison_view", lambda answer: answer)
    code, out, err = call("compare", MANUAL, "--modes", "full", "--quiet", stdin=b"When?\nWho?\nWhy?\n")
    assert (code, out.splitlines()[-1]) == (0, "the answer")
    assert err.splitlines() == ["error: RuntimeError: out of memory", "cancelled; the session goes on"]


def test_sigterm_ends_the_session(call, monkeypatch):
    monkeypatch.setattr(tasks, "compare_modes", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    code, out, _ = call("compare", MANUAL, "--modes", "full", stdin=b"When?\nWhy?\n")
    assert (code, "Why?" in out) == (143, False)


def test_shows_hostile_text_literally(random_session):
    (row,) = compare(random_session, "full").answers
    hostile = replace(row, answer=replace(row.answer, answer="[red]x[/red] \x1b[2J \u202e"))
    assert "[red]x[/red] \\u001b[2J \\u202e" in text_of(comparison_table(Comparison(question="", answers=[hostile])))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_keys_at_a_terminal():
    pexpect = pytest.importorskip("pexpect")
    environment = {**os.environ, "TERM": "xterm"}
    stub = str(Path(__file__).parent.with_name("helpers") / "compare_stub.py")
    child = pexpect.spawn(sys.executable, [stub], env=environment, encoding="utf-8", timeout=40)
    child.expect("specprefill> ")
    child.send("Who is it?\r")
    child.expect("asked: Who is it?")
    child.sendintr()
    child.expect("cancelled; the session goes on")
    child.expect("specprefill> ")
    # The cursor key recalls the last line. Ctrl-C drops it at the prompt.
    child.send("\x1b[A")
    child.expect("Who is it")
    child.sendintr()
    child.expect("specprefill> ")
    child.sendeof()
    child.expect("left")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
