"""Attention of one window of a document, held in bfloat16 until the softmax over all windows is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specprefill_cli.models.cache import PrefillState, copied_to, layer_keys
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.importance import POOL_KERNEL, group_scores, pool, query_slices

# float16 would lose what unimportant tokens get: all of it where another token of the window gets nearly everything.
HELD_DTYPE = torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class HeldAttention:
    """What the queries of a window's prompt give to the tokens of its core, on the CPU.

    weights: {layer: [heads, Q, held]} of HELD_DTYPE, exponential scores over the largest of each query, pooled or not
    core: the core's tokens among those held
    scales: {layer: [heads, Q]} the scores whose exponentials were divided out
    masses: {layer: [2, heads, Q]} logarithms of the sums of exponential scores over core and shared tokens
    """

    weights: Mapping[int, Tensor]
    scales: Mapping[int, Tensor]
    masses: Mapping[int, Tensor]
    core: slice

    def attention(self, normalisers: Mapping[int, Tensor]) -> Tensor:
        """Attention [heads of all layers, Q, held] in float32 by the normalisers {layer: [heads, Q]} of all windows."""
        queries = min(divisors.shape[-1] for divisors in normalisers.values())
        return torch.cat(
            [
                held[:, :queries].float() * (self.scales[layer][:, :queries] - normalisers[layer]).exp()[..., None]
                for layer, held in self.weights.items()
            ]
        )


def hold_attention(
    state: PrefillState,
    capture: QueryCapture,
    positions: Tensor,
    prompt_tokens: int,
    parts: tuple[Tensor, Tensor],
    pooled: tuple[int, int],
    heads: Mapping[int, Sequence[int]],
    pool_later: bool = False,
) -> HeldAttention:
    """The attention of a window's queries, pooled over neighbouring tokens.

    positions: [Q] of the captured queries; parts: key indices of the core, consecutive, and of prefix and suffix
    pooled: range of key indices inside which tokens are neighbours; heads: {layer: attention heads, ascending}
    pool_later: hold the core with its neighbours instead, for reductions that commute with pooling
    """
    rows, core = len(positions), slice(int(parts[0][0]), int(parts[0][-1]) + 1)
    margin = POOL_KERNEL // 2
    held = slice(max(pooled[0], core.start - margin), min(pooled[1], core.stop + margin)) if pool_later else core
    size = held.stop - held.start
    weights = {layer: torch.empty(len(numbers), rows, size, dtype=HELD_DTYPE) for layer, numbers in heads.items()}
    scales = {layer: torch.empty(len(numbers), rows) for layer, numbers in heads.items()}
    masses = {layer: torch.empty(2, len(numbers), rows) for layer, numbers in heads.items()}
    for part in query_slices(state, capture, prompt_tokens, next(iter(heads))):
        for layer, numbers in heads.items():
            # Copied once a layer, because every copy from a device waits for it.
            order: list[int] = []
            held_heads: list[tuple[Tensor, Tensor, Tensor]] = []
            outside = copied_to(parts[1], layer_keys(state, layer).device)
            for group, all_scores in group_scores(state, capture, layer, part, positions, prompt_tokens):
                places = [place for place, head in enumerate(numbers) if group.start <= head < group.stop]
                if not places:
                    continue
                order += places
                scores = all_scores[[numbers[place] - group.start for place in places]]
                keys = scores[..., core], scores.index_select(-1, outside)
                largest = scores.amax(-1, keepdim=True)
                if pool_later:
                    weighted = (scores[..., held] - largest).exp_()
                else:
                    neighbours = (scores[..., slice(*pooled)] - largest).exp_()
                    weighted = pool(neighbours)[..., core.start - pooled[0] : core.stop - pooled[0]]
                sums = torch.stack([scored.logsumexp(-1) for scored in keys], -1)
                held_heads.append((weighted.to(HELD_DTYPE), largest[..., 0], sums))
            if order:
                weighted, largest, sums = (torch.cat(tensors).cpu() for tensors in zip(*held_heads, strict=True))
                weights[layer][order, part], scales[layer][order, part] = weighted, largest
                masses[layer][:, order, part] = sums.permute(2, 0, 1)
    inner = slice(core.start - held.start, core.stop - held.start)
    return HeldAttention(weights=weights, scales=scales, masses=masses, core=inner)
