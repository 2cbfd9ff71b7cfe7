"""A forward pass of several sequences: linear layers run over all their tokens together, attention over each sequence alone.

Each sequence has its own cache and positions; prefill, verification and decoding are sequences of different lengths. In the
last layer every token needs keys and values, but only a token with requested logits needs an output. Skipping the rest
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

# The fixed cost of a pass, in tokens computed in the same time: Python and kernel launches on a CPU (measured), and on a
# GPU reading all weights (calculated from the bandwidth and arithmetic of current cards).
PASS_OVERHEAD_TOKENS = {"cpu": 48, "cuda": 300}
# Arguments of a layer beside its states [1, N, hidden_size]: with a row for each token, and without.
WITH_ROWS = ("position_ids", "position_embeddings")
WITHOUT_ROWS = ("attention_mask", "past_key_values", "use_cache", "context")


class PackedCache(DynamicCache):
    """Returns keys and values unchanged: attention appends each sequence's to its own cache."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return key_states, value_states


@torch.inference_mode()
def forward(passes: Sequence[Pass], slots: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Run passes of the same model, all ending at the same layer, as a packed pass; return what `adapter.run` would for each.

    slots: for each pass, the slots [N] of its keys and values (None: the last); the states hold the positions of all slots
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
    logit_rows = rows.to(device)
    worthwhile = edges[-1] - len(rows) > pass_overhead(device.type)
    with shorten_last_layer(model, cache, context, counts, logit_rows) if worthwhile else nullcontext():
        logits = model(**inputs, logits_to_keep=logit_rows).logits[0].float()
    logits_by_pass = logits.split(counts)
    return [part[-1] if step.rows is None else part for step, part in zip(passes, logits_by_pass, strict=True)]


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
    logit_rows: Tensor,
) -> Iterator[None]:
    """Inside the block, a pass with that cache computes the last layer's output only for the rows that become logits.

    counts: such rows of each sequence, its last tokens
    logit_rows: [R] these rows in the layer's output; set in place to all of its rows once the layer is shortened

    The layer runs twice: for all tokens up to their keys and values, then to its end for these rows. A layer that is built
    or called in an unknown way runs once, for all rows.
    """
    layer = getattr(model.get_decoder(), "layers", [None])[-1]
    number = getattr(getattr(layer, "self_attn", None), "layer_idx", None)
    if number is None:
        yield
        return

    def shorten(layer: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        # A hook that Ctrl-C left behind must not touch the next pass, which has a cache of its own.
        if len(arguments) != 1 or not can_shorten(keywords) or keywords["past_key_values"] is not cache:
            return None
        with suppress(LayerReached):
            layer.forward(*arguments, **{**keywords, "context": replace(context, last_layer=number)})
        for sequence, count in zip(context.sequences, counts, strict=True):
            cached = sequence.state.layers[number]
            cached.slots = copy_to(sequence.slots[-count:], cached.keys.device)
        rows = logit_rows.to(arguments[0].device, copy=True)
        shorter = {name: take_rows(keywords[name], rows) for name in WITH_ROWS if name in keywords}
        logit_rows.copy_(torch.arange(len(logit_rows)))
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
    """The context of a layer that runs only for the last tokens of each sequence."""
    spans = (slice(*edge) for edge in pairwise(accumulate(counts, initial=0)))
    return PackedContext(
        [
            replace(sequence, query_positions=sequence.query_positions[-count:], span=span, capture=None)
            for sequence, count, span in zip(context.sequences, counts, spans, strict=True)
        ]
    )


def can_shorten(keywords: Mapping[str, Any]) -> bool:
    """Whether every argument of a layer that might have a row for each token is known."""
    return {"context", "past_key_values"} <= keywords.keys() and all(
        name in (*WITH_ROWS, *WITHOUT_ROWS) or value is None or isinstance(value, bool | int | float | str)
        for name, value in keywords.items()
    )


def take_rows(value: Tensor | tuple[Tensor, ...] | None, rows: Tensor) -> Tensor | tuple[Tensor, ...] | None:
    """Rows [R] of a tensor [1, N, ...], or of each tensor in a tuple."""
    if isinstance(value, tuple):
        return tuple(part[:, rows.to(part.device)] for part in value)
    return None if value is None else value[:, rows.to(value.device)]
