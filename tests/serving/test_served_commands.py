"""Commands with a server: the tests of the command line, and comparisons with runs without a server."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from specprefill_cli.serving.control import HAS_UNIX_SOCKETS
from tests.cli.test_batch import test_failed_rows_become_error_rows_and_overrides_apply  # noqa: F401
from tests.cli.test_command_line import (  # noqa: F401
    test_answer_goes_to_stdout_and_table_to_stderr,
    test_json_has_the_documented_keys,
    test_quiet_prints_only_the_answer,
    test_reads_document_from_standard_input,
)
from tests.cli.test_errors import bad_inputs, test_failures_are_one_line_and_exit_with_1  # noqa: F401
from tests.cli.test_plan import (  # noqa: F401
    test_best_passages_hold_the_answer_in_document_order,
    test_keep_ratio_bounds_the_text_and_ends_at_sentences,
    test_the_page_of_ask_is_written,
)
from tests.helpers.programs import run_main
from tests.helpers.samples import HANDBOOK, QUESTION, read_jsonl, write_jsonl
from tests.serving.conftest import running_server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_UNIX_SOCKETS, reason="needs Unix sockets")]
NOT_USED = re.compile(r"^specprefill: .*; running without it\n", re.MULTILINE)

# Times, memory and speeds.
MEASURED = re.compile(r"[\d,.]+ (ms|s|MiB|tokens/s)\b|about [\d.]+ m?s")
# Without a server, the expected speedup counts the KV that earlier rows of the batch left.
MEASURED_KEYS = set(
    "ttft_seconds startup_seconds expected_speedup phases tokens_per_second peak_memory_bytes speculation reused "
    "cached_tokens".split()
)


@pytest.fixture
def call(server):
    """Run `specprefill ARGUMENTS` with the server, and return exit code, standard output and standard error.

    Standard error is without the line that says why a command does not use the server.
    """

    def run(*arguments, stdin=b""):
        code, out, err = server.run(*arguments, stdin=stdin)
        return code, out, NOT_USED.sub("", err)

    return run


def drop_measurements(text, number=float):
    """Drop values that differ from run to run. number: reads a fraction, whose last digits depend on rows that share a pass."""
    lines = []
    for line in text.splitlines():
        if line.startswith("{"):
            record = json.loads(line, parse_float=number)
            lines.append({key: value for key, value in record.items() if key not in MEASURED_KEYS})
        elif not line.startswith(("reused", "TTFT", "  ")):
            lines.append(re.sub(r"\s+", " ", MEASURED.sub("#", line)))
    return lines


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask", HANDBOOK, QUESTION, "--verbose"),
        ("ask", HANDBOOK, "Who signs for the keys?", "--json", "--mode", "full"),
        ("passages", HANDBOOK, QUESTION, "--json"),
        # One row at a time, because rows that share a pass are rounded in another order.
        ("batch", "-", "--document", HANDBOOK, *"--max-new-tokens 8 --quiet --mode select --concurrency 1".split()),
    ],
    ids=lambda arguments: arguments[0],
)
def test_output_is_that_of_a_run_without_server(server, arguments):
    rows = f"{QUESTION}\nWhen are wages paid?\n".encode()
    # How many tokens are proposed depends on measured times.
    plain = {"SPECPREFILL_SPECULATE": "off"}
    # Twice, because the second one finds the document's KV.
    for _ in range(2):
        served = server.run(*arguments, stdin=rows, **plain)
    local = server.run(*arguments, "--no-server", stdin=rows, **plain)
    assert served[0] == local[0] == 0
    assert drop_measurements(served[1]) == drop_measurements(
        local[1], lambda number: pytest.approx(float(number), rel=1e-3)
    )
    assert drop_measurements(served[2]) == drop_measurements(local[2])


@pytest.mark.parametrize(
    "arguments", [("ask", HANDBOOK, QUESTION), ("ask", HANDBOOK, QUESTION, "--json"), ("passages", HANDBOOK, QUESTION)]
)
def test_client_imports_no_models(server, arguments):
    done = run_main(*arguments, "--quiet", environment=server.environment)
    assert not {"torch", "transformers", "numpy", "asyncio", "jinja2"} & done.modules
    assert done.err == ""
    assert "42 pence" in done.out


def test_paths_streams_and_variables_are_the_callers(server, tmp_path, monkeypatch):
    (tmp_path / "gate.md").write_text("The gate of the farm is dark green. " * 20)
    monkeypatch.chdir(tmp_path)
    code, out, _ = server.run("ask", "gate.md", "Which color is the gate?", "--json", SPECPREFILL_MAX_NEW_TOKENS="2")
    record = json.loads(out)
    assert (code, record["generated_tokens"]) == (0, 2)
    assert record["citations"] == [] or record["citations"][0]["document"] == "gate.md"


def test_a_command_with_other_settings_loads_its_own_session(server):
    arguments = ("passages", HANDBOOK, QUESTION, "--dtype", "bfloat16", "--scorer", "lexical", "--top", "1")
    code, out, err = server.run(*arguments)
    assert (code, "42 pence" in out) == (0, True)
    assert err == "specprefill: the running server has --dtype auto; running without it\n"


@contextlib.contextmanager
def running_batch(server):
    """A batch that has answered its first row, and waits for the next."""
    command = [sys.executable, "-m", "specprefill_cli", "batch", "--document", HANDBOOK, "--max-new-tokens", "8"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=server.environment, **pipes) as batch:
        batch.stdin.write(b"When are wages paid?\n")
        batch.stdin.flush()
        assert json.loads(batch.stdout.readline())["id"] == 1
        yield batch


def test_ctrl_c_reaches_the_command(server):
    with running_batch(server) as batch:
        batch.send_signal(signal.SIGINT)
        assert batch.wait(60) == 130
        assert b"interrupted after 1 rows; --out keeps rows for --resume" in batch.stderr.read()


def test_batch_says_how_to_go_on_when_the_server_is_killed():
    with running_server() as server, running_batch(server) as batch:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        out, err = batch.communicate(b"Who signs for the keys?\n", timeout=120)
        assert (batch.returncode, out) == (1, b"")
        assert b"the server has ended; run the same command with --out and --resume" in err


def test_batch_sends_several_rows_at_once(server, tmp_path):
    rows = write_jsonl(tmp_path / "rows.jsonl", *({"id": n, "question": f"Who signs for key {n}?"} for n in range(12)))
    before = server.answers()
    code, out, _ = server.run("batch", rows, "--document", HANDBOOK, "--max-new-tokens", "8", "--mode", "select")
    assert (code, [row["id"] for row in read_jsonl(out)]) == (0, [*range(12)])
    assert server.answers() == before + 12


def test_second_start_says_so(server):
    code, _, err = server.run("serve")
    assert code == 1
    assert "your server is running already; end it with" in err
    code, out, _ = server.run("serve", "--status")
    assert json.loads(out)["server"]["process"] == server.process.pid


def test_stop_drains_and_leaves_no_socket():
    with running_server() as server:
        folder = server.folder / "specprefill"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert server.run("serve", "--stop") == (0, "", "the server has stopped\n")
        assert server.process.wait(60) == 0
        assert not list(folder.glob("*.sock"))
        assert json.loads(server.run("serve", "--status")[1])["server"] is None
        assert server.run("serve", "--stop") == (0, "", "no server is running\n")


@pytest.mark.parametrize("stop", ["signal", "command"])
def test_a_server_that_loads_says_so_and_can_be_stopped(stop):
    with running_server(ready=False) as server:
        with server.over_socket() as client:
            status = None
            while status is None:
                assert server.process.poll() is None
                with contextlib.suppress(httpx.TransportError):
                    status = client.get("/healthz").json()["status"]
            if status == "loading":
                assert client.post("/v1/ask", json={"question": "Who?"}).status_code in (400, 503)
        if stop == "signal":
            server.process.send_signal(signal.SIGINT)
        else:
            assert server.run("serve", "--stop")[0] == 0
        assert server.process.wait(60) == 0
        assert not (server.folder / "specprefill" / "http.sock").exists()


def test_clients_of_a_load_get_the_answers_of_a_single_client(server):
    load = "bench throughput --server --clients 3 --seconds 2 --json --quiet"
    code, out, err = server.run(*load.split())
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["rows"]
    assert row["answers"] >= row["clients"] == 3
    assert row["errors"] == 0
    assert row["same_answer"] == row["questions"] == 30
    assert 0 < row["ttft_median"] <= row["ttft_p99"]
    assert row["memory_late_bytes"] > 0
