"""Verifying proposed tokens so that the output keeps the target's distribution exactly (arXiv 2211.17192, section 2.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specprefill_cli.decoding.sampling import Sampler


@dataclass(frozen=True)
class Proposal:
    """Tokens that may follow, and the distributions [k, V] they were drawn from, on the CPU.

    shares: None for a proposer that was certain: all mass on each token (and for greedy decoding, which needs none)
    entered: the proposer had to prepare itself first, so that the time it took says nothing about drafting
    """

    proposer: str
    tokens: tuple[int, ...] = ()
    shares: Tensor | None = None
    entered: bool = False


NOTHING = Proposal("")

# Weights [V] to draw the next token from after a rejection: (target's shares [V], proposal, rejected place) -> [V].
Correction = Callable[[Tensor, Proposal, int], Tensor]


def positive_part(shares: Tensor, proposal: Proposal, place: int) -> Tensor:
    """The positive part of target minus proposal, not normalised: what acceptance has not covered yet."""
    if proposal.shares is None:
        rest = shares.clone()
        rest[proposal.tokens[place]] = 0
    else:
        rest = (shares - proposal.shares[place]).clamp(min=0)
    # Two equal distributions differ by rounding at most: then nothing is left, and either one is right.
    return rest if rest.sum() > 0 else shares


def verify(
    logits: Tensor, proposal: Proposal, sampler: Sampler, correct: Correction = positive_part
) -> tuple[int, int]:
    """How many of k proposed tokens are accepted, and the token that follows them.

    logits: [k + 1, V] of the target after the last known token and after each proposed one

    Token i is accepted with probability min(1, target_i / proposal_i); the first one that is not is replaced by a draw
    from the positive part of target minus proposal, and behind k accepted tokens comes a bonus draw from the target.
    Greedy decoding is the special case of distributions with one token each: accepted is what the target would choose.
    """
    count = len(proposal.tokens)
    if count == 0:
        return 0, sampler(logits[0])
    tokens = torch.tensor(proposal.tokens)
    if sampler.greedy:
        chosen = logits.argmax(-1).cpu()
        accepted = leading(chosen[:count] == tokens)
        return accepted, int(chosen[accepted])
    shares = sampler.shares(logits)
    wanted = shares[:count].gather(1, tokens[:, None])[:, 0]
    offered = torch.ones(count) if proposal.shares is None else proposal.shares.gather(1, tokens[:, None])[:, 0]
    accepted = leading(sampler.uniform(count) * offered < wanted)
    weights = shares[accepted] if accepted == count else correct(shares[accepted], proposal, accepted)
    return accepted, sampler.draw(weights)


def leading(flags: Tensor) -> int:
    """How many of the first flags are true before one is not."""
    return int(flags.long().cumprod(0).sum())
