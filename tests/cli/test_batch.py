"""`specprefill batch` with the bundled pair: shared work, overrides, error rows, exit codes, pipes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from specprefill_cli.answering.session import Session
from specprefill_cli.batching import rows
from tests.helpers.samples import MANUAL, read_jsonl

SHORT = ("--max-new-tokens", "6", "--mode", "select", "--keep", "0.3")


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_rows_share_the_document_and_answer_like_ask(call):
    questions = ["What colour is the pump?", "How heavy is the pump?"]
    code, out, err = call("batch", "--document", MANUAL, *SHORT, stdin="\n".join(questions).encode())
    assert code == 0
    rows = read_jsonl(out)
    assert [row["id"] for row in rows] == [1, 2]
    assert [row["question"] for row in rows] == questions
    assert [row["reused"] for row in rows] == [[], ["document tokens", "draft document KV"]]
    assert "2 rows in" in err
    single = json.loads(call("ask", MANUAL, questions[1], *SHORT, "--json")[1])
    assert (single["answer"], single["spans"], single["reused"]) == (rows[1]["answer"], rows[1]["spans"], [])
    assert list(single) == [key for key in rows[1] if key != "row_hash"]


def test_a_batch_confirms_nothing_and_says_so(call, monkeypatch):
    monkeypatch.setenv("SPECPREFILL_CONFIRM", "true")
    rows = jsonl({"question": "What colour is the pump?"}, {"question": "How heavy?", "confirm": True})
    code, out, err = call("batch", "--document", MANUAL, *SHORT, stdin=rows)
    answered, refused = read_jsonl(out)
    assert (code, answered["confirmed"]) == (3, None)
    assert "confirm is set, but only ask and compare confirm answers" in err
    assert "only `specprefill ask` and `compare` confirm" in refused["error"]["message"]


@pytest.mark.slow
def test_failed_rows_become_error_rows_and_overrides_apply(call, tmp_path):
    (tmp_path / "gate.md").write_text("The gate of the farm is dark green. " * 20)
    rows = [
        {"id": "custom", "question": "Which color?", "documents": [str(tmp_path / "gate.md")], "mode": "full"},
        {"id": "lost", "question": "Who?", "documents": ["missing.pdf"]},
        {"id": "mode", "question": "Who?", "mode": "fast"},
        {"id": "keep", "question": "Who?", "keep": 7},
        {"id": "odd", "question": "Who?", "look_ahead": 2, "kep": 0.1},
    ]
    out = tmp_path / "out.jsonl"
    arguments = ("batch", str(tmp_path / "in.jsonl"), "--document", MANUAL, *SHORT, "--out", str(out))
    (tmp_path / "in.jsonl").write_bytes(jsonl(*rows))
    code, printed, _ = call(*arguments, "--quiet")
    assert (code, printed) == (3, "")
    rows_written = read_jsonl(out.read_text())
    assert [row["id"] for row in rows_written] == ["custom", "lost", "mode", "keep", "odd"]
    assert rows_written[0]["mode"] == "full"
    lost, mode, keep = (row["error"] for row in rows_written[1:4])
    assert (lost["type"], mode["type"], keep["type"]) == ("DocumentError", "UsageError", "UsageError")
    assert "missing.pdf" in lost["message"]
    assert "row mode: mode fast: unknown" in mode["message"]
    assert "row keep: keep 7" in keep["message"]
    assert "key 'kep' of the row" in rows_written[4]["warnings"][-1]
    written = out.read_bytes()
    code, _, err = call(*arguments)
    assert code == 2
    assert "--resume" in err
    code, _, err = call(*arguments, "--resume")
    assert code == 3
    assert "0 rows" in err
    assert "5 were there already, 3 failed" in err
    assert "--retry-failed" in err
    assert out.read_bytes() == written
    (tmp_path / "in.jsonl").write_bytes(jsonl(*rows[:2], *({**row, "mode": None, "keep": None} for row in rows[2:])))
    code, _, err = call(*arguments, "--retry-failed")
    assert (code, "3 rows in" in err, "2 were there already, 1 failed" in err) == (3, True, True)
    assert sorted(json.loads(line)["id"] for line in out.read_text().splitlines()) == sorted(row["id"] for row in rows)


def test_a_row_that_needs_an_unloaded_draft_does_not_fail_others(call):
    rows = jsonl({"question": "Who?", "mode": "select"}, {"question": "Who?"})
    code, out, _ = call("batch", "--document", MANUAL, "--mode", "full", "--max-new-tokens", "2", "--quiet", stdin=rows)
    assert code == 3
    rows_written = read_jsonl(out)
    assert "needs the draft" in rows_written[0]["error"]["message"]
    assert rows_written[1]["mode"] == "full"


def test_an_interrupted_batch_goes_on_where_it_stopped(call, monkeypatch, tmp_path):
    prefill = Session.prefill

    def end_second(self, mode, request):
        if request.question == "How much?":
            os.kill(os.getpid(), signal.SIGTERM)
            # The row must not be answered before the signal has cancelled it, which ends its next pass.
            while True:
                prefill(self, mode, request)
        return prefill(self, mode, request)

    source, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("Who?\n\nHow much?\nWhy?\n")
    arguments = ("batch", str(source), "--document", MANUAL, "--mode", "full", "--out", str(out), "--concurrency", "1")
    with monkeypatch.context() as patch:
        patch.setattr(Session, "prefill", end_second)
        code, _, err = call(*arguments)
    assert code == 143
    hint = "run the same command with --resume to go on"
    assert err.splitlines()[-1] == f"specprefill: interrupted after 1 of 3 rows; {hint}"
    code, _, err = call(*arguments, "--max-new-tokens", "2", "--resume")
    assert (code, [row["id"] for row in read_jsonl(out.read_text())]) == (0, [1, 3, 4])
    assert "1 were there already" in err


@pytest.mark.parametrize("option", ["--resume", "--retry-failed"])
def test_resume_refuses_another_input_before_loading(call, tmp_path, option):
    out = tmp_path / "out.jsonl"
    out.write_text('{"schema": 1, "id": "a", "row_hash": "a", "error": {}}\n')
    code, _, err = call("batch", "--document", MANUAL, "--out", str(out), option, stdin=b"Who?\n")
    assert (code, len(out.read_text().splitlines())) == (2, 1)
    assert f"--resume: no row of {out} is in the input" in err


def test_resume_warns_of_rows_that_are_not_in_the_input(call, tmp_path):
    out = tmp_path / "out.jsonl"
    line = jsonl({"id": "b", "question": "Who?"})
    hashes = ("a", rows.parse_line(line, 1, (MANUAL,)).row_hash)
    out.write_bytes(jsonl(*({"schema": 1, "id": row_hash, "row_hash": row_hash} for row_hash in hashes)))
    code, _, err = call("batch", "--document", MANUAL, "--mode", "full", "--out", str(out), "--resume", stdin=line)
    assert (code, "warning: rows of the output that are not in the input: 1" in err) == (0, True)


def test_reads_each_list_of_documents_once(call, monkeypatch, tmp_path):
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("The gate of the farm is dark green. " * 20)
    read = []
    read_collection = rows.read_collection
    monkeypatch.setattr(
        rows, "read_collection", lambda names, **options: read.append(names) or read_collection(names, **options)
    )
    monkeypatch.chdir(tmp_path)
    lists = [["a.md"], ["a.md", "b.md"], ["lost.md"], ["a.md"], ["a.md", "b.md"], ["lost.md"]]
    lines = jsonl(*({"question": "Who?", "documents": names} for names in lists))
    code, out, _ = call("batch", "--mode", "full", "--max-new-tokens", "2", "--quiet", stdin=lines)
    errors = [json.loads(line).get("error", {}).get("message", "") for line in out.splitlines()]
    assert (code, ["lost.md" in message for message in errors]) == (3, [False, False, True] * 2)
    # A list that cannot be read is tried again.
    assert sorted(read) == [("a.md",), ("a.md", "b.md"), ("lost.md",), ("lost.md",)]


@pytest.mark.slow
def test_workers_answer_as_this_process_does(call, tmp_path):
    (tmp_path / "gate.md").write_text("The gate of the farm is dark green. " * 20)
    rows = [
        {"id": "custom", "question": "What colour is the pump?"},
        {"id": "gate", "question": "Which color is the gate?", "documents": [str(tmp_path / "gate.md")]},
        {"id": "lost", "question": "Who?", "documents": ["missing.pdf"]},
        {"id": "again", "question": "How heavy is the pump?"},
    ]
    arguments = ("batch", "--document", MANUAL, *SHORT, "--quiet")
    local = call(*arguments, stdin=jsonl(*rows))
    command = [sys.executable, "-m", "specprefill_cli", *arguments, "--workers", "2"]
    done = subprocess.run(command, input=jsonl(*rows), capture_output=True, timeout=300)
    assert (done.returncode, local[0], done.stderr) == (3, 3, b"")
    keys = ("id", "question", "answer", "spans", "error", "generated_tokens")
    for worked, answered in zip(read_jsonl(done.stdout), read_jsonl(local[1]), strict=True):
        assert [worked.get(key) for key in keys] == [answered.get(key) for key in keys]
