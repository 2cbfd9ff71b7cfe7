"""The loop of a batch with stub engines: rows, errors, order, memory, resuming after a kill."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import pytest

from specprefill_cli.batching import Batch, BatchEnded
from specprefill_cli.batching.output import RowWriter, open_output
from specprefill_cli.batching.rows import OVERRIDES, Row, parse_line
from specprefill_cli.engine.request import Done
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.signals import terminate_like_interrupt
from tests.helpers.batches import StubEngine, StubRecord, run_batch

ROOT = Path(__file__).parents[2]


def resume_batch(lines, out, answer=str.upper, retry_failed=False, **options):
    """Run a batch that appends to a file. Returns the counts, and the number of rows in the file that are not in the input."""
    with open_output(out, True, retry_failed) as (sink, finished):
        return run_batch(lines, answer, RowWriter(sink), finished=finished, **options), finished.total()


def failing_on_y(error):
    """Answers with the question in capitals, and fails for the question `y`."""

    def answer(question):
        if question == "y":
            raise error
        return question.upper()

    return answer


def ids(out):
    return [json.loads(line)["id"] for line in out.read_bytes().splitlines()]


def jsonl(*rows):
    return [json.dumps(row).encode() + b"\n" for row in rows]


def test_rows_override_settings_that_load_nothing():
    assert {"mode", "keep", "seed", "proposer"} <= set(OVERRIDES)
    assert not {"pair", "draft", "target", "devices", "dtype", "offline", "prompt"} & set(OVERRIDES)
    row = parse_line(b'{"question": "Who?", "mode": "draft-kv", "recompute": 0.3}', 1, ("m.md",))
    assert (
        row.row_hash != parse_line(b'{"question": "Who?", "mode": "draft-kv", "recompute": 0.3}', 1, ("n.md",)).row_hash
    )
    assert (row.overrides, row.ignored) == ({"mode": "draft-kv", "recompute": 0.3}, ())


@pytest.mark.parametrize(
    ("line", "documents", "row"),
    [
        (b"Who is it?\r\n", ("m.md",), Row(5, "Who is it?")),
        (b'{"id": 0, "question": "Who?", "document": "a.md"}', (), Row(0, "Who?", ("a.md",))),
        (
            b'{"id": "x", "question": "Who?", "documents": ["a", "b"], "keep": 0.2, "mode": null, "answers": []}',
            (),
            Row("x", "Who?", ("a", "b"), {"keep": 0.2}, ("answers",)),
        ),
        (b'{"question": "Who?", "document": "a.md", "documents": null}', ("m.md",), Row(5, "Who?", ("a.md",))),
        (b" \n", ("m.md",), None),
        (b'"Who" signed it?', ("m.md",), Row(5, '"Who" signed it?')),
        ("\ufeff".encode() + b'{"question": "Who?", "id": 7}', ("m.md",), Row(7, "Who?")),
    ],
)
def test_parses_objects_and_plain_questions(line, documents, row):
    assert parse_line(line, 5, documents) == row


@pytest.mark.parametrize(
    ("line", "documents", "identifier", "words"),
    [
        (b"Who?", (), 5, "a plain question needs --document"),
        (b'{"question": "Who?"', ("m.md",), 5, "not JSON"),
        (b"\xff\xfe", ("m.md",), 5, "; correct it, or save it as UTF-8"),
        (b'{"id": "x", "question": " "}', ("m.md",), "x", "question must be a string"),
        (b'{"id": [1], "question": "Who?"}', ("m.md",), 5, "id must be"),
        (b'{"id": 3, "question": "Who?"}', (), 3, "no documents"),
        (b'{"question": "Who?", "documents": [1]}', ("m.md",), 5, "documents must be a list"),
        (b'{"question": "Who?", "document": "a", "documents": ["b"]}', ("m.md",), 5, "not both"),
        (b'{"question": "Who?", "documents": "-"}', ("m.md",), 5, "standard input"),
        (b'{"question": "Who?", "pair": "tiny"}', ("m.md",), 5, "pair applies to the whole batch"),
        (b'{"a":' * 20_000, ("m.md",), 5, "not JSON"),
        (b"[", ("m.md",), 5, "JSON array"),
        (b'[{"question": "Who?"}]', ("m.md",), 5, "JSON array"),
        ("Who?".encode("utf-16-le"), ("m.md",), 5, "UTF-8"),
    ],
)
def test_bad_lines_say_what_is_wrong(line, documents, identifier, words):
    row = parse_line(line, 5, documents)
    assert row.identifier == identifier
    assert words in str(row.error)


def test_failed_row_becomes_error_row_and_the_next_follows():
    written = []
    lines = [*jsonl({"id": "a", "question": "x"}, {"id": "b", "question": "y"}), b"{bad\n", b"\n", b"plain\n"]
    count = run_batch(lines, failing_on_y(SpecprefillError("no such\nfile")), written.append)
    assert (count.answered, count.failed) == (4, 2)
    assert [row["id"] for row in written] == ["a", "b", 3, 5]
    assert written[1] == {
        **{"schema": 1, "id": "b", "row_hash": written[1]["row_hash"]},
        "error": {"type": "SpecprefillError", "message": "no such file"},
    }
    assert written[2]["error"]["type"] == "RowError"
    assert [row.get("answer") for row in written] == ["X", None, None, "PLAIN"]


def test_the_end_of_the_engine_ends_the_batch_and_its_rows_are_asked_again(tmp_path):
    out, lines = tmp_path / "out.jsonl", [b"x", b"y", b"z"]
    with pytest.raises(BatchEnded, match="the device failed"):
        resume_batch(lines, out, failing_on_y(BatchEnded("the device failed")))
    assert ids(out) == [1]
    assert resume_batch(lines, out)[0].answered == 2
    assert ids(out) == [1, 2, 3]


@pytest.mark.parametrize("retry_failed", [True, False])
@pytest.mark.parametrize("order", ["xy", "yx"])
def test_rows_with_equal_identifiers_are_distinguished_by_content(tmp_path, retry_failed, order):
    """Only the row that failed is asked again."""
    out, questions = tmp_path / "out.jsonl", []
    lines = jsonl(*({"id": "a", "question": question} for question in order))
    resume_batch(lines, out, failing_on_y(ValueError("no room")))
    count, left = resume_batch(
        lines, out, lambda question: questions.append(question) or question.upper(), retry_failed
    )
    assert questions == (["y"] if retry_failed else [])
    assert (count.skipped, left) == (1 if retry_failed else 2, 0)
    if retry_failed:
        assert sorted(json.loads(line)["answer"] for line in out.read_bytes().splitlines()) == ["X", "Y"]


def test_rows_in_flight_do_not_exceed_the_engines_capacity():
    class Slow(StubEngine):
        capacity = 3

        def submit(self, request, on_event):
            held.append((request.question, on_event))
            held_counts.append(len(held))
            # Delivers the latest row first, once the engine is full.
            while len(held) == self.capacity or (held and request.question == "last"):
                question, deliver_late = held.pop()
                deliver_late(Done(StubRecord(answer=question.upper())))

    held, held_counts, written = [], [], []
    lines = [b"%d" % number for number in range(9)] + [b"last"]
    run_batch(lines, Slow(None), written.append)
    assert max(held_counts) == 3
    assert [row["answer"] for row in written] == [*map(str, range(9)), "LAST"]


def test_rows_are_answered_before_the_input_ends():
    """The writer sends a row only after it has read the answer to the one before."""
    question_end, questions = os.pipe()
    answers, answer_end = os.pipe()

    def converse():
        with open(questions, "wb", buffering=0) as out, open(answers, "rb") as replies:
            # Half of the next row must not delay the row before it.
            for piece in (b"question 0\nques", b"tion 1\nques", b"tion 2\nques", b"tion 3\n"):
                out.write(piece)
                answers_read.append(json.loads(replies.readline())["answer"])

    answers_read = []
    partner = threading.Thread(target=converse, daemon=True)
    partner.start()
    with open(question_end, "rb") as source, open(answer_end, "wb") as sink:
        run_batch(iter(source.readline, b""), str.upper, RowWriter(sink))
    partner.join(timeout=60)
    assert answers_read == [f"QUESTION {number}" for number in range(4)]


def test_memory_does_not_grow_with_the_rows():
    def rows():
        for number in range(1_500):
            if number in (500, 1_499):
                marks.append(tracemalloc.get_traced_memory()[0])
            yield b'{"id": "%d", "question": "%s"}\n' % (number, b"x" * 2_000)

    marks = []
    with open(os.devnull, "wb") as sink:
        tracemalloc.start()
        run_batch(rows(), str.upper, RowWriter(sink))
        tracemalloc.stop()
    assert marks[1] < marks[0] * 1.1 + 10_000


@pytest.mark.parametrize(
    "tail", [b'{"schema": 1, "id": 4, "ans', bytes(4096), b'{"schema": 1, "id": 4, "an' + bytes(512)]
)
@pytest.mark.parametrize("retry_failed", [True, False])
def test_resume_cuts_the_unfinished_row_and_skips_whole_rows(tmp_path, tail, retry_failed):
    """A power cut may leave zeros in the file."""
    out = tmp_path / "out.jsonl"
    lines = [f"question {number}\n".encode() for number in range(6)]
    resume_batch(lines[:3], out)
    complete = out.read_bytes()
    out.write_bytes(complete + tail)
    questions = []
    count, _ = resume_batch(lines, out, lambda question: questions.append(question) or question, retry_failed)
    assert out.read_bytes().startswith(complete)
    assert (count.skipped, count.answered) == (3, 3)
    assert questions == ["question 3", "question 4", "question 5"]
    assert ids(out) == [1, 2, 3, 4, 5, 6]


def test_resume_finds_rows_by_their_content_whatever_their_place_and_form(tmp_path):
    out = tmp_path / "out.jsonl"
    fails, row = b"{bad\n", {"id": "a", "question": "How?", "keep": 0.2}
    resume_batch([b"Who?\n", b"When?\n", fails, *jsonl(row)], out)
    questions = []
    rows = [b"Why?\n", fails, b"When?\r\n", b"Who?", b"Who?\n", *jsonl({"note": 1, **row}, {**row, "keep": 0.3})]
    count, left = resume_batch(rows, out, lambda question: questions.append(question) or question)
    # The second "Who?" is another row.
    assert questions == ["Why?", "Who?", "How?"]
    assert (count.skipped, count.failed, left) == (4, 1, 0)


def test_nothing_is_lost_where_failed_rows_cannot_be_removed(tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    resume_batch([b"{bad\n", b"Who?\n"], out)
    before = out.read_bytes()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(SpecprefillError, match="No space left"):
        resume_batch([b"{bad\n", b"Who?\n"], out, retry_failed=True)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"my notes",
        b"my\nnotes",
        b'{"id": "a", "question": "Who?"}',
        b'{"schema": 1, "id": 1, "row_hash": "a"}\nnotes\n',
    ],
)
def test_a_foreign_file_is_left_alone(tmp_path, content):
    out = tmp_path / "notes"
    out.write_bytes(content)
    for resume, words in ((True, "line [12] of .* is not a row of batch; give another --out"), (False, "is not empty")):
        with pytest.raises(UsageError, match=words), open_output(out, resume):
            pass
        assert out.read_bytes() == content


@pytest.mark.parametrize("resume", [True, False])
def test_a_second_run_cannot_write_to_the_same_file(tmp_path, resume):
    out, words = tmp_path / "out.jsonl", "another run is writing to it"
    with open_output(out, False) as (sink, _):
        run_batch([b"Who?"], str.upper, RowWriter(sink))
        with pytest.raises(SpecprefillError, match=words) as refused, open_output(out, resume):
            pass
    assert (refused.value.exit_code, ids(out)) == (1, [1])
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    # Also where the file has become another one.
    resume_batch([b"{bad\n"], out)
    with open_output(out, True, retry_failed=True), pytest.raises(SpecprefillError, match=words):
        resume_batch([b"Who?"], out)
    assert resume_batch([b"Who?"], out)[0].skipped == 1


def test_signal_waits_until_the_row_is_written():
    terminated, written, over = terminate_like_interrupt(), [], threading.Event()

    def lines():
        yield b"a"
        over.wait(20)

    def write(record):
        os.kill(os.getpid(), signal.SIGTERM)
        written.append(record)

    with pytest.raises(KeyboardInterrupt):
        run_batch(lines(), str.upper, write)
    over.set()
    assert [row["answer"] for row in written] == ["A"]
    assert terminated.is_set()


def test_a_second_ctrl_c_ends_a_write_that_blocks():
    def write(record):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        written.append(record)

    written = []
    with pytest.raises(KeyboardInterrupt):
        run_batch([b"a", b"b"], str.upper, write)
    assert written == []


def test_ctrl_c_does_not_lose_an_answer_that_was_just_delivered(monkeypatch):
    written, next_event = [], Batch.next_event

    def interrupt(batch):
        event = next_event(batch)
        if isinstance(event, tuple):
            signal.raise_signal(signal.SIGINT)
        return event

    monkeypatch.setattr(Batch, "next_event", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_batch([b"a", b"b"], str.upper, written.append)
    assert written[0]["answer"] == "A"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals go to a process, not to a thread")
def test_ctrl_c_ends_a_wait_that_it_did_not_wake():
    """The signal goes to another thread, as if it had come just before the wait."""
    came = threading.Event()

    def lines():
        interrupt.start()
        # Without a limit, a wait that Ctrl-C does not end would never end.
        came.wait(20)
        yield b""

    interrupt = threading.Timer(0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            run_batch(lines(), str.upper, [].append)
    finally:
        came.set()
        interrupt.join()


@pytest.mark.slow
def test_kills_lose_nothing_and_repeat_nothing(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows, kills = 500, 0
    source.write_bytes(b"".join(jsonl(*({"id": f"q{n}", "question": f"question {n}"} for n in range(rows)))))
    generator = random.Random(0)
    command = [sys.executable, "-m", "tests.helpers.batch_stub", str(source), str(out)]
    for _ in range(12):
        # Kills the batch when its output has grown by a random number of bytes.
        kill_size = (out.stat().st_size if out.exists() else 0) + generator.randint(0, 20_000)
        process = subprocess.Popen(command, cwd=ROOT)
        while process.poll() is None and not (out.exists() and out.stat().st_size >= kill_size):
            pass
        process.kill()
        # On a busy machine a run may end before the kill.
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 4
    assert subprocess.run(command, cwd=ROOT).returncode == 0
    rows_written = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["id"] for row in rows_written] == [f"q{n}" for n in range(rows)]
    assert sum("error" in row for row in rows_written) == rows // 10


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk that Linux offers")
def test_full_disk_error_says_how_to_continue():
    with (
        pytest.raises(SpecprefillError, match="--resume continues after the last"),
        open_output(Path("/dev/full"), False) as (out, _),
    ):
        RowWriter(out)({"schema": 1, "id": 1})
