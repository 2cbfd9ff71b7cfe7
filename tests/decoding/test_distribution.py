"""Sampled output follows the target distribution with any proposer: chi-squared tests over all two-token contexts."""

import math

import pytest
import torch

from specprefill_cli.decoding import sampling
from specprefill_cli.decoding.proposers import DraftProposer, LookupProposer
from specprefill_cli.decoding.rounds import DecodeLog, decode
from specprefill_cli.decoding.sampling import Sampler, positive_part
from specprefill_cli.decoding.speculation import SpeculationState, Speculator
from tests.helpers.scripted import TableReader

pytestmark = pytest.mark.slow

VOCABULARY = 5
SAMPLES = 5_000
# Far above the 1e-6 that every wrong variant below falls under.
LIKELY = 1e-3


def table(seed, forbidden=None):
    """Make random logits [V, V, V] of a token given the two before it; the forbidden token has probability 0."""
    logits = torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 1.2
    if forbidden is not None:
        logits[..., forbidden] = float("-inf")
    return logits


def certain(token):
    return torch.full((VOCABULARY,) * 3, float("-inf")).index_fill_(2, torch.tensor([token]), 0.0)


TARGET = table(1, forbidden=4)
DRAFTS = {"always": TARGET, "never": certain(4), "sometimes": table(2)}


def chi_squared_p(tokens, expected):
    """Return the p-value of tokens under probabilities [V, V, V] given the two before, after Wilson and Hilferty (1931)."""
    drawn = torch.tensor(tokens)
    places = (drawn[:-2] * VOCABULARY + drawn[1:-1]) * VOCABULARY + drawn[2:]
    seen = places.bincount(minlength=VOCABULARY**3).view(-1, VOCABULARY).double()
    expected_counts = expected.view(-1, VOCABULARY).double() * seen.sum(1, keepdim=True)
    if seen[expected_counts == 0].sum():
        return 0.0  # A token of probability 0 was drawn.
    # Cells with fewer than 5 expected counts are excluded (Cochran 1954).
    counted = expected_counts >= 5
    statistic = ((seen - expected_counts) ** 2 / expected_counts)[counted].sum().item()
    freedom = int((counted.sum(1) - 1).clamp(min=0).sum())
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return math.erfc(z / math.sqrt(2)) / 2


def sample(sampler, proposer, count):
    target = TableReader(TARGET)
    log, speculating = DecodeLog(), Speculator([proposer], SpeculationState(learns_costs=False), count)
    return list(decode(target, 1, frozenset(), SAMPLES + 1, sampler, log, speculating)), log


def draft(name, sampler):
    return DraftProposer(lambda: TableReader(DRAFTS[name]), sampler, frozenset(), VOCABULARY, 10**9)


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}, {"temperature": 1.5, "top_k": 3}],
    ids=lambda settings: "-".join(settings),
)
def test_output_follows_the_target_distribution(name, settings):
    sampler = Sampler(**settings, seed=7)
    tokens, log = sample(sampler, draft(name, sampler), 3)
    assert chi_squared_p(tokens, sampler.probabilities(TARGET)) > LIKELY
    rate = log.figures()["acceptance_rate"]
    assert {"always": rate == 1, "never": rate == 0, "sometimes": 0.05 < rate < 0.95}[name]


def test_lookup_proposals_preserve_the_distribution():
    sampler = Sampler(1.0, top_p=0.9, seed=3)
    seen = torch.randint(0, VOCABULARY, (200,), generator=torch.Generator().manual_seed(0))
    tokens, log = sample(sampler, LookupProposer(seen), 4)
    assert chi_squared_p(tokens, sampler.probabilities(TARGET)) > LIKELY
    assert 0.05 < log.figures()["acceptance_rate"] < 0.9


def test_adaptive_proposals_preserve_the_distribution():
    """The number of proposed tokens depends only on earlier acceptance, never on the tokens being drawn."""
    sampler = Sampler(1.0, seed=5)
    proposer = draft("sometimes", sampler)
    proposer.token_passes = 0.1
    tokens, log = sample(sampler, proposer, None)
    assert chi_squared_p(tokens, sampler.probabilities(TARGET)) > LIKELY
    assert len({completed.drafted for completed in log.rounds}) > 1


def without_correction(probabilities, _proposal, _place):
    return probabilities


def reversed_difference(probabilities, proposal, place):
    return (proposal.probabilities[place] - probabilities).clamp(min=0)


def residual_at_last_position(probabilities, proposal, _place):
    return positive_part(probabilities, proposal, len(proposal.tokens) - 1)


@pytest.mark.parametrize("broken", [without_correction, reversed_difference, residual_at_last_position])
def test_detects_a_wrong_residual_distribution(broken, monkeypatch):
    monkeypatch.setattr(sampling, "positive_part", broken)
    sampler = Sampler(1.0, seed=7)
    tokens, _ = sample(sampler, draft("sometimes", sampler), 3)
    assert chi_squared_p(tokens, sampler.probabilities(TARGET)) < 1e-6
