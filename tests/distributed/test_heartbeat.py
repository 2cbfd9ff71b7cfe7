"""When a rank counts as lost, and what is rejected before any rank starts."""

import time

import pytest
from torch.distributed import HashStore

from specprefill_cli.distributed import heartbeat as module
from specprefill_cli.distributed import launch, ranks
from specprefill_cli.distributed.heartbeat import END, Heartbeat, beat_key
from specprefill_cli.distributed.launch import WorkerProcesses, in_run, ranks_for
from specprefill_cli.distributed.ranks import ALONE, Ranks
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.loading import load_model
from specprefill_cli.models.placement import Placement, draft_placement, place_of_rank


class ProcessEnded(Exception):
    """Raised instead of ending the process."""


def end_process(code):
    raise ProcessEnded(code)


@pytest.fixture
def heartbeat(monkeypatch):
    """Heartbeat of rank 0 in a run of two ranks, after one heartbeat from rank 1."""
    monkeypatch.setattr(module, "BEAT", 0.001)
    monkeypatch.setattr(module, "SILENCE", 0.05)
    monkeypatch.setattr(module.os, "_exit", end_process)
    heartbeat = Heartbeat(0, 2, HashStore())
    heartbeat.store.add(beat_key(1), 1)
    return heartbeat


def test_lost_rank_ends_the_run_within_half_a_minute():
    assert module.BEAT + module.SILENCE + ranks.GRACE + launch.CLOSING < 30


def test_silent_rank_ends_the_run_with_one_line(heartbeat, capsys):
    with pytest.raises(ProcessEnded, match="1"):
        heartbeat.run()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("specprefill: rank 1 stopped answering: no heartbeat for ")
    assert line.endswith("the run has ended, start it again")


def test_rank_that_sends_heartbeats_is_not_lost(heartbeat):
    for _ in range(3):
        heartbeat.last_beats[1] = (heartbeat.last_beats[1][0], time.monotonic() - 60)
        heartbeat.store.add(beat_key(1), 1)
        assert heartbeat.reason_to_end() is None


def test_starting_rank_gets_a_longer_timeout(monkeypatch):
    starting = Heartbeat(0, 2, HashStore())
    starting.last_beats[1] = (0, time.monotonic() - module.SILENCE - 1)
    assert starting.reason_to_end() is None
    starting.last_beats[1] = (0, time.monotonic() - module.STARTING - 1)
    assert starting.reason_to_end().startswith("rank 1 stopped answering")


def test_failed_rank_ends_the_run_with_its_error(heartbeat, capsys):
    heartbeat.store.set(END, "rank 1 failed: no room\x1b[31m left")
    with pytest.raises(ProcessEnded, match="1"):
        heartbeat.run()
    assert capsys.readouterr().err.startswith("specprefill: rank 1 failed: no room [31m left; the run has ended")


def test_other_ranks_end_quietly_with_rank_0(heartbeat, capsys):
    worker = Heartbeat(1, 2, heartbeat.store)
    heartbeat.start()
    Ranks(0, 2, heartbeat=heartbeat).finish()
    with pytest.raises(ProcessEnded, match="0"):
        worker.run()
    assert capsys.readouterr() == ("", "")


def test_failure_on_rank_0_alone_ends_the_run(heartbeat, monkeypatch, capsys):
    monkeypatch.setattr(Ranks, "agree", lambda _ranks, value: value)
    with pytest.raises(ProcessEnded), Ranks(0, 2, heartbeat=heartbeat).together(print):
        raise MemoryError("no room left")
    assert capsys.readouterr().err.startswith("specprefill: rank 0 failed: no room left")


def test_last_log_lines_of_a_dead_process_are_shown(tmp_path, monkeypatch):
    package = tmp_path / "specprefill_cli"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit('first\\n' * 9 + 'no room left')")
    monkeypatch.chdir(tmp_path)
    workers = WorkerProcesses(2, {})
    result = workers.context.wait(60, period=0.05)
    assert result.is_failed()
    *log, reason = workers.failure().splitlines()
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
    with ALONE.together(print):
        assert ALONE.agree("value") == ALONE.from_leader(lambda: "value") == "value"


def test_rejects_named_devices_with_tensor_parallelism():
    with pytest.raises(UsageError, match="--devices cuda:1: with tensor parallel"):
        place_of_rank("cuda:1", Ranks(0, 2))
    placement = place_of_rank("auto", Ranks(0, 2))
    assert placement.shards == 2
    assert draft_placement(placement).shards == 2


def test_rejects_more_shards_than_heads():
    with pytest.raises(
        SpecprefillError, match=r"2 key-value heads cannot be divided among 8 ranks; use .* 1 or 2 or 4"
    ):
        load_model("tiny:target", Placement(None, shards=8), "auto", offline=True)


def test_a_draft_that_cannot_be_divided_is_whole_on_every_rank():
    draft = load_model("tiny:draft", Placement(None, shards=8), "auto", offline=True, may_be_whole=True)
    assert draft.shards == 1
    (warning,) = draft.warnings
    assert "cannot be divided among 8 ranks; every rank runs all of it" in warning
