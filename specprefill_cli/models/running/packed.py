"""A forward pass of several sequences: linear layers run over all their tokens together, attention over each sequence alone.

Each sequence has its own cache and positions; prefill, verification and decoding are sequences of different lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from transformers import DynamicCache

from specprefill_cli.models.running.attention import LayerReached
from specprefill_cli.models.running.cache import copy_to, device_of
from specprefill_cli.models.running.passes import AttentionMetadata, ForwardInput, SequenceMetadata

# The fixed cost of a pass, in tokens computed in the same time: Python and kernel launches on a CPU (measured), and on a
# GPU reading all weights (calculated from the bandwidth and arithmetic of current cards).
PASS_OVERHEAD_TOKENS = {"cpu": 48, "cuda": 300}


class PackedCache(DynamicCache):
    """Returns keys and values unchanged: attention appends each sequence's to its own cache."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return key_states, value_states


@torch.inference_mode()
def forward(passes: Sequence[ForwardInput], slots: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Run passes of the same model, all ending at the same layer, as a packed pass; return what `adapter.run` would for each.

    slots: for each pass, the slots [N] of its keys and values (None: the last); the states hold the positions of all slots
    """
    model, last_layer = passes[0].model, passes[0].last_layer
    device = device_of(model.get_input_embeddings())
    if slots is None:
        slots = [torch.arange(step.state.length - step.length, step.state.length) for step in passes]
    edges = list(accumulate((step.length for step in passes), initial=0))
    spans = [slice(*edge) for edge in pairwise(edges)]
    context = AttentionMetadata(
        [sequence_metadata(*place) for place in zip(passes, slots, spans, strict=True)], last_layer
    )
    inputs = {
        "input_ids": copy_to(torch.cat([step.tokens for step in passes])[None], device),
        "position_ids": copy_to(torch.cat([step.positions for step in passes])[None], device),
        "past_key_values": PackedCache(),
        "use_cache": True,
        "context": context,
    }
    if last_layer is not None:
        with suppress(LayerReached):
            model.base_model(**inputs)
        return [torch.empty(0)] * len(passes)
    counts = [step.rows or 1 for step in passes]
    rows = torch.cat([torch.arange(end - count, end) for end, count in zip(edges[1:], counts, strict=True)])
    logits_by_pass = model(**inputs, logits_to_keep=rows.to(device)).logits[0].float().split(counts)
    return [part[-1] if step.rows is None else part for step, part in zip(passes, logits_by_pass, strict=True)]


def sequence_metadata(step: ForwardInput, slots: Tensor, span: slice) -> SequenceMetadata:
    """A pass as attention sees it, with its slots [N] and its place among the tokens of all passes."""
    # In a cache of the whole prompt, a token's slot is its position.
    rows = None if step.capture is None else torch.isin(slots, step.capture.positions).nonzero()[:, 0]
    return SequenceMetadata(
        step.positions,
        step.state.positions,
        step.local_window,
        span=span,
        slots=slots,
        state=step.state,
        capture=step.capture,
        rows=rows,
    )


def pass_overhead(device_type: str) -> int:
    """The fixed cost of a forward pass on a type of device, in tokens computed in the same time."""
    return PASS_OVERHEAD_TOKENS.get(device_type, PASS_OVERHEAD_TOKENS["cuda"])


def last_token_runs_apart(tokens: int, layers: int, overhead_tokens: int) -> bool:
    """Whether the last token of a prompt gets a pass of its own, so that the others need no output of the last layer.

    It pays at least 11 % of the TTFT of `full` and 7 % of that of `select` at 8,192 tokens with six layers.
    """
    return tokens > layers * overhead_tokens
