"""Which chunks draft KV recomputes, in how many layers, the risk that remains, and the plan.

A layer's keys and values need the whole layer below, so that what is recomputed of a chunk are always its lowest layers.
Their number is the chunk's depth. It is at least that of the layers which are exact for all tokens: 1, because the first
layer's keys and values depend on the token alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from specprefill_cli.draft_kv.mapped_cache import Inspection
from specprefill_cli.models.cache import layer_count
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.selection import fate_spans, rank
from specprefill_cli.record import Fate

# Fates are stored as indices into this tuple.
FATES = (Fate.RECOMPUTE, Fate.ACCEPT, Fate.DROP)
RECOMPUTE, ACCEPT, DROP = range(3)
# The setting `recompute_by` that asks for a grid.
LAYER = "layer"
# Halvings of the range in which a price is looked for.
PRICE_STEPS = 50


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


def grid_by_risk(request: PrefillRequest, seen: Inspection, accept_risk: float | None) -> tuple[Tensor, Tensor, float]:
    """Depth and fate of every chunk, [chunks] each, and the risk that remains; accept_risk: as in `depths_by_risk`."""
    risks = layer_risks(seen.mass, seen.errors, request.chunk_size)
    depths = depths_by_risk(
        risks,
        first=request.settings.exact_layers + 1,
        prompt_tokens=request.prompt.length,
        chunk_size=request.chunk_size,
        share=request.settings.recompute,
        accept_risk=accept_risk,
    )
    return depths, torch.where(depths == len(risks), RECOMPUTE, ACCEPT), remaining_layer_risk(risks, depths)


def layer_risks(mass: Tensor, errors: Tensor, chunk_size: int) -> Tensor:
    """Risk [layers, chunks]: attention mass times error, summed over a chunk's tokens, divided by the number of layers.

    mass, errors: [layers, n]
    """
    token_risks = mass * errors / len(mass)
    padding = -token_risks.shape[1] % chunk_size
    return torch.nn.functional.pad(token_risks, (0, padding)).view(len(mass), -1, chunk_size).sum(2)


def depths_by_risk(
    risks: Tensor, *, first: int, prompt_tokens: int, chunk_size: int, share: float, accept_risk: float | None = None
) -> Tensor:
    """Depth [chunks]: in how many of its lower layers each chunk is recomputed, so that most risk goes for its cost.

    For the keys and values of layer l the target runs a chunk through the l layers below, so that depth d costs d - 1 layers;
    the budget is what the chunks of `fates_by_risk` cost. The depths maximise the removed risk minus a price for each
    layer, and the price is the lowest that the budget can pay (a Lagrange multiplier).

    risks: [layers, chunks]; first: the smallest depth, which costs nothing
    share: largest part of the prompt to recompute; accept_risk: recompute no more than brings the remaining risk to it
    """
    layers, chunks = risks.shape
    removed = torch.cat([torch.zeros(1, chunks, dtype=torch.double), risks.double().cumsum(0)])[first:]
    costs = torch.arange(first - 1, layers, dtype=torch.double)[:, None]
    costs[0] = 0
    budget = math.floor(share * prompt_tokens / chunk_size + 1e-9) * (layers - 1) if share < 1 else math.inf

    def best(price: float) -> Tensor:
        # The first of equal values: what removes no risk is not paid for.
        return (removed - price * costs).max(0).indices

    def affordable(price: float) -> bool:
        return float(costs[best(price), 0].sum()) <= budget

    def insufficient(price: float) -> bool:
        return remaining_layer_risk(risks, first + best(price)) > (accept_risk or 0.0)

    if share >= 1 and accept_risk is None:
        return torch.full((chunks,), layers)
    highest = float(removed.max()) + 1.0
    _, price = price_bounds(affordable, highest)
    if accept_risk is not None:
        return first + best(max(price, price_bounds(insufficient, highest)[0]))
    choice = best(price)
    return first + spend(choice, removed, costs, budget - float(costs[choice, 0].sum()))


def spend(choice: Tensor, removed: Tensor, costs: Tensor, budget: float) -> Tensor:
    """The choice [chunks] of depths with the rest of the budget spent too, each time where it removes most risk.

    removed: [depths, chunks] risk; costs: [depths, 1]; budget: what remains of it
    """
    while True:
        extra = costs - costs[choice, 0]
        gains = torch.where((extra > 0) & (extra <= budget), removed - removed.gather(0, choice[None]), 0)
        depth, chunk = divmod(int(gains.argmax()), len(choice))
        if not gains[depth, chunk] > 0:
            return choice
        budget -= float(extra[depth, chunk])
        choice[chunk] = depth


def price_bounds(holds: Callable[[float], bool], highest: float) -> tuple[float, float]:
    """A price for which a condition does not hold and a slightly higher one for which it does; it holds for high prices."""
    low, high = 0.0, highest
    for _ in range(PRICE_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def remaining_layer_risk(risks: Tensor, depths: Tensor) -> float:
    """Summed risk of the layers that are accepted: risks [layers, chunks], depths [chunks]."""
    return float(risks[torch.arange(len(risks))[:, None] >= depths].sum())


def plan_of(
    request: PrefillRequest, fates: Tensor, risks: Tensor, computed: Tensor, depths: Tensor | None = None
) -> Plan:
    """The plan of chunk fates [chunks] with their risks; computed tokens outside recomputed chunks are checkpoints.

    computed: prompt tokens that the target has computed already; depths: [chunks] how many of its lower layers the
    target computes, None for all in recomputed chunks and those that are exact for all tokens in accepted ones
    """
    prompt, size = request.prompt, request.chunk_size
    start, end = prompt.document
    inside = computed[(computed >= start) & (computed < end)]
    checkpoints = int((fates[(inside - start) // size] != RECOMPUTE).sum())
    if depths is None:
        depths = fate_depths(fates, request.settings.exact_layers + 1, layer_count(request.target.model))
    # Chunks of one span have one fate and one depth.
    kinds, numbers = torch.unique(torch.stack([fates, depths], dim=1), dim=0, return_inverse=True)
    names = [FATES[fate] for fate, _ in kinds.tolist()]
    spans = fate_spans(numbers, names, risks, size, prompt.document)
    layered = (replace(span, layers=int(depths[(span.start - start) // size])) for span in spans)
    return Plan(prompt.length, prompt.document, tuple(layered), checkpoints)


def fate_depths(fates: Tensor, first: int, layers: int) -> Tensor:
    """How many lower layers the target computes of each chunk [chunks], by its fate; first: of accepted ones."""
    return torch.tensor([layers, first, 0])[fates]


def chunk_tokens(chunks: Tensor, chunk_size: int, document: tuple[int, int]) -> Tensor:
    """Prompt tokens, ascending, of the chunks that a boolean mask [chunks] marks."""
    start, end = document
    return start + chunks.repeat_interleave(chunk_size)[: end - start].nonzero()[:, 0]
