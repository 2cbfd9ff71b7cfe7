"""The end of a pass: in the last layer every token leaves keys and values, but only the last one's output is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specprefill_cli.models.attention import LayerReached
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.masks import PositionContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What transformers hands a layer besides its states [1, N, hidden_size]: these two have a row for each token.
ROWS = ("position_ids", "position_embeddings")
OTHERS = ("attention_mask", "past_key_values", "use_cache", "context")


@contextmanager
def only_last_token(model: PreTrainedModel, state: PrefillState, slots: Tensor) -> Iterator[None]:
    """While it lasts, a pass of tokens that go to slots [N] ends with the output of the last one alone.

    The layer runs twice: for all tokens as far as their keys and values, then through to its end for the last token. A
    layer that is built or called otherwise than this module knows runs once, for all.
    """
    layer = getattr(model.get_decoder(), "layers", [None])[-1]
    number = getattr(getattr(layer, "self_attn", None), "layer_idx", None)
    if number is None:
        yield
        return

    def shorten(layer: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        # A hook that Ctrl-C left behind must not touch the next pass, which has a cache of its own.
        if len(arguments) != 1 or not known(keywords) or keywords["past_key_values"] is not state.cache:
            return None
        context = keywords["context"]
        try:
            layer.forward(*arguments, **{**keywords, "context": replace(context, last_layer=number)})
        except LayerReached:
            """Keys, values and the queries that somebody wants to see are in their places."""
        cached = state.cache.layers[number]
        cached.slots = torch.full((1,), int(slots[-1]), device=cached.keys.device)
        last = PositionContext(context.query_positions[-1:], context.key_positions, local_window=context.local_window)
        shorter = {name: last_row(keywords[name]) for name in ROWS if name in keywords}
        return (arguments[0][:, -1:],), {**keywords, **shorter, "context": last}

    handle = layer.register_forward_pre_hook(shorten, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        for layer in state.cache.layers:
            layer.slots = None


def known(keywords: Mapping[str, Any]) -> bool:
    """Whether a layer is called with nothing that might have a row for each token but what can be shortened."""
    return {"context", "past_key_values"} <= keywords.keys() and all(
        name in (*ROWS, *OTHERS) or value is None or isinstance(value, bool | int | float | str)
        for name, value in keywords.items()
    )


def last_row(value: Tensor | tuple[Tensor, ...] | None) -> Tensor | tuple[Tensor, ...] | None:
    """The last token's part of a tensor [1, N, ...], or of each tensor in a tuple."""
    if value is None:
        return None
    return tuple(part[:, -1:] for part in value) if isinstance(value, tuple) else value[:, -1:]
