"""Verifying proposed tokens so that the output keeps the target's distribution exactly (arXiv 2211.17192, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specprefill_cli.decoding.sampling import Sampler


@dataclass(frozen=True)
class Proposal:
    """Proposed tokens, and the distributions [k, V] they were drawn from, on the CPU.

    probabilities: None for a deterministic proposer (all mass on each token) and for greedy decoding
    entered: the proposer prefilled the prompt first, so that its time says nothing about drafting
    """

    proposer: str
    tokens: tuple[int, ...] = ()
    probabilities: Tensor | None = None
    entered: bool = False


NO_PROPOSAL = Proposal("")


def positive_part(probabilities: Tensor, proposal: Proposal, place: int) -> Tensor:
    """Weights [V] of the token that replaces the rejected one at `place`, from the target's probabilities [V] of it.

    The positive part of target minus proposal, not normalised (arXiv 2211.17192, section 2.3).
    """
    if proposal.probabilities is None:
        residual = probabilities.clone()
        residual[proposal.tokens[place]] = 0
    else:
        residual = (probabilities - proposal.probabilities[place]).clamp(min=0)
    # Equal distributions leave nothing but rounding: then either is right.
    return residual if residual.sum() > 0 else probabilities


def verify(logits: Tensor, proposal: Proposal, sampler: Sampler) -> tuple[int, int]:
    """How many of k proposed tokens are accepted, and the token that follows them.

    logits: [k + 1, V] of the target after the last known token and after each proposed token

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
    probabilities = sampler.probabilities(logits)
    # All rows would be megabytes to copy: one number of each, and one row, are needed.
    target = probabilities[:count].gather(1, tokens[:, None].to(logits.device))[:, 0].cpu()
    drawn = proposal.probabilities
    draft = torch.ones(count) if drawn is None else drawn.gather(1, tokens[:, None])[:, 0]
    accepted = leading(sampler.uniform(count) * draft < target)
    weights = probabilities[accepted].cpu()
    return accepted, sampler.draw(weights if accepted == count else positive_part(weights, proposal, accepted))


def leading(flags: Tensor) -> int:
    """How many flags are true before the first that is not."""
    return int(flags.long().cumprod(0).sum())
