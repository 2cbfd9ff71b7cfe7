"""The command line: streams, exit codes, one-line errors, bad inputs."""

import json
import os
import signal
import subprocess
import sys
import types
from io import TextIOWrapper
from pathlib import Path

import pytest

from specprefill_cli.resources import packaged_folder

HANDBOOK = str(packaged_folder("sample_docs") / "harbour-handbook.pdf")
PHASES = "tokenize draft_prefill look_ahead scoring selection mapping checkpoints target_prefill first_token".split()


def test_answer_goes_to_stdout_and_table_to_stderr(call):
    code, out, err = call("ask", HANDBOOK, "When does the canteen open?", "--max-new-tokens", "12")
    assert code == 0
    assert len(out.strip().splitlines()) == 1
    for word in ("mode", "TTFT", "draft prefill", "target prefill", "kept", "recompute", "drop", "p. "):
        assert word in err
    assert "TTFT" not in out


def test_json_has_the_documented_keys(call):
    code, out, err = call(
        "ask", HANDBOOK, "Who is it?", "--json", "--mode", "select", "--keep", "0.2", "--max-new-tokens", "5"
    )
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


def test_quiet_prints_only_the_answer(call):
    code, out, err = call("ask", HANDBOOK, "Who?", "--quiet", "--no-stream", "--mode", "full", "--max-new-tokens", "3")
    assert (code, err) == (0, "")
    assert out.endswith("\n")


def test_streamed_answer_equals_collected_answer(call):
    question = "What is the notice period during probation?"
    streamed = call("ask", HANDBOOK, question, "--quiet")[1]
    collected = call("ask", HANDBOOK, question, "--quiet", "--no-stream")[1]
    assert streamed.strip() == collected.strip() != ""


def test_reads_document_from_standard_input(call):
    code, out, _ = call(
        "ask", "-", "Which color is the gate?", "--json", stdin=b"The gate of the farm is dark green. " * 5
    )
    assert code == 0
    assert json.loads(out)["mode"] == "full"


def test_help_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['specprefill', '--help']\n"
        "from specprefill_cli.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'pypdf', 'bs4', 'accelerate'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ask" in done.stdout


@pytest.mark.slow
def test_closed_pipe_is_no_error():
    reader = f'{sys.executable} -m specprefill_cli ask "{HANDBOOK}" "Who?" --json --mode full | head -c 1'
    done = subprocess.run(["bash", "-o", "pipefail", "-c", reader], capture_output=True, text=True)
    assert "rror" not in done.stderr
    assert done.stdout == "{"
    assert done.returncode == 0


def test_rejects_distractors_without_contexts(call, tmp_path):
    (tmp_path / "a.txt").write_text("The gate is green.")
    path = tmp_path / "q.jsonl"
    path.write_text('{"documents": ["a.txt"], "question": "Which color?", "answers": ["green"]}\n')
    code, _, err = call("evaluate", str(path), "--distractors", "2")
    assert code == 2
    assert "leave it out" in err


