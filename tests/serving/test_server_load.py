"""`bench throughput --server`: clients of a running server, and its errors."""

import json
import os
import subprocess
import sys

import pytest

from specprefill_cli.serving.listening import HAS_UNIX_SOCKETS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_UNIX_SOCKETS, reason="needs Unix sockets"),
]


def test_clients_get_the_answers_of_a_single_client(server):
    code, out, err = server.run(
        "bench", "throughput", "--server", "--clients", "3", "--seconds", "2", "--json", "--quiet"
    )
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["rows"]
    assert row["answers"] >= row["clients"] == 3
    assert row["errors"] == 0
    assert row["same_answer"] == row["questions"] == 30
    assert 0 < row["ttft_median"] <= row["ttft_p99"]
    assert row["memory_late_bytes"] > 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [([], "no server is running"), (["--keep", "0.1"], "give it only --clients and --seconds")],
)
def test_errors_are_one_line(tmp_path, options, complaint):
    command = [sys.executable, "-m", "specprefill_cli", "bench", "throughput", "--server", *options]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120, text=True)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
