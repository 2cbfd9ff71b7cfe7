"""Several sequences in one forward pass: linear layers run over all their tokens together, attention for each alone.

Each sequence has its own cache and positions; prefill, verification and decoding are sequences of different lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from transformers import DynamicCache

from specprefill_cli.models.adapter import captured_rows, pass_overhead, run_alone
from specprefill_cli.models.attention import LayerReached
from specprefill_cli.models.cache import copied_to, device_of, rollback
from specprefill_cli.models.last_layer import LastLayer, only_rows
from specprefill_cli.models.masks import PackedContext, PackedSequence, PositionContext
from specprefill_cli.models.passes import Pass


class PackedCache(DynamicCache):
    """Hands keys and values on as they are: attention appends each sequence's to its own cache."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return key_states, value_states


def run_together(passes: Sequence[Pass]) -> list[Tensor | Exception]:
    """Run passes of one model as one; what each of them returns or raises."""
    if len(passes) > 1:
        # Where that fails, the pass at fault raises its error again by itself, and the others do not suffer.
        with suppress(Exception):
            return [*run_packed(passes)]
    return [attempt(step) for step in passes]


def attempt(step: Pass) -> Tensor | Exception:
    """Run a pass by itself; its logits, or what it raised. Where it fails, its state is as it was."""
    length = step.state.length
    try:
        return run_alone(step)
    except BaseException as error:
        rollback(step.state, length)
        if not isinstance(error, Exception):
            raise
        return error


def run_packed(passes: Sequence[Pass]) -> list[Tensor]:
    """Run passes of one model that end at the same layer as one; what `adapter.run` would return for each.

    A pass that fails leaves all states as they were.
    """
    lengths = [step.state.length for step in passes]
    try:
        return forward_packed(passes)
    except BaseException:
        for step, length in zip(passes, lengths, strict=True):
            rollback(step.state, length)
        raise


@torch.inference_mode()
def forward_packed(passes: Sequence[Pass]) -> list[Tensor]:
    """The pass behind `run_packed`."""
    model, last_layer = passes[0].model, passes[0].last_layer
    device, cache = device_of(model.get_input_embeddings()), PackedCache()
    edges = list(accumulate((step.length for step in passes), initial=0))
    sequences, slots = [], []
    for step, (start, end) in zip(passes, pairwise(edges), strict=True):
        own = torch.arange(step.state.length, step.state.length + step.length)
        step.state.append(step.positions)
        context = PositionContext(
            step.positions,
            step.state.positions,
            step.capture,
            captured_rows(step.capture, own),
            local_window=step.local_window,
        )
        sequences.append(PackedSequence(span=slice(start, end), state=step.state, context=context))
        slots.append(own)
    inputs = {
        "input_ids": copied_to(torch.cat([step.tokens for step in passes])[None], device),
        "position_ids": copied_to(torch.cat([step.positions for step in passes])[None], device),
        "past_key_values": cache,
        "use_cache": True,
        "context": PackedContext(sequences, last_layer),
    }
    if last_layer is not None:
        with suppress(LayerReached):
            model.base_model(**inputs)
        return [torch.empty(0)] * len(passes)
    counts = [step.rows or 1 for step in passes]
    rows = torch.cat([torch.arange(end - count, end) for end, count in zip(edges[1:], counts, strict=True)])
    last = LastLayer(
        rows=rows,
        context=shortened(sequences, counts),
        slots=[(step.state, own[-count:]) for step, own, count in zip(passes, slots, counts, strict=True)],
        kept=rows.to(device, copy=True),
    )
    worthwhile = edges[-1] - len(rows) > pass_overhead(device.type)
    with only_rows(model, cache, lambda _context: last) if worthwhile else nullcontext():
        logits = model(**inputs, logits_to_keep=last.kept).logits[0].float()
    parts = logits.split(counts)
    return [part[-1] if step.rows is None else part for step, part in zip(passes, parts, strict=True)]


def shortened(sequences: Sequence[PackedSequence], counts: Sequence[int]) -> PackedContext:
    """The context of a layer that runs for the last tokens of each sequence alone."""
    edges = pairwise(accumulate(counts, initial=0))
    return PackedContext(
        [
            PackedSequence(
                span=slice(*edge),
                state=sequence.state,
                context=PositionContext(
                    sequence.context.query_positions[-count:],
                    sequence.context.key_positions,
                    local_window=sequence.context.local_window,
                ),
            )
            for sequence, count, edge in zip(sequences, counts, edges, strict=True)
        ]
    )
