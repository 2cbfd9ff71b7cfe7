"""Adaptive pace: formulas against the paper, and simulated answers timed by a scripted clock."""

import random

import pytest

from specprefill_cli.decoding.proposers import DraftProposer
from specprefill_cli.decoding.rounds import DecodeLog, decode
from specprefill_cli.decoding.sampling import Sampler
from specprefill_cli.decoding.speculation import SpeculationState, Speculator, speedup
from tests.helpers.scripted import Clock, ScriptReader

WIDTH = 0.03


def test_speedup_matches_theorem_3_8():
    # (1 - a^(k + 1)) / ((1 - a) (k c + 1)) with a = 0.8, k = 5, c = 0.1.
    assert speedup(0.8, 5, 5 * 0.1) == pytest.approx((1 - 0.8**6) / (0.2 * 1.5))


class Pair:
    """A scripted pair with a given chance that a draft token is accepted and a given cost in target passes per token."""

    def __init__(self, right, cost, entry=0.0, target_cost=lambda tokens: 1 + WIDTH * (tokens - 1)):
        self.right, self.cost, self.entry = right, cost, entry
        self.clock = Clock()
        self.memory = SpeculationState()
        self.target_cost = target_cost
        self.random = random.Random(0)
        self.entered = 0

    def answer(self, tokens):
        """Return the speedup over plain decoding of an answer, its speculator, and its log."""
        script = [place % 40 for place in range(tokens + 20)]
        chance = self.right if callable(self.right) else lambda _place: self.right
        drafted = [token if self.random.random() < chance(place) else 49 for place, token in enumerate(script)]
        target = ScriptReader(script, clock=self.clock, cost=self.target_cost)
        draft = ScriptReader(drafted, clock=self.clock, cost=lambda _tokens: self.cost)

        def open_runner():
            self.entered += 1
            self.clock.now += self.entry
            return draft

        proposer = DraftProposer(open_runner, Sampler(), frozenset(), 50, 10**9, self.entry, token_passes=0.5)
        speculator = Speculator([proposer], self.memory)
        start = self.clock.now
        log = DecodeLog()
        out = list(decode(target, 0, frozenset(), tokens, Sampler(), log, speculator, self.clock))
        assert out == script[:tokens]
        assert log.seconds == pytest.approx(self.clock.now - start)
        return (tokens - 1) / (self.clock.now - start), speculator, log

    def speedups(self, tokens, answers):
        return [self.answer(tokens)[0] for _ in range(answers)]


def mean_slowdown(speedups):
    """The time of all answers, as a multiple of that of plain decoding."""
    return sum(1 / speedup for speedup in speedups) / len(speedups)


@pytest.mark.parametrize("cost", [0.05, 0.45, 1.5])
@pytest.mark.parametrize("right", [0.0, 0.4, 0.8, 1.0])
def test_never_much_slower_than_plain_decoding(right, cost):
    """Successive answers of 64 tokens are together at most 3% slower than plain decoding."""
    speeds = Pair(right, cost).speedups(64, 12)
    assert speeds[0] > 0.9
    assert sorted(speeds)[1] > 0.93
    assert mean_slowdown(speeds) < 1.03


def test_never_much_slower_when_acceptance_keeps_changing():
    assert mean_slowdown(Pair(lambda place: place // 10 % 2, 0.45).speedups(100, 10)) < 1.03


def jump_by(first, later):
    """The cost of a pass in which the second token costs more than the later ones, as on a CPU with a long cache."""
    return lambda tokens: 1 + first * (tokens > 1) + later * (tokens - 1)


@pytest.mark.parametrize(
    ("right", "cost", "least", "verification"),
    [
        (1.0, 0.05, 5.0, jump_by(0, WIDTH)),
        (0.9, 0.1, 2.2, jump_by(0, WIDTH)),
        (0.8, 0.3, 1.3, jump_by(0, WIDTH)),
        (0.95, 0.5, 1.25, jump_by(0, WIDTH)),
        # Where verification has a fixed cost, many tokens pay.
        (0.95, 0.05, 2.0, jump_by(1.5, 0.02)),
    ],
)
def test_a_good_draft_is_used(right, cost, least, verification):
    pair = Pair(right, cost, target_cost=verification)
    assert sum(pair.speedups(100, 5)) / 5 > least
    assert pair.answer(100)[1].verdict.state == "on"


def test_proposes_more_with_higher_acceptance_or_lower_cost():
    def longest(right, cost):
        pair = Pair(right, cost)
        pair.answer(200)
        rounds = pair.answer(200)[2].rounds
        return sorted(completed.drafted for completed in rounds)[len(rounds) // 2]

    assert longest(0.5, 0.05) < longest(0.95, 0.05)
    assert longest(0.9, 0.5) < longest(0.9, 0.05)


def test_turns_off_and_gives_the_reason():
    pair = Pair(0.0, 0.45)
    pair.answer(64)
    _, speculator, log = pair.answer(64)
    assert speculator.verdict.state == "off"
    assert "plain decoding is faster: draft promises 0." in speculator.verdict.reason
    assert "0.48 target passes a token" in speculator.verdict.reason
    # It keeps trying the draft, but rarely.
    assert len(log.rounds) <= 4


def test_turns_on_again_when_the_draft_improves():
    pair = Pair(0.0, 0.2)
    pair.answer(100)
    pair.right = 1.0
    assert pair.speedups(100, 4)[-1] > 2


def test_a_slow_first_measurement_is_corrected():
    pair = Pair(0.95, 0.1)
    pair.memory.drafting["draft"].extend([50.0] * 5)
    speeds = pair.speedups(200, 8)
    assert speeds[-1] > 1.5
    assert min(speeds) > 0.9


def test_a_draft_without_a_cache_is_used_only_for_long_answers():
    pair = Pair(0.95, 0.1, entry=10.0)
    assert pair.answer(64)[0] > 0.99
    assert pair.entered == 0
    speculator = pair.answer(64)[1]
    assert "would first prefill the prompt, at the cost of 10 target passes" in speculator.verdict.reason
    assert pair.answer(1_000)[0] > 1.5
    assert pair.entered == 1


@pytest.mark.parametrize("right", [0.0, 0.5, 0.9])
def test_adapts_to_a_jump_in_verification_cost(right):
    speeds = Pair(right, 0.2, target_cost=jump_by(0.3, 0.05)).speedups(100, 8)
    assert min(speeds) > 0.9
    assert mean_slowdown(speeds) < 1.03
    if right == 0.9:
        assert sum(speeds) / len(speeds) > 1.5


def test_the_first_proposals_are_short_where_prefill_was_slow():
    """Where a pass is bound by arithmetic, a failed proposal of many tokens costs several passes."""

    def first_proposal(prefill_seconds):
        pair = Pair(0.0, 0.0, target_cost=jump_by(0, 0.25))
        pair.memory.prefill = (prefill_seconds, 100)
        pair.memory.drafting["draft"].append(0.0)
        speed, _, log = pair.answer(12)
        return log.rounds[0].drafted, speed

    slow, fast = first_proposal(26.0), first_proposal(2.0)
    assert slow[0] <= 3 < fast[0]
    assert slow[1] > 0.85 > fast[1]


def test_answers_that_share_their_passes_teach_no_costs_and_speculate_less():
    pair = Pair(0.8, 0.3)
    assert pair.answer(100)[1].verdict.state == "on"
    before = [*pair.memory.drafting["draft"]]
    pair.memory.sharing = 4
    assert pair.answer(100)[1].verdict.state == "off"
    assert [*pair.memory.drafting["draft"]] == before
