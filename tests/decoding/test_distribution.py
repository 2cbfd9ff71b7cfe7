"""Sampled output has the target's distribution, whatever proposes: chi-squared over every context of two tokens."""

import math

import pytest
import torch

from specprefill_cli.decoding.adaptive import AdaptivePace, AssumedCosts, FixedPace, SpeculationState
from specprefill_cli.decoding.measures import DecodeSpeed
from specprefill_cli.decoding.proposers.draft import DraftProposer
from specprefill_cli.decoding.proposers.lookup import LookupProposer
from specprefill_cli.decoding.sampling import Sampler, distribution
from specprefill_cli.decoding.speculative import Speculator, decode
from specprefill_cli.decoding.verification import positive_part
from tests.helpers.scripted import TableReader

pytestmark = pytest.mark.slow

VOCABULARY = 5
SAMPLES = 20_000


def table(seed, forbidden=None):
    """Random logits [V, V, V] of the token after two others; the forbidden token never follows."""
    logits = torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 1.2
    if forbidden is not None:
        logits[..., forbidden] = float("-inf")
    return logits


def only(token):
    return torch.full((VOCABULARY,) * 3, float("-inf")).index_fill_(2, torch.tensor([token]), 0.0)


TARGET = table(1, forbidden=4)
DRAFTS = {"always": TARGET, "never": only(4), "sometimes": table(2)}


def chi_squared_p(tokens, expected):
    """p-value that tokens follow probabilities [V, V, V] of the third after two; upper tail by Wilson and Hilferty (1931)."""
    known = torch.tensor(tokens)
    places = (known[:-2] * VOCABULARY + known[1:-1]) * VOCABULARY + known[2:]
    seen = places.bincount(minlength=VOCABULARY**3).view(-1, VOCABULARY).double()
    wanted = expected.view(-1, VOCABULARY).double() * seen.sum(1, keepdim=True)
    if seen[wanted == 0].sum():
        return 0.0  # A token of probability 0 was drawn.
    # Cells too rare for the approximation are left out (Cochran 1954: at least 5 expected).
    counted = wanted >= 5
    statistic = ((seen - wanted) ** 2 / wanted)[counted].sum().item()
    freedom = int((counted.sum(1) - 1).clamp(min=0).sum())
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return math.erfc(z / math.sqrt(2)) / 2


def sample(sampler, proposer, count, correct=positive_part):
    target = TableReader(TARGET)
    speculating = Speculator([proposer], FixedPace(count) if isinstance(count, int) else count)
    tokens = list(decode(target, 1, frozenset(), SAMPLES + 1, sampler, DecodeSpeed(), speculating, correct=correct))
    return tokens, speculating.log


def draft(name, sampler):
    return DraftProposer(lambda: TableReader(DRAFTS[name]), sampler, frozenset(), VOCABULARY, 10**9)


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}, {"temperature": 1.5, "top_k": 3}],
    ids=lambda settings: "-".join(settings),
)
def test_the_output_has_the_targets_distribution(name, settings):
    sampler = Sampler(**settings, seed=7)
    tokens, log = sample(sampler, draft(name, sampler), 3)
    assert chi_squared_p(tokens, distribution(TARGET, **settings)) > 0.01
    rate = log.acceptance_rate
    assert {"always": rate == 1, "never": rate == 0, "sometimes": 0.05 < rate < 0.95}[name]


def test_tokens_looked_up_keep_the_distribution():
    sampler = Sampler(1.0, top_p=0.9, seed=3)
    seen = torch.randint(0, VOCABULARY, (200,), generator=torch.Generator().manual_seed(0))
    tokens, log = sample(sampler, LookupProposer(seen), 4)
    assert chi_squared_p(tokens, distribution(TARGET, 1.0, top_p=0.9)) > 0.01
    assert 0.05 < log.acceptance_rate < 0.9


def test_a_pace_that_follows_acceptance_keeps_the_distribution():
    """The number of tokens proposed depends on what was accepted before, never on what is being drawn."""
    sampler = Sampler(1.0, seed=5)
    pace = AdaptivePace(SpeculationState(AssumedCosts()))
    proposer = draft("sometimes", sampler)
    proposer.token_passes = 0.1
    tokens, log = sample(sampler, proposer, pace)
    assert chi_squared_p(tokens, distribution(TARGET, 1.0)) > 0.01
    assert len({one.drafted for one in log.rounds}) > 1


def without_correction(probabilities, _proposal, _place):
    return probabilities


def draft_not_taken_off(probabilities, proposal, place):
    return (proposal.probabilities[place] - probabilities).clamp(min=0)


def last_place(probabilities, proposal, _place):
    return positive_part(probabilities, proposal, len(proposal.tokens) - 1)


@pytest.mark.parametrize("broken", [without_correction, draft_not_taken_off, last_place])
def test_a_broken_correction_is_found(broken):
    sampler = Sampler(1.0, seed=7)
    tokens, _ = sample(sampler, draft("sometimes", sampler), 3, broken)
    assert chi_squared_p(tokens, distribution(TARGET, 1.0)) < 1e-6


def test_a_broken_correction_of_looked_up_tokens_is_found():
    sampler = Sampler(1.0, seed=3)
    tokens, _ = sample(sampler, LookupProposer(torch.arange(VOCABULARY).repeat(40)), 4, without_correction)
    assert chi_squared_p(tokens, distribution(TARGET, 1.0)) < 1e-6


def test_a_proposal_from_the_wrong_distribution_is_found():
    """The draft must be processed as the target is: probabilities that its tokens were not drawn from are no proposal."""

    class Unprocessed(DraftProposer):
        def propose(self, answer, count):
            proposal = super().propose(answer, count)
            return type(proposal)(proposal.proposer, proposal.tokens, proposal.probabilities**2)

    sampler = Sampler(1.0, seed=7)
    proposer = Unprocessed(lambda: TableReader(DRAFTS["sometimes"]), sampler, frozenset(), VOCABULARY, 10**9)
    tokens, _ = sample(sampler, proposer, 3)
    assert chi_squared_p(tokens, distribution(TARGET, 1.0)) < 1e-6
