"""`bench throughput --server`: clients of a running server, and its errors."""

import json

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