@pytest.mark.slow
def test_evaluate_and_bench_print_their_rows_as_json(call, tmp_path):
    rows = [
        {"id": "a", "context": "The gate is green. " * 40, "question": "Which color is the gate?", "answers": ["green"]}
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows * 3)))
    answers = tmp_path / "answers.jsonl"
    options = ("--keep", "0.3,auto", "--scorer", "question,random", "--json", "--answers", str(answers))
    code, out, _ = call("evaluate", str(tmp_path / "q.jsonl"), *options)
    assert code == 0
    assert {json.loads(line)["id"] for line in answers.read_text().splitlines()} == {"a"}
    record = json.loads(out)
    assert [row["mode"] for row in record["rows"]] == ["full"] + ["select"] * 4
    assert set(record["rows"][1]) >= set(
        "mode keep scorer n em f1 f1_low f1_high f1_delta f1_delta_low f1_delta_high ttft_seconds ttft_ratio kept_ratio "
        "answer_kept answer_kept_low answer_kept_high".split()
    )
    assert record["rows"][0]["answer_kept"] == 100
    plot = tmp_path / "speedup.svg"
    sizes = ("--lengths", "300", "--keep", "0.2", "--repeat", "1")
    code, out, _ = call("bench", "prefill", *sizes, "--json", "--plot", str(plot))
    assert code == 0
    record = json.loads(out)
    modes = [(row["length"], row["mode"]) for row in record["rows"]]
    assert modes == [(300, "full"), (300, "select"), (300, "transformers")]
    assert record["rows"][0]["speedup"] == 1
    assert ">select, keep 0.2<" in plot.read_text(encoding="utf-8")
    code, out, _ = call("bench", "prefill", *sizes, "--no-baseline")
    assert code == 0
    assert "transformers" not in out
    assert set(record) >= {"schema", "rows", "host", "versions"}


def test_evaluate_leaves_out_long_documents_with_a_warning(call, tmp_path):
    rows = [
        {"id": "short", "context": "The gate is green.", "question": "Which color is the gate?", "answers": ["green"]},
        {"id": "long", "context": "The gate is green. " * 5_000, "question": "Which color?", "answers": ["green"]},
    ]
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    code, out, err = call("evaluate", str(path), "--modes", "full", "--json")
    assert code == 3
    assert "question long was left out: the prompt has" in " ".join(err.split())
    record = json.loads(out)
    assert record["left_out"] == ["long"]
    assert record["rows"][0]["n"] == 1
    path.write_text(json.dumps(rows[1]))
    code, out, err = call("evaluate", str(path), "--modes", "full", "--json")
    assert (code, out) == (1, "")
    assert "does not fit" in err


def test_interrupted_evaluation_prints_partial_figures(call, tmp_path, monkeypatch):
    row = {"context": "The gate is green.", "question": "Which color is the gate?", "answers": ["green"]}
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(json.dumps(row) for _ in range(4)))
    from specprefill_cli.lab.evaluation import runner

    calls, ask = [], runner.ask_and_check

    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return ask(*arguments)

    monkeypatch.setattr(runner, "ask_and_check", interrupt)
    code, out, _ = call("evaluate", str(path), "--modes", "full", "--json")
    assert code == 130
    assert json.loads(out)["rows"][0]["n"] == 2


