"""Which chunks draft KV recomputes, the risk that remains, and the plan."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.selection import fate_spans, rank
from specprefill_cli.record import Fate

# Fates are stored as indices into this tuple.
FATES = (Fate.RECOMPUTE, Fate.ACCEPT, Fate.DROP)
RECOMPUTE, ACCEPT, DROP = range(3)


def fates_by_risk(
    risks: Tensor, *, prompt_tokens: int, chunk_size: int, share: float, accept_risk: float | None = None
) -> Tensor:
    """Fates [chunks]: the riskiest chunks are recomputed, the others accepted.

    risks: [chunks]; share: largest part of the prompt to recompute
    accept_risk: recompute no more than brings the remaining risk down to it
    """
    # The small constant keeps a share in binary floating point from losing a chunk that it exactly allows.
    count = math.floor(share * prompt_tokens / chunk_size + 1e-9)
    count = len(risks) if share >= 1 else min(len(risks), count)
    if accept_risk is not None:
        count = min(count, chunks_to_recompute(risks, accept_risk))
    fates = torch.full((len(risks),), ACCEPT)
    fates[rank(risks)[:count]] = RECOMPUTE
    return fates


def chunks_to_recompute(risks: Tensor, limit: float) -> int:
    """How many of the riskiest chunks must be recomputed until the others' risk is at most `limit`."""
    remaining = risks.sum() - risks[rank(risks)].cumsum(0)
    remaining[-1:] = 0
    return 0 if risks.sum() <= limit else int((remaining > limit).sum()) + 1


def drop_down_to(fates: Tensor, risks: Tensor, limit: float) -> Tensor:
    """The fates [chunks] with so many of the riskiest accepted chunks dropped that the others' risk is at most `limit`."""
    accepted = (fates == ACCEPT).nonzero()[:, 0]
    count = chunks_to_recompute(risks[accepted], limit)
    dropped = fates.clone()
    dropped[accepted[rank(risks[accepted])[:count]]] = DROP
    return dropped


def remaining_risk(risks: Tensor, fates: Tensor) -> float:
    """Summed risk of the accepted chunks."""
    return float(risks[fates == ACCEPT].sum())


def plan_of(request: PrefillRequest, fates: Tensor, risks: Tensor, computed: Tensor) -> Plan:
    """The plan of chunk fates [chunks] with their risks; computed tokens outside recomputed chunks are checkpoints.

    computed: prompt tokens that the target has computed already
    """
    prompt, size = request.prompt, request.chunk_size
    start, end = prompt.document
    inside = computed[(computed >= start) & (computed < end)]
    checkpoints = int((fates[(inside - start) // size] != RECOMPUTE).sum())
    return Plan(prompt.length, prompt.document, fate_spans(fates, FATES, risks, size, prompt.document), checkpoints)


def chunk_tokens(chunks: Tensor, chunk_size: int, document: tuple[int, int]) -> Tensor:
    """Prompt tokens, ascending, of the chunks that a boolean mask [chunks] marks."""
    start, end = document
    return start + chunks.repeat_interleave(chunk_size)[: end - start].nonzero()[:, 0]
