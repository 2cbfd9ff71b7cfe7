"""Rounds of proposal and verification with scripted models: their output and their caches."""

import pytest
import torch

from specprefill_cli.decoding.proposers import DraftProposer
from specprefill_cli.decoding.rounds import DecodeLog, decode
from specprefill_cli.decoding.sampling import Sampler, log_probabilities
from specprefill_cli.decoding.speculation import SpeculationState, Speculator
from tests.helpers.scripted import ScriptReader, result_of

SCRIPT = [number % 40 for number in range(200)]
STOP = frozenset({49})


class CheckedSpeculator(Speculator):
    """Check after every round that both caches hold the answer without its last token, and no rejected token."""

    def __init__(self, target, draft, count):
        proposer = DraftProposer(lambda: draft, Sampler(), STOP, 50, 10_000)
        super().__init__([proposer], SpeculationState(), count)
        self.target, self.draft, self.answer = target, draft, 1

    def observe(self, round_):
        super().observe(round_)
        self.answer += round_.accepted + 1
        assert self.target.tokens == SCRIPT[: self.answer - 1]
        if round_.drafted:
            # The last drafted token was sampled but not read.
            assert self.draft.length == self.answer - 1 - (round_.accepted == round_.drafted)
        assert self.draft.tokens == SCRIPT[: self.draft.length]
        assert self.draft.length < self.answer


def speculator(draft, count, sampler=None, stop_tokens=STOP, longest_answer=10_000):
    proposer = DraftProposer(lambda: draft, sampler or Sampler(), stop_tokens, 50, longest_answer)
    return Speculator([proposer], SpeculationState(), count)


def decoded(target, speculating, limit=40, log=None):
    """Yield the answer after the script's first token."""
    return decode(target, 0, STOP, limit, Sampler(), log or DecodeLog(), speculating)


def wrong_at(places):
    return [token if place not in places else 45 for place, token in enumerate(SCRIPT)]


@pytest.mark.parametrize(
    ("wrong", "accepted"),
    [
        pytest.param((), [4] * 8, id="always right"),
        pytest.param(range(200), [0] * 40, id="never right"),
        # The third draft token of each round is wrong, so each round accepts two and adds the target's own.
        pytest.param(range(3, 200, 3), [2] * 13, id="right in the middle"),
    ],
)
def test_output_and_caches_hold_exactly_the_targets_tokens(wrong, accepted):
    target, draft = ScriptReader(SCRIPT), ScriptReader(wrong_at(set(wrong)))
    log, speculating = DecodeLog(), CheckedSpeculator(target, draft, 4)
    assert list(decoded(target, speculating, log=log)) == SCRIPT[:40]
    counts = [completed.accepted for completed in log.rounds]
    assert counts[: len(accepted) - 2] == accepted[: len(accepted) - 2]
    assert len(target.passes) < 40 or not any(counts)


def test_probabilities_are_read_after_the_answer_not_in_each_round(monkeypatch):
    reads, real = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(1) or real(tensor))
    log = DecodeLog()
    list(decode(ScriptReader(SCRIPT), SCRIPT[0], STOP, 20, Sampler(), log))
    assert not reads
    assert len(log.log_probabilities) == 19
    assert len(reads) == 1


def test_probabilities_of_tokens_are_the_softmax_of_their_logits():
    logits = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    expected = logits.log_softmax(-1)[torch.arange(3), torch.tensor([4, 0, 10])]
    torch.testing.assert_close(log_probabilities(logits, [4, 0, 10]), expected)


def test_plain_decoding_ends_at_a_stop_token_or_the_token_limit():
    target = ScriptReader([0, 1, 2, 49, 4])
    assert list(decoded(target, None)) == target.tokens == [0, 1, 2]
    assert list(decoded(ScriptReader(SCRIPT), None, 3)) == [0, 1, 2]
    assert not list(decode(ScriptReader(SCRIPT), 49, STOP, 3, Sampler(), DecodeLog()))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 9, 30])