@pytest.mark.slow
def test_bench_peer_measures_llama_cpp_and_the_modes(call, monkeypatch):
    server_options = []

    class Server:
        def __init__(self, options):
            server_options.append(options)

        def handle_completions(self, request):
            timings = {"predicted_per_second": request["max_tokens"]}
            return {"choices": [{"logprobs": {"content": [{"id": request["prompt"][-1]}]}}], "timings": timings}

    def make_options():
        parts = {name: types.SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")}
        return types.SimpleNamespace(**parts)

    monkeypatch.setitem(sys.modules, "xllamacpp", types.SimpleNamespace(Server=Server, CommonParams=make_options))
    sizes = ("--lengths", "300", "--keep", "0.2", "--repeat", "1", "--json")
    code, out, err = call("bench", "peer", *sizes)
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert [row["mode"] for row in rows] == ["full", "select", "llama.cpp"]
    assert rows[2]["decode_tokens_per_second"] > 1
    assert server_options[0].n_ctx >= 300


@pytest.mark.slow
def test_bench_decode_compares_plain_and_speculative_decoding(call):
    sizes = ("--length", "400", "--repeat", "1", "--max-new-tokens", "12")
    code, out, _ = call("bench", "decode", *sizes, "--speculate", "auto,3", "--json")
    assert code == 0
    record = json.loads(out)
    assert [(row["task"], row["speculate"]) for row in record["rows"]] == [
        ("quote", "auto"),
        ("quote", "3"),
        ("short", "auto"),
        ("short", "3"),
    ]
    assert all(row["identical"] and row["speedup"] > 0 for row in record["rows"])
    # Stop tokens do not end a quote, so all four have the requested length.
    assert record["rows"][0]["answer_tokens"] == record["rows"][1]["answer_tokens"] == 48
    assert record["rows"][1]["acceptance_rate"] > 0
    assert set(record) >= {"schema", "rows", "host", "versions"}


@pytest.mark.slow
def test_json_describes_speculation(call):
    code, out, _ = call("ask", HANDBOOK, "Who is it?", "--json", "--speculate", "3", "--max-new-tokens", "24")
    assert code == 0
    record = json.loads(out)
    assert record["speculation"] == {"state": "on", "reason": None}
    assert set(record) >= {"acceptance_rate", "accepted_length_mean", "accepted_histogram", "proposer"}
    assert json.loads(call("ask", HANDBOOK, "Who is it?", "--json", "--speculate", "off")[1])["acceptance_rate"] is None


def test_bench_prompts_have_the_given_length(tiny_session):
    from specprefill_cli.lab.benchmarks.prefill import QUESTION, prompt_of_length
    from specprefill_cli.settings import Settings

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
        ("--help",),
        ("--version",),
        ("config", "show"),
        ("config", "show", "--json"),
        ("plan", HANDBOOK, "Who?", "--quiet"),
        ("ask", HANDBOOK, "Who?", "--quiet", "--mode", "full", "--max-new-tokens", "2"),
        ("ask", HANDBOOK, "Who?", "--quiet", "--mode", "full", "--max-new-tokens", "2", "--json"),
        ("batch", "--quiet", "--document", HANDBOOK, "--mode", "full", "--max-new-tokens", "2"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_a_full_disk_is_one_clear_line(call, monkeypatch, arguments, buffered):
    full_disk = open("/dev/full", "w") if buffered else TextIOWrapper(open("/dev/full", "wb", 0), write_through=True)  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full_disk)
    code, _, err = call(*arguments, stdin=b"Who?")
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("specprefill: ")
    assert "cannot be written (No space left on device); make room" in line


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_ask_with_its_code_and_prints_its_object(call, monkeypatch, number, code):
    from specprefill_cli.answering import stream as answer_stream

    def decode(*_, emit, **__):
        yield from emit(300)
        os.kill(os.getpid(), number)
        yield from emit(300)

    monkeypatch.setattr(answer_stream, "decode", decode)
    exit_code, out, err = call("ask", HANDBOOK, "Who is it?", "--json", "--mode", "full")
    record = json.loads(out)
    assert (exit_code, record["generated_tokens"], "Traceback" in err) == (code, 1, False)
    assert "interrupted: the answer is incomplete" in record["warnings"]


def test_questions_may_hold_lone_surrogates(call, tmp_path):
    (tmp_path / "a.txt").write_text("The gate is green. " * 20)
    for command in ("ask", "plan"):
        code, out, _ = call(command, str(tmp_path / "a.txt"), "Which colour \ud83d?", "--json")
        assert (code, json.loads(out)["schema"]) == (0, 1)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        json.dumps({"context": "The \ud83d gate is green.", "question": "Who \ud83d?", "answers": ["green"]})
    )
    code, out, _ = call("evaluate", str(rows), "--modes", "full", "--json", "--max-new-tokens", "2")
    assert (code, json.loads(out)["rows"][0]["n"]) == (0, 1)


@pytest.mark.slow
def test_closed_standard_error_is_no_failure(tmp_path):
    (tmp_path / "a.txt").write_text("The gate is green. " * 20)
    command = (
        f'"{sys.executable}" -m specprefill_cli ask "{tmp_path / "a.txt"}" "Which colour?" --max-new-tokens 4 2>&-'
    )
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, check=False, text=True)
    assert done.returncode == 0
    assert "unexpected" not in done.stdout
