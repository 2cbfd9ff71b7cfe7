"""Recompute slots of a filled cache: in all layers, or with tokens that leave the pass at layers of their own.

The depth of a token is the number of lower layers in which it gets keys and values. Those of a layer need the whole layer
below, so that a token passes through all layers below its depth but the last one, of which it runs the projections only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specprefill_cli.models.adapter import forward
from specprefill_cli.models.attention import LayerReached
from specprefill_cli.models.cache import PrefillState, layer_count
from specprefill_cli.models.last_layer import WITH_ROWS, can_shorten, part_of
from specprefill_cli.models.masks import PositionContext
from specprefill_cli.models.passes import Pass
from specprefill_cli.models.query_capture import QueryCapture


def recompute(
    model: PreTrainedModel,
    tokens: Tensor,
    slots: Tensor,
    state: PrefillState,
    capture: QueryCapture | None = None,
    logits: bool = True,
    depths: Tensor | None = None,
) -> Tensor:
    """Run tokens [N] whose keys and values replace those in slots [N], ascending, of a filled cache.

    Each token sees the keys at positions up to its own. Returns the logits [V] of the last token in float32, or
    an empty tensor without `logits`: then the pass ends with the keys and values of the last layer.

    depths: [N] for each token in how many of the lower layers, at least 1, without `logits` (None: in all)
    """
    last_layer = None if logits else layer_count(model) - 1
    if depths is not None:
        last_layer = int(depths.max()) - 1
    # One copy per device, because every copy waits for it.
    moved = {device: slots.to(device) for device in {layer.keys.device for layer in state.layers}}
    for layer in state.layers:
        layer.slots = moved[layer.keys.device]
    try:
        with leaving_at(model, state, slots, depths) if depths is not None else nullcontext():
            step = Pass(
                model=model,
                tokens=tokens,
                positions=state.positions[slots],
                state=state,
                capture=capture,
                last_layer=last_layer,
            )
            return forward(step, slots)
    finally:
        for layer in state.layers:
            layer.slots = None


@contextmanager
def leaving_at(model: PreTrainedModel, state: PrefillState, slots: Tensor, depths: Tensor) -> Iterator[None]:
    """While it lasts, tokens that go to slots [N] of a filled cache leave a pass at their depths [N], each at least 1.

    The pass itself must end with the queries, keys and values of layer `depths.max() - 1`.
    """
    leaving = LeavingRows(state, slots, depths)
    with ExitStack() as hooks:
        for number, layer in enumerate(model.get_decoder().layers[: int(depths.max())]):
            handle = layer.register_forward_pre_hook(partial(leaving.enter, number), with_kwargs=True)
            hooks.callback(handle.remove)
        yield


class LeavingRows:
    """Which tokens of the pass are still in it; `enter` is called before each of its layers.

    rows: their places [R] among all tokens of the pass; context: what attention must know of them, None for all tokens
    """

    def __init__(self, state: PrefillState, slots: Tensor, depths: Tensor) -> None:
        self.state, self.slots, self.depths = state, slots, depths
        self.rows = torch.arange(len(slots))
        self.context: PositionContext | None = None

    def enter(
        self, number: int, layer: nn.Module, arguments: tuple, keywords: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]] | None:
        """A hook: run the tokens for which this layer is the last one to its keys and values, and go on with the others.

        Raises ValueError for a layer that is called in an unknown way.
        """
        # A hook that Ctrl-C left behind must not touch the next pass, which has a cache of its own.
        if keywords.get("past_key_values") is not self.state.cache:
            return None
        if len(arguments) != 1 or not can_shorten(keywords):
            raise ValueError(f"layer {number} takes more than hidden states, so that tokens cannot leave before it")
        states: Tensor = arguments[0]
        staying = self.depths[self.rows] > number + 1
        if staying.any() and not staying.all():
            places = (~staying).nonzero()[:, 0]
            own, context = self.rows[places], keywords["context"]
            with suppress(LayerReached):
                layer.forward(
                    states[:, places.to(states.device)],
                    **self.part(number, own, keywords, row_context(context, own, last_layer=number)),
                )
            places = staying.nonzero()[:, 0]
            self.rows = self.rows[places]
            self.context = row_context(context, self.rows, last_layer=context.last_layer)
            states = states[:, places.to(states.device)]
        if self.context is None:
            return None
        return (states,), self.part(number, self.rows, keywords, self.context)

    def part(self, number: int, rows: Tensor, keywords: dict[str, Any], context: PositionContext) -> dict[str, Any]:
        """What a layer is called with for some of the tokens; their keys and values go to their own slots."""
        cached = self.state.layers[number]
        cached.slots = self.slots[rows].to(cached.keys.device)
        shorter = {name: part_of(keywords[name], rows) for name in WITH_ROWS if name in keywords}
        return {**keywords, **shorter, "context": context}


def row_context(context: PositionContext, rows: Tensor, last_layer: int | None) -> PositionContext:
    """What attention must know of some tokens [R] of a pass."""
    return PositionContext(
        context.query_positions[rows],
        context.key_positions,
        last_layer=last_layer,
        local_window=context.local_window,
    )
