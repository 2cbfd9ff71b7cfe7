"""What the line about a lost rank says, and what is rejected before any rank starts."""

import sys

import pytest
from torch.distributed import HashStore

from specprefill_cli import distributed
from specprefill_cli.distributed import ALONE, Ranks, end_process, launch
from specprefill_cli.distributed.launch import RankProcesses, failure_of, in_run, ranks_for
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.loading import load_model
from specprefill_cli.models.machine.placement import Placement, draft_placement, place_of_rank


@pytest.fixture(autouse=True)
def exits(monkeypatch):
    monkeypatch.setattr(distributed.os, "_exit", sys.exit)


def test_no_control_character_of_a_log_reaches_the_terminal(capsys):
    with pytest.raises(SystemExit, match="1"):
        end_process("rank 1 | first\nrank 1 failed: no room\x1b[31m left")
    first, last = capsys.readouterr().err.splitlines()
    assert first == "rank 1 | first"
    assert last == "specprefill: rank 1 failed: no room [31m left; the run has ended, start it again"


def test_failure_on_rank_0_alone_ends_the_run(monkeypatch, capsys):
    monkeypatch.setattr(Ranks, "broadcast", lambda _ranks, value: value)
    with pytest.raises(SystemExit), Ranks(0, 2, store=HashStore()).run_on_all_ranks(print):
        raise MemoryError("no room left")
    assert capsys.readouterr().err.startswith("specprefill: rank 0 failed: no room left")


def test_last_log_lines_of_a_dead_process_are_shown(tmp_path, monkeypatch):
    package = tmp_path / "specprefill_cli"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit('first\\n' * 9 + 'no room left')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RankProcesses, "watch", lambda _workers: None)
    workers = RankProcesses(2, {})
    *log, reason = failure_of(workers.context.wait(60, period=0.05)).splitlines()
    assert log[-1] == "rank 1 | no room left"
    assert len(log) == launch.SHOWN_LINES
    assert reason == "rank 1 stopped answering: its process ended with exit code 1"
    workers.close(keep_logs=False)
    assert not workers.logs.exists()


def test_single_process_has_no_other_ranks():
    assert not in_run({})
    assert not in_run({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"})
    assert in_run({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"})
    assert ranks_for(1) is ALONE
    with ALONE.run_on_all_ranks(print):
        assert ALONE.broadcast("value") == ALONE.compute_on_rank_0(lambda: "value") == "value"


def test_rejects_named_devices_with_tensor_parallelism():
    with pytest.raises(UsageError, match="--devices cuda:1: with tensor parallel"):
        place_of_rank("cuda:1", Ranks(0, 2))
    placement = place_of_rank("auto", Ranks(0, 2))
    assert placement.shards == 2
    assert draft_placement(placement).shards == 1


@pytest.mark.parametrize("shards", [3, 4, 8])
def test_a_target_whose_heads_cannot_be_divided_evenly_is_refused(shards):
    message = rf"its key-value heads \(2\) cannot be divided evenly among {shards} ranks; use --tensor-parallel 1 or 2$"
    with pytest.raises(SpecprefillError, match=message):
        load_model("tiny:target", Placement(None, shards=shards), "auto", offline=True)