def test_never_exceeds_the_token_limit(count, max_tokens):
    target = ScriptReader(SCRIPT)
    speculating = CheckedSpeculator(target, ScriptReader(SCRIPT), count)
    assert list(decoded(target, speculating, max_tokens)) == SCRIPT[:max_tokens]
    assert target.length == max_tokens - 1


@pytest.mark.parametrize("place", range(1, 12))
@pytest.mark.parametrize("draft_stops", [True, False])
def test_a_stop_token_inside_an_accepted_run_ends_the_answer(place, draft_stops):
    script = [*SCRIPT[:place], 49, *SCRIPT[place + 1 :]]
    target, draft, log = ScriptReader(script), ScriptReader(script), DecodeLog()
    speculating = speculator(draft, 4, stop_tokens=STOP if draft_stops else frozenset())
    assert list(decoded(target, speculating, log=log)) == script[:place]
    assert target.tokens == script[: target.length]
    assert place - 1 <= target.length <= place
    assert draft.length <= target.length
    assert log.tokens == place


def test_a_draft_stops_at_its_own_stop_token():
    draft = ScriptReader([0, 1, 49, 3, 4, 5])
    proposal = result_of(speculator(draft, 5).propose([0], 10))
    assert proposal.tokens == (1, 49)


def test_accepted_tokens_are_streamed_at_once():
    target = ScriptReader(SCRIPT)
    stream = decoded(target, speculator(ScriptReader(SCRIPT), 4))
    assert next(stream) == SCRIPT[0]
    # The first token needs no target pass.
    assert target.passes == []
    for _ in range(5):
        next(stream)
        assert target.passes == [5]


def test_an_interrupted_round_is_rolled_back():
    class Interrupted(ScriptReader):
        def read(self, tokens, rows=1):
            logits = yield from super().read(tokens, rows)
            if len(self.passes) == 3:
                raise KeyboardInterrupt
            return logits

    target, draft = Interrupted(SCRIPT), ScriptReader(SCRIPT)
    with pytest.raises(KeyboardInterrupt):
        list(decoded(target, speculator(draft, 4)))
    assert target.tokens == SCRIPT[:10]
    assert draft.length <= 10


def test_a_draft_at_the_end_of_its_context_stops_proposing():
    target, draft = ScriptReader(SCRIPT), ScriptReader(SCRIPT)
    speculating = speculator(draft, 4, longest_answer=12)
    assert list(decoded(target, speculating)) == SCRIPT[:40]
    assert draft.length <= 12
    assert target.passes[-1] == 1


def test_round_statistics():
    target = ScriptReader(SCRIPT)
    log, speculating = DecodeLog(), speculator(ScriptReader(wrong_at(set(range(3, 200, 3)))), 4)
    nothing = dict.fromkeys(("tokens_per_second", "acceptance_rate", "accepted_length_mean", "proposer"))
    assert log.figures() == nothing | {"accepted_histogram": []}
    list(decoded(target, speculating, 31, log))
    # Ten rounds accept two tokens and reject the third; the last rounds have room for fewer proposals.
    figures = log.figures()
    assert (figures["accepted_histogram"], figures["accepted_length_mean"]) == ([0, 0, 10], 2)
    assert figures["acceptance_rate"] == pytest.approx(20 / (9 * 4 + 2))
    assert log.proposers == ["draft"]


@pytest.mark.parametrize("size", [48, 60])
def test_accepts_a_draft_with_another_vocabulary_size(size):
    """Models that share a tokenizer may pad their vocabularies differently."""
    target, draft = ScriptReader(SCRIPT), ScriptReader(SCRIPT, vocabulary=size)
    for sampler in (Sampler(), Sampler(0.01)):
        log, speculating = DecodeLog(), speculator(draft, 3, sampler)
        assert list(decode(target, SCRIPT[0], STOP, 30, sampler, log, speculating)) == SCRIPT[:30]
        assert log.figures()["acceptance_rate"] == 1
        target.rollback(0)
        draft.rollback(0)
