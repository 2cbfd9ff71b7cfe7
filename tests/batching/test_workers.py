"""Workers in processes of their own: order, crashes, failed devices, and what becomes of them when the driver ends."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from specprefill_cli.batching.arrivals import source_of
from specprefill_cli.batching.loop import Count, run_rows
from specprefill_cli.batching.output import RowWriter, open_output
from specprefill_cli.batching.processes import Processes
from specprefill_cli.errors import SpecprefillError
from tests.helpers.batch_workers import opener, refusing_opener

SCRIPT = Path(__file__).parent.with_name("helpers") / "batch_workers.py"
# Guards against a hang only.
TIMEOUT = 120
unix = pytest.mark.skipif(os.name == "nt", reason="workers of the stub end by Unix signals")


def jsonl(*questions):
    return b"".join(
        json.dumps({"id": number, "question": text}).encode() + b"\n" for number, text in enumerate(questions)
    )


def run(tmp_path, rows, workers=2, opener=opener):
    """Answer rows in processes, resuming; records by their order in the output, and lines that were told."""
    source, out, told = tmp_path / "in.jsonl", tmp_path / "out.jsonl", []
    source.write_bytes(rows)
    with (
        source.open("rb") as lines,
        open_output(out, True) as (sink, finished),
        closing(Processes(opener, workers)) as pool,
    ):
        run_rows(source_of(lines), True, pool, RowWriter(sink), finished, Count(), tell=told.append)
    return [json.loads(line) for line in out.read_bytes().splitlines()], told


def test_rows_are_answered_in_other_processes_and_written_in_order(tmp_path, capfd):
    records, told = run(tmp_path, jsonl(*(f"question {number}" for number in range(40)), "error"))
    assert [record["id"] for record in records] == [*range(41)]
    assert {record["answer"] for record in records[:40]} == {f"question {number}" for number in range(40)}
    assert os.getpid() not in {record.get("process") for record in records}
    assert records[40]["error"] == {"type": "ValueError", "message": "no such thing"}
    assert "opened 1 of 2" in told or "opened 2 of 2" in told
    assert capfd.readouterr().out == "", "a worker's print must not run into rows on standard output"


def test_rows_about_the_same_documents_go_to_the_same_worker(tmp_path):
    names = [f"{name}.txt" for name in "abcd"]
    rows = [{"id": number, "question": "work 2000", "documents": [names[number % 4]]} for number in range(60)]
    records, _ = run(tmp_path, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    workers_of = {name: {record["process"] for record in records if record["documents"] == [name]} for name in names}
    # At the end a worker without rows of its own may take some of the other's.
    assert sum(len(workers) for workers in workers_of.values()) <= len(names) + 1


@unix
def test_a_crash_and_a_failed_device_cost_no_row_but_the_one_to_blame(tmp_path):
    once = f"once {tmp_path / 'crashed'}"
    records, told = run(tmp_path, jsonl("a", once, "crash", "b", "device", "c", "d", "e"))
    assert [record["id"] for record in records] == [*range(8)]
    errors = {record["id"]: record["error"]["message"] for record in records if "error" in record}
    assert list(errors) == [2, 4]
    assert "its process ended with signal 9" in errors[2]
    assert "the device failed (CUDA error: an illegal memory access" in errors[4]
    assert sum("is started again" in text for text in told) >= 5


def test_a_device_that_always_fails_ends_the_batch_and_resume_goes_on(tmp_path):
    with pytest.raises(SpecprefillError, match=r"the device failed .* 3 times in a row without an answer") as ended:
        run(tmp_path, jsonl("a", *["device"] * 4, "b"), workers=1)
    assert ended.value.exit_code == 1
    out = tmp_path / "out.jsonl"
    before = [json.loads(line)["id"] for line in out.read_bytes().splitlines()]
    assert before == [0]
    records, _ = run(tmp_path, jsonl("a", *["works"] * 4, "b"), workers=1)
    assert [record["id"] for record in records] == [*range(6)]
    assert not any("error" in record for record in records)


def test_what_the_user_must_mend_ends_the_batch_with_its_exit_code(tmp_path):
    with pytest.raises(SpecprefillError, match=r"^no such model$") as refused:
        run(tmp_path, jsonl("a"), opener=refusing_opener)
    assert refused.value.exit_code == 2


def test_rows_are_answered_before_a_pipe_ends():
    """The writer sends a row only after it has read the answer to the one before."""
    question_end, questions = os.pipe()
    answers, answer_end = os.pipe()

    def converse():
        with open(questions, "wb", buffering=0) as out, open(answers, "rb") as replies:
            for number in range(3):
                # The beginning of the next row is there already.
                out.write(b"%d\nquestion\r" % number if number else b"question\r0\nquestion\r")
                got.append(json.loads(replies.readline())["answer"])

    got = []
    partner = threading.Thread(target=converse, daemon=True)
    partner.start()
    with open(question_end, "rb") as source, open(answer_end, "wb") as sink, closing(Processes(opener, 2)) as pool:
        records = RowWriter(sink)
        run_rows(source_of(source), True, pool, lambda record: len(got) < 3 and records(record), Counter(), Count())
    partner.join(timeout=TIMEOUT)
    assert got == [f"question\r{number}" for number in range(3)]


@pytest.fixture
def driver(tmp_path):
    """A batch in another process, with two workers that are open, and its standard input."""
    command = [sys.executable, str(SCRIPT), "/dev/stdin", str(tmp_path / "out.jsonl"), "2"]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    driver.stdin.write(jsonl(*["work 100000000"] * 4))
    driver.stdin.flush()
    for _ in range(2):
        assert b"opened" in driver.stderr.readline()
    yield driver
    driver.kill()
    driver.communicate()


@unix
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_workers_end_with_their_driver(driver, tmp_path, name):
    """Also while they are busy, and while the input is open."""
    children = psutil.Process(driver.pid).children(recursive=True)
    assert len(children) >= 2
    driver.send_signal(getattr(signal, name))
    _, alive = psutil.wait_procs([*children, psutil.Process(driver.pid)], timeout=TIMEOUT)
    assert alive == []
    assert (tmp_path / "out.jsonl").read_bytes() == b""
