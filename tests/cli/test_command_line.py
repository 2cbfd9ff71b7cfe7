"""The command line: streams, exit codes, one-line errors, bad inputs."""

import json
import os
import shlex
import signal
import subprocess
import sys
from io import TextIOWrapper
from pathlib import Path

import pytest

from specprefill_cli.answering import stream as answer_stream
from specprefill_cli.lab.benchmarks.prefill import QUESTION, prompt_of_length
from specprefill_cli.lab.evaluation import runner
from specprefill_cli.settings import Settings
from tests.helpers.samples import HANDBOOK, read_jsonl, write_jsonl

PHASES = "tokenize draft_prefill look_ahead scoring selection mapping checkpoints target_prefill first_token".split()


def test_answer_goes_to_stdout_and_table_to_stderr(call):
    code, out, err = call("ask", HANDBOOK, "When does the canteen open?", "--max-new-tokens", "12")
    assert code == 0
    assert len(out.strip().splitlines()) == 1
    for word in ("mode", "TTFT", "draft prefill", "target prefill", "kept", "recompute", "drop", "p. "):
        assert word in err
    assert "TTFT" not in out


def test_json_has_the_documented_keys(call):
    options = "--json --mode select --keep 0.2 --max-new-tokens 5"
    code, out, err = call("ask", HANDBOOK, "Who is it?", *options.split())
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert record["schema"] == 1
    assert list(record["phases"]) == PHASES
    assert sum(record["phases"].values()) == pytest.approx(record["ttft_seconds"], rel=0.02)
    assert record["phases"]["draft_prefill"] > 0
    assert record["kept_tokens"] / record["prompt_tokens"] == pytest.approx(record["kept_ratio"])
    assert record["kept_ratio"] < 0.22
    assert {span["fate"] for span in record["spans"]} == {"recompute", "drop"}
    assert all(span["pages"] and span["start"] < span["end"] for span in record["spans"])
    assert record["pair"] == {"draft": "tiny:draft", "target": "tiny:target"}


def test_quiet_prints_only_the_answer(call, call_json):
    question = "What is the notice period during probation?"
    answer = call_json("ask", HANDBOOK, question)["answer"]
    assert call("ask", HANDBOOK, question, "--quiet") == (0, f"{answer}\n", "")


