"""Who is missed, and when; and what is refused before any rank is started."""

import json
import threading
from dataclasses import asdict

import pytest
from torch.distributed import HashStore

from specprefill_cli.distributed import heartbeat as liveness
from specprefill_cli.distributed import ranks as distributed
from specprefill_cli.distributed.heartbeat import Sign, Watch, await_all, key
from specprefill_cli.distributed.launch import in_run, ranks_for, refuse_ranks
from specprefill_cli.distributed.ranks import ALONE, Ranks
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.loading import load_model
from specprefill_cli.models.placement import Placement, place_of_rank, roomiest


class Left(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def watch(monkeypatch):
    """Rank 0's watch over rank 1, which has given one sign."""
    monkeypatch.setattr(liveness, "BEAT", 0.001)
    monkeypatch.setattr(liveness, "GRACE", 0.005)

    def leave(_watch, reason):
        raise Left(reason)

    monkeypatch.setattr(Watch, "leave", leave)
    watch = Watch(HashStore(), 0, 2, silence=0.05)
    give(watch, Sign())
    return watch


def give(watch, sign):
    watch.store.set(key(1), json.dumps(asdict(sign)))


def test_a_lost_rank_is_told_within_half_a_minute():
    assert liveness.BEAT + liveness.SILENCE + liveness.GRACE + distributed.NAMING < 30


def test_a_silent_rank_is_missed(watch):
    with pytest.raises(Left, match="rank 1 stopped answering"):
        watch.run()


def test_a_rank_that_failed_at_the_order_at_hand_is_told_with_its_reason(watch):
    watch.silence = 60
    watch.order = 3
    give(watch, Sign(1, 3, "no room left"))
    with pytest.raises(Left, match="rank 1 failed: no room left"):
        watch.run()


def test_a_failure_at_another_order_is_no_loss(watch):
    """Rank 0 failed at it too, and has gone on."""
    watch.order = 4

    class Beats(threading.Event):
        beats = 0

        def wait(self, _seconds):
            give(watch, Sign(self.beats, 3, "unknown scorer"))
            self.beats += 1
            return self.beats > 200

    watch.ended = Beats()
    watch.run()
    assert watch.ended.beats > 200


def test_a_rank_that_does_not_come_is_named(monkeypatch):
    monkeypatch.setattr(liveness, "BEAT", 0.001)
    store = HashStore()
    assert await_all(store, 0, 3, lambda: "", within=0.01) == "rank 1, 2 did not join within 0 s"
    assert await_all(store, 0, 3, lambda: "rank 2 is dead", within=60) == "rank 2 is dead"
    store.set(key(1), "{}")
    store.set(key(2), "{}")
    assert await_all(store, 0, 3, lambda: "", within=60) == ""


def test_the_end_is_told_once(capsys):
    watch = Watch(HashStore(), 0, 2)
    watch.tell("rank 1 left\nus")
    watch.tell("rank 1 left again")
    assert capsys.readouterr().err == "specprefill: rank 1 left us; the run has ended, start it again\n"


def test_nothing_is_sent_once_the_end_was_told(capsys):
    """The others may still be in the order that failed."""
    ranks = Ranks(0, 2, watch=Watch(HashStore(), 0, 2))
    with pytest.raises(SystemExit), ranks.together("order"):
        raise AssertionError("the order went out")
    assert ranks.watch.sent == 1
    assert ranks.watch.told
    with pytest.raises(SystemExit), ranks.together("another"):
        raise AssertionError("the order went out")
    assert ranks.watch.sent == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_one_process_is_its_own_leader():
    assert not in_run({})
    assert not in_run({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"})
    assert in_run({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"})
    assert ranks_for(1) is ALONE
    with ALONE.together(None):
        assert ALONE.agree("this") == ALONE.from_leader(lambda: "this") == "this"


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
