"""Fates of chunks under draft KV: which are recomputed, the risk that stays, and the plan that says so."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specprefill_cli.prefill.fates import Fate, Plan
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prefill.selection import rank, spans_of_fates

FATES = (Fate.RECOMPUTE, Fate.ACCEPT, Fate.DROP)


def int_fate(fate: Fate) -> int:
    return FATES.index(fate)


def riskiest(
    risks: Tensor, prompt_tokens: int, chunk_size: int, share: float, accept_risk: float | None = None
) -> Tensor:
    """Fates [chunks]: those with the highest risk are recomputed, the others accepted.

    share: of the prompt, at most, that is recomputed; accept_risk: no more than brings the others' risk down to it
    """
    # A hair is added so that a share in binary floating point does not lose a chunk that it exactly allows.
    count = math.floor(share * prompt_tokens / chunk_size + 1e-9)
    count = len(risks) if share >= 1 else min(len(risks), count)
    if accept_risk is not None:
        count = min(count, enough_chunks(risks, accept_risk))
    fates = torch.full((len(risks),), int_fate(Fate.ACCEPT))
    fates[rank(risks)[:count]] = int_fate(Fate.RECOMPUTE)
    return fates


def enough_chunks(risks: Tensor, limit: float) -> int:
    """How many of the riskiest chunks must go until the others' risk is at most `limit`."""
    remaining = risks.sum() - risks[rank(risks)].cumsum(0)
    remaining[-1:] = 0
    return 0 if risks.sum() <= limit else int((remaining > limit).sum()) + 1


def accepted_risk(risks: Tensor, fates: Tensor) -> float:
    """Summed risk of the accepted chunks."""
    return float(risks[fates == int_fate(Fate.ACCEPT)].sum())


def too_risky(risks: Tensor, fates: Tensor, accept_risk: float | None) -> bool:
    return accept_risk is not None and accepted_risk(risks, fates) > accept_risk


def plan_of(request: ScoringRequest, fates: Tensor, risks: Tensor, computed: Tensor) -> Plan:
    """The plan of chunk fates [chunks] with their risks; checkpoints outside recomputed chunks count as computed."""
    prompt, size = request.prompt, request.chunk_size
    start, end = prompt.document
    inside = computed[(computed >= start) & (computed < end)]
    extra = int((fates[(inside - start) // size] != int_fate(Fate.RECOMPUTE)).sum())
    return Plan(prompt.length, prompt.document, spans_of_fates(fates, FATES, risks, size, prompt.document), extra)


def tokens_of(chosen: Tensor, chunk_size: int, document: tuple[int, int]) -> Tensor:
    """Prompt tokens, ascending, of the chosen chunks [chunks]."""
    start, end = document
    return start + chosen.repeat_interleave(chunk_size)[: end - start].nonzero()[:, 0]