def test_reads_document_from_standard_input(call_json):
    document = b"The gate of the farm is dark green. " * 5
    assert call_json("ask", "-", "Which color is the gate?", stdin=document)["mode"] == "full"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", HANDBOOK, "Who?", "--json", "--mode", "full"),
        ("batch", "-", "--document", HANDBOOK, "--mode", "full", "--max-new-tokens", "2", "--quiet"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_closed_pipe_is_no_error(arguments):
    reader = f"{shlex.join((sys.executable, '-m', 'specprefill_cli', *arguments))} | head -c 1"
    shell = ["bash", "-o", "pipefail", "-c", reader]
    done = subprocess.run(shell, input="Who?\n" * 5, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


@pytest.mark.slow
def test_evaluate_and_bench_print_their_rows_as_json(call, call_json, tmp_path):
    row = {"context": "The gate is green. " * 40, "question": "Which color?", "answers": ["green"]}
    questions = write_jsonl(tmp_path / "q.jsonl", *(row | {"id": name} for name in "abc"))
    answers = tmp_path / "answers.jsonl"
    options = ("--keep", "0.3,auto", "--scorer", "question,random", "--answers", str(answers))
    record = call_json("evaluate", questions, *options)
    earlier = read_jsonl(answers.read_text())
    assert {row["id"] for row in earlier} == set("abc")
    assert [row["mode"] for row in record["rows"]] == ["full"] + ["select"] * 4
    assert set(record["rows"][1]) >= set(
        "mode keep scorer n em f1 f1_low f1_high f1_delta f1_delta_low f1_delta_high ttft_seconds ttft_ratio kept_ratio "
        "answer_kept answer_kept_low answer_kept_high".split()
    )
    assert record["rows"][0]["answer_kept"] == 100
    # The earlier run took a thousand times as long, and gave another first answer.
    changed = [{**row, "ttft_seconds": 1_000 * row["ttft_seconds"]} for row in earlier]
    changed[0]["answer"] = "another"
    write_jsonl(tmp_path / "before.jsonl", *changed)
    again = call_json("evaluate", questions, *options, "--against", str(tmp_path / "before.jsonl"))["changes"]
    assert [(row["mode"], row["changed"]) for row in again] == [("full", ["a"])] + [("select", [])] * 4
    assert all(0 < row["ttft_seconds"] < 1 and row["n"] == 3 for row in again)
    plot = tmp_path / "speedup.svg"
    sizes = ("--lengths", "300", "--keep", "0.2", "--repeat", "1")
    record = call_json("bench", "prefill", *sizes, "--plot", str(plot))
    modes = [(row["length"], row["mode"]) for row in record["rows"]]
    assert modes == [(300, "full"), (300, "select"), (300, "transformers")]
    assert ">select, keep 0.2<" in plot.read_text(encoding="utf-8")


@pytest.mark.parametrize("options", [("--modes", "full"), ("--confirm", "--keep", "0.5")])
def test_evaluate_leaves_out_long_documents_with_a_warning(call, tmp_path, options):
    rows = [
        {"id": "short", "context": "The gate is green.", "question": "Which color is the gate?", "answers": ["green"]},
        {"id": "long", "context": "The gate is green. " * 5_000, "question": "Which color?", "answers": ["green"]},
    ]
    questions = write_jsonl(tmp_path / "q.jsonl", *rows)
    code, out, err = call("evaluate", questions, *options, "--json")
    assert code == 3
    assert "question long was left out: the prompt has" in " ".join(err.split())
    record = json.loads(out)
    assert record["left_out"] == ["long"]
    assert record["rows"][0]["n"] == 1
    write_jsonl(tmp_path / "q.jsonl", rows[1])
    code, out, err = call("evaluate", questions, *options, "--json")
    assert (code, out) == (1, "")
    assert "does not fit" in err


def test_interrupted_evaluation_prints_partial_figures(call_json, tmp_path, monkeypatch):
    row = {"context": "The gate is green.", "question": "Which color is the gate?", "answers": ["green"]}
    questions = write_jsonl(tmp_path / "q.jsonl", row, row, row, row)
    calls, ask = [], runner.ask_and_check

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return ask(*arguments)

    monkeypatch.setattr(runner, "ask_and_check", interrupt)
    assert call_json("evaluate", questions, "--modes", "full", code=130)["rows"][0]["n"] == 2


@pytest.mark.slow
def test_bench_decode_compares_plain_and_speculative_decoding(call_json):
    sizes = ("--length", "400", "--repeat", "1", "--max-new-tokens", "12")
    record = call_json("bench", "decode", *sizes, "--speculate", "auto,3")
    order = [("quote", "auto"), ("quote", "3"), ("short", "auto"), ("short", "3")]
    assert [(row["task"], row["speculate"]) for row in record["rows"]] == order
    assert all(row["identical"] and row["speedup"] > 0 for row in record["rows"])
    # Stop tokens do not end a quote, so all four have the requested length.
    assert record["rows"][0]["answer_tokens"] == record["rows"][1]["answer_tokens"] == 48
    assert record["rows"][1]["acceptance_rate"] > 0
    assert set(record) >= {"schema", "rows", "host", "versions"}


def test_bench_prompts_have_the_given_length(tiny_session):
    for length in (200, 5_000):
        collection = prompt_of_length(tiny_session, length, Settings())
        prompt_tokens = tiny_session.request(collection, QUESTION, Settings()).prompt.length
        assert abs(prompt_tokens - length) <= 4


def test_the_question_is_read_from_standard_input(call):
    arguments = ("--quiet", "--mode", "full", "--max-new-tokens", "6")
    code, out, _ = call("ask", HANDBOOK, "-", *arguments, stdin=b"Who is it?\n")
    assert (code, out) == (0, call("ask", HANDBOOK, "Who is it?", *arguments)[1])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk that Linux offers")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",), ("config", "show"), ("config", "show", "--json"),
        ("ask", HANDBOOK, "Who?", "--quiet", "--mode", "full", "--max-new-tokens", "2"),
        ("batch", "--quiet", "--document", HANDBOOK, "--mode", "full", "--max-new-tokens", "2"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)  # fmt: skip
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_a_full_disk_is_one_clear_line(call, monkeypatch, arguments, buffered):
    full_disk = open("/dev/full", "w") if buffered else TextIOWrapper(open("/dev/full", "wb", 0), write_through=True)  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full_disk)
    code, _, err = call(*arguments, stdin=b"Who?")
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("specprefill: ")
    assert "cannot be written (No space left on device); make room" in line


@pytest.mark.parametrize("arguments", [("ask", HANDBOOK, "-"), ("ask", "-", "Who?")])
def test_closed_standard_input_is_empty(call, monkeypatch, arguments):
    monkeypatch.setattr("tests.conftest.TextIOWrapper", lambda _: None)
    code, _, err = call(*arguments, stdin=b"lost")
    assert (code, "is empty" in err) == (2 if arguments[-1] == "-" else 1, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_ask_with_its_code_and_prints_its_object(call, monkeypatch, number, code):
    def decode(*_, emit, **__):
        yield from emit(300)
        os.kill(os.getpid(), number)
        yield from emit(300)

    monkeypatch.setattr(answer_stream, "decode", decode)
    exit_code, out, err = call("ask", HANDBOOK, "Who is it?", "--json", "--mode", "full")
    record = json.loads(out)
    assert (exit_code, record["generated_tokens"], "Traceback" in err) == (code, 1, False)
    assert "interrupted: the answer is incomplete" in record["warnings"]


def test_questions_may_hold_lone_surrogates(call_json, tmp_path):
    (tmp_path / "a.txt").write_text("The gate is green. " * 20)
    for command in ("ask", "plan"):
        assert call_json(command, str(tmp_path / "a.txt"), "Which colour \ud83d?")["schema"] == 1
    row = {"context": "The \ud83d gate is green.", "question": "Who \ud83d?", "answers": ["green"]}
    questions = write_jsonl(tmp_path / "rows.jsonl", row)
    assert call_json("evaluate", questions, "--modes", "full", "--max-new-tokens", "2")["rows"][0]["n"] == 1


@pytest.mark.slow
def test_closed_standard_error_is_no_failure(tmp_path):
    (tmp_path / "a.txt").write_text("The gate is green. " * 20)
    command = f'"{sys.executable}" -m specprefill_cli ask "{tmp_path / "a.txt"}" "Which?" --max-new-tokens 4 2>&-'
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert "unexpected" not in done.stdout
