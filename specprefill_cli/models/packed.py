"""One forward pass of one or several sequences: linear layers run over all their tokens together, attention for each alone.

Each sequence has its own cache and positions; prefill, verification and decoding are sequences of different lengths. In the
last layer every token needs keys and values, but only a token with requested logits needs an output. Skipping the others
saves 6 % of the TTFT of `select --keep 0.1` at 8,192 tokens with the bundled pair, less with more layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from specprefill_cli.models.attention import LayerReached
from specprefill_cli.models.cache import copy_to, device_of
from specprefill_cli.models.passes import PackedContext, PackedSequence, Pass

# Every forward pass costs at least as much as this many tokens do: Python and kernel launches on a CPU (measured), and
# on a GPU reading all weights (calculated from the bandwidth and arithmetic of current cards).
PASS_OVERHEAD_TOKENS = {"cpu": 48, "cuda": 300}
# Arguments of a layer beside its states [1, N, hidden_size]: with a row for each token, and without.
WITH_ROWS = ("position_ids", "position_embeddings")
WITHOUT_ROWS = ("attention_mask", "past_key_values", "use_cache", "context")


class PackedCache(DynamicCache):
    """Hands keys and values on as they are: attention appends each sequence's to its own cache."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return key_states, value_states


@torch.inference_mode()
def forward(passes: Sequence[Pass], slots: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Run passes of one model that end at the same layer as one; what `adapter.run` returns for each.

    slots: of each pass [N] where its keys and values go (None: the last ones); the states hold the positions of all slots
    """
    model, last_layer = passes[0].model, passes[0].last_layer
    device, cache = device_of(model.get_input_embeddings()), PackedCache()
    if slots is None:
        slots = [torch.arange(step.state.length - step.length, step.state.length) for step in passes]
    edges = list(accumulate((step.length for step in passes), initial=0))
    spans = [slice(*edge) for edge in pairwise(edges)]
    context = PackedContext([packed_sequence(*place) for place in zip(passes, slots, spans, strict=True)], last_layer)
    inputs = {
        "input_ids": copy_to(torch.cat([step.tokens for step in passes])[None], device),
        "position_ids": copy_to(torch.cat([step.positions for step in passes])[None], device),
        "past_key_values": cache,
        "use_cache": True,
        "context": context,
    }
    if last_layer is not None:
        with suppress(LayerReached):
            model.base_model(**inputs)
        return [torch.empty(0)] * len(passes)
    counts = [step.rows or 1 for step in passes]
    rows = torch.cat([torch.arange(end - count, end) for end, count in zip(edges[1:], counts, strict=True)])
    kept = rows.to(device)
    worthwhile = edges[-1] - len(rows) > pass_overhead(device.type)
    with shorten_last_layer(model, cache, context, counts, kept) if worthwhile else nullcontext():
        logits = model(**inputs, logits_to_keep=kept).logits[0].float()
    parts = logits.split(counts)
    return [part[-1] if step.rows is None else part for step, part in zip(passes, parts, strict=True)]


def packed_sequence(step: Pass, slots: Tensor, span: slice) -> PackedSequence:
    """A pass as attention sees it, with its slots [N] and its place among the tokens of all passes."""
    # In a cache of the whole prompt, a token's slot is its position.
    rows = None if step.capture is None else torch.isin(slots, step.capture.positions).nonzero()[:, 0]
    return PackedSequence(
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


@contextmanager
def shorten_last_layer(
    model: PreTrainedModel,
    cache: PackedCache,
    context: PackedContext,
    counts: Sequence[int],
    kept: Tensor,
) -> Iterator[None]:
    """While it lasts, a pass with that cache computes the last layer's output for some rows alone.

    counts: how many of each sequence, its last ones
    kept: [R] rows of the layer's output that become logits: those of all sequences, or all once the layer was shortened

    The layer runs twice: for all tokens up to their keys and values, then to its end for the rows. A layer that is built or
    called in an unknown way runs once, for all.
    """
    layer = getattr(model.get_decoder(), "layers", [None])[-1]
    number = getattr(getattr(layer, "self_attn", None), "layer_idx", None)
    if number is None:
        yield
        return

    def shorten(layer: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        # A hook that Ctrl-C left behind must not touch the next pass. That has a cache of its own.
        if len(arguments) != 1 or not can_shorten(keywords) or keywords["past_key_values"] is not cache:
            return None
        with suppress(LayerReached):
            layer.forward(*arguments, **{**keywords, "context": replace(context, last_layer=number)})
        for sequence, count in zip(context.sequences, counts, strict=True):
            cached = sequence.state.layers[number]
            cached.slots = copy_to(sequence.slots[-count:], cached.keys.device)
        rows = kept.to(arguments[0].device, copy=True)
        shorter = {name: take_rows(keywords[name], rows) for name in WITH_ROWS if name in keywords}
        kept.copy_(torch.arange(len(kept)))
        return (arguments[0][:, rows],), {**keywords, **shorter, "context": keep_last_rows(context, counts)}

    handle = layer.register_forward_pre_hook(shorten, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        for sequence in context.sequences:
            for cached in sequence.state.layers[number:]:
                cached.slots = None


def keep_last_rows(context: PackedContext, counts: Sequence[int]) -> PackedContext:
    """The context of a layer that runs for the last tokens of each sequence alone."""
    spans = (slice(*edge) for edge in pairwise(accumulate(counts, initial=0)))
    return PackedContext(
        [
            replace(sequence, query_positions=sequence.query_positions[-count:], span=span, capture=None)
            for sequence, count, span in zip(context.sequences, counts, spans, strict=True)
        ]
    )


def can_shorten(keywords: Mapping[str, Any]) -> bool:
    """Whether all that a layer is called with, and that might have a row for each token, is known."""
    return {"context", "past_key_values"} <= keywords.keys() and all(
        name in (*WITH_ROWS, *WITHOUT_ROWS) or value is None or isinstance(value, bool | int | float | str)
        for name, value in keywords.items()
    )


def take_rows(value: Tensor | tuple[Tensor, ...] | None, rows: Tensor) -> Tensor | tuple[Tensor, ...] | None:
    """Rows [R] of a tensor [1, N, ...], or of each tensor in a tuple."""
    if isinstance(value, tuple):
        return tuple(part[:, rows.to(part.device)] for part in value)
    return None if value is None else value[:, rows.to(value.device)]
