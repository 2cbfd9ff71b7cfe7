"""The commands with an endpoint as target: ask, batch with faults, compare, evaluate; and those that refuse one."""

import re
import sys

import pytest

from tests.helpers.samples import HANDBOOK, QUESTION, read_jsonl, write_jsonl
from tests.helpers.upstream import error, piece, reply_with, says, stream_parts

pytestmark = pytest.mark.slow

ROWS = 60
# One of each in sixty: a tenth of the rows fails.
FAULTS = {
    4: error(500, "out of memory"),
    13: stream_parts(piece("12 "), length=5_000),
    22: stream_parts(b"data: {oops\n\n"),
    31: reply_with(200, "<html></html>", "text/html"),
    40: error(400, "maximum context length is 10 tokens"),
    59: error(401, "bad key"),
}


def test_ask_prints_the_answer_and_both_parts_of_the_time(call, upstream, monkeypatch):
    monkeypatch.setattr("specprefill_cli.serving.control.server_state", lambda: pytest.fail("our server is asked"))
    code, out, err = call("ask", HANDBOOK, QUESTION, "--target", upstream.target)
    assert (code, out.strip()) == (0, "42 pence")
    assert re.search(r"TTFT .*draft prefill .* \+ upstream", " ".join(err.split()))


def test_an_answer_that_is_cut_off_ends_its_line_before_the_error(call, upstream):
    upstream.script = lambda _body: stream_parts(piece("42 "), piece("pen"))
    code, out, err = call("ask", HANDBOOK, QUESTION, "--target", upstream.target, "--quiet")
    assert (code, out) == (1, "42 pen\n")
    assert "breaks off" in err
    upstream.script = lambda _body: stream_parts()
    assert call("ask", HANDBOOK, QUESTION, "--target", upstream.target, "--quiet")[:2] == (1, "")


@pytest.fixture
def batch(call, tmp_path, upstream):
    """Run a batch of rows about short documents; its records."""
    out = tmp_path / "answers.jsonl"
    (tmp_path / "gate.txt").write_text("The gate is open from nine to five. " * 20)
    rows = [{"id": f"r{number}", "question": f"What has number {number}?"} for number in range(ROWS)]
    questions = write_jsonl(tmp_path / "questions.jsonl", *rows)

    def run(*options):
        code, _, err = call(
            "batch", questions, "--document", str(tmp_path / "gate.txt"), "--target", upstream.target,
            "--out", str(out), "--mode", "select", "--scorer", "lexical", *options,
        )  # fmt: skip
        return code, read_jsonl(out.read_text()), err

    return run


def number_in(body):
    return int(re.search(r"number (\d+)\?$", body["messages"][-1]["content"])[1])


@pytest.mark.parametrize("options", [(), ("--concurrency", "1")])
def test_no_row_is_lost_or_doubled_and_failed_ones_are_asked_again(batch, upstream, options):
    def reply(body):
        return says(f"answer {number_in(body)}")

    upstream.script = lambda body: FAULTS.get(number_in(body)) or reply(body)
    code, records, _ = batch(*options)
    names = [record["id"] for record in records]
    expected = [f"r{number}" for number in range(ROWS)]
    assert code == 3
    assert names == expected
    failed = {record["id"]: record["error"] for record in records if "error" in record}
    assert set(failed) == {f"r{number}" for number in FAULTS}
    assert {fault["type"] for fault in failed.values()} == {"EndpointError", "PromptTooLong"}
    upstream.bodies.clear()
    upstream.script = reply
    code, records, _ = batch("--retry-failed", *options)
    assert code == 0
    assert sorted(map(number_in, upstream.bodies)) == sorted(FAULTS)
    answers = {record["id"]: record["answer"] for record in records if "error" not in record}
    assert answers == {f"r{number}": f"answer {number}" for number in range(ROWS)}
    assert len([record for record in records if "error" not in record]) == ROWS


def test_compare_shows_both_with_the_tokens_sent(call, upstream):
    code, out, _ = call("compare", HANDBOOK, QUESTION, "--target", upstream.target)
    assert code == 0
    assert re.search(r"upstream +\d", out)
    assert re.search(r"kept +4,\d+ tokens, ratio 1.000.* \d{3} tokens, ratio 0", out)
    assert "first-token KL" not in out


def test_evaluate_asks_the_endpoint(call_json, upstream, tmp_path):
    context = "The gate is open from nine to five. " * 40 + "The fee is 42 pence a mile. " + "Dogs are welcome. " * 40
    row = {"id": "a", "context": context, "question": "What is the fee?", "answers": ["42 pence"]}
    questions = write_jsonl(tmp_path / "questions.jsonl", row)
    rows = call_json("evaluate", questions, "--target", upstream.target)["rows"]
    (select,) = (row for row in rows if row["mode"] == "select")
    assert (select["em"], select["scorer"], select["answer_kept"]) == (100.0, "blend", 100.0)
    assert select["kept_ratio"] < 0.5


def test_without_the_package_the_message_names_the_extra(call, upstream, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    code, _, err = call("ask", HANDBOOK, QUESTION, "--target", upstream.target)
    assert code == 1
    assert "endpoint" in err
    assert "install" in err
