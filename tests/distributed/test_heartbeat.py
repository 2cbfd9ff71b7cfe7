"""Which rank counts as lost, and when; and what is refused before any rank is started."""

import time

import pytest
from torch.distributed import HashStore

from specprefill_cli.distributed import heartbeat as module
from specprefill_cli.distributed import processes, ranks
from specprefill_cli.distributed.commands import Rollback
from specprefill_cli.distributed.heartbeat import END, Heartbeat, beat_key
from specprefill_cli.distributed.launch import in_run, ranks_for, refuse_ranks
from specprefill_cli.distributed.processes import WorkerProcesses
from specprefill_cli.distributed.ranks import ALONE, ConnectedRanks, Ranks
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.loading import load_model
from specprefill_cli.models.placement import Placement, place_of_rank, roomiest


class ProcessEnded(Exception):
    """Stands for the end of the process."""


def end_process(code):
    raise ProcessEnded(code)


@pytest.fixture
def heartbeat(monkeypatch):
    """Rank 0's heartbeat in a run of two, of which rank 1 has sent one."""
    monkeypatch.setattr(module, "BEAT", 0.001)
    monkeypatch.setattr(module, "SILENCE", 0.05)
    monkeypatch.setattr(module.os, "_exit", end_process)
    heartbeat = Heartbeat(0, 2, HashStore())
    heartbeat.store.add(beat_key(1), 1)
    return heartbeat


def test_lost_rank_ends_the_run_within_half_a_minute():
    assert module.BEAT + module.SILENCE + ranks.GRACE + processes.CLOSING < 30


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


def test_rank_has_longer_to_start_than_between_heartbeats(monkeypatch):
    starting = Heartbeat(0, 2, HashStore())
    starting.last_beats[1] = (0, time.monotonic() - module.SILENCE - 1)
    assert starting.reason_to_end() is None
    starting.last_beats[1] = (0, time.monotonic() - module.STARTING - 1)
    assert starting.reason_to_end().startswith("rank 1 stopped answering")


def test_failed_rank_ends_the_run_with_its_reason(heartbeat, capsys):
    heartbeat.store.set(END, "rank 1 failed: no room\x1b[31m left")
    with pytest.raises(ProcessEnded, match="1"):
        heartbeat.run()
    assert capsys.readouterr().err.startswith("specprefill: rank 1 failed: no room [31m left; the run has ended")


def test_other_ranks_end_with_rank_0_and_print_nothing(heartbeat, capsys):
    worker = Heartbeat(1, 2, heartbeat.store)
    heartbeat.start()
    ConnectedRanks(0, 2, heartbeat=heartbeat).finish()
    with pytest.raises(ProcessEnded, match="0"):
        worker.run()
    assert capsys.readouterr() == ("", "")


def test_failure_of_rank_0_alone_ends_the_run(heartbeat, monkeypatch, capsys):
    monkeypatch.setattr(ConnectedRanks, "agree", lambda _ranks, value: value)
    with pytest.raises(ProcessEnded), ConnectedRanks(0, 2, heartbeat=heartbeat).together(Rollback(1)):
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
    assert len(log) == processes.SHOWN_LINES
    assert reason == "rank 1 stopped answering: its process ended with exit code 1"
    workers.close(keep_logs=False)
    assert not workers.logs.exists()


def test_one_process_leads_itself():
    assert not in_run({})
    assert not in_run({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"})
    assert in_run({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"})
    assert ranks_for(1) is ALONE
    with ALONE.together(Rollback(0)):
        assert ALONE.agree("value") == ALONE.from_leader(lambda: "value") == "value"


def test_work_for_one_process_is_refused():
    refuse_ranks(1, "calibrate")
    with pytest.raises(UsageError, match="calibrate runs in one process"):
        refuse_ranks(2, "calibrate")


def test_devices_by_name_are_refused_with_ranks():
    with pytest.raises(UsageError, match="--devices cuda:1: with tensor parallel"):
        place_of_rank("cuda:1", Ranks(0, 2))
    place = place_of_rank("auto", Ranks(0, 2))
    assert place.shards == 2
    assert roomiest(place).shards == 1


def test_heads_that_cannot_be_divided_are_refused():
    with pytest.raises(SpecprefillError, match=r"2 key-value heads cannot be divided among 4 ranks; use .* 1 or 2"):
        load_model("tiny:target", Placement(None, shards=4), "auto", offline=True)
