"""Signals of checkpoint tokens for the error of mapped KV: a number for each layer and checkpoint token.

All signals except the hidden state's error need only what the target computes at checkpoint tokens anyway. The map gives
no hidden states, so that error needs the hidden states of full prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.distributed.ranks import ALONE
from specprefill_cli.draft_kv.checkpoints import SlotKv, attention_output_error, relative_errors
from specprefill_cli.draft_kv.mapped_cache import recompute
from specprefill_cli.draft_kv.raw_kv import StateCapture
from specprefill_cli.models.adapter import window_layers
from specprefill_cli.models.cache import KvCacheState, layer_count
from specprefill_cli.models.passes import QueryCapture
from specprefill_cli.prefill.request import PrefillRequest

ERROR, KEY_COSINE, VALUE_ERROR = "error", "key_cosine", "value_error"
ATTENTION_OUTPUT, HIDDEN_STATE = "attention_output_error", "hidden_state_error"
# Signals that do not need full prefill.
OBSERVABLE = (ERROR, KEY_COSINE, VALUE_ERROR, ATTENTION_OUTPUT)


@dataclass(frozen=True)
class Observation:
    """The queries of checkpoint tokens, and their hidden states [C, hidden_size] by layer, as input to attention."""

    queries: QueryCapture
    states: tuple[Tensor, ...]


def observe(request: PrefillRequest, state: KvCacheState, computed: Tensor, checkpoints: Tensor) -> Observation:
    """Recompute the slots that `inspect` computed, and capture queries and states; the cache keeps the same KV."""
    model = request.target.model
    queries, layers = QueryCapture(checkpoints), range(layer_count(model))
    with StateCapture(model, layers) as capture:
        recompute(model, request.prompt.tokens[computed], computed, state, queries, logits=False)
    rows = torch.isin(computed, checkpoints).nonzero()[:, 0]
    return Observation(queries, tuple(rows_of(capture.states(layer, len(computed)), rows) for layer in layers))


def rows_of(states: Tensor, rows: Tensor) -> Tensor:
    """Take some rows [C] of states [N, hidden_size]; they may be on different devices."""
    return states[rows.to(states.device)]


def signals_at(
    request: PrefillRequest, before: SlotKv, after: SlotKv, observed: Observation, exact: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Every signal by name, [layers, C] each.

    before, after: KV of the checkpoint tokens as mapped, and as computed
    exact: inputs [C, hidden_size] of the checkpoint tokens by layer, in full prefill
    """
    states = zip(observed.states, exact, strict=True)
    key_values = key_value_errors(before, after)
    return {
        ERROR: key_values.mean(0),
        KEY_COSINE: key_distance(before, after),
        VALUE_ERROR: key_values[1],
        ATTENTION_OUTPUT: attention_output_error(
            before, after, observed.queries, window_layers(request.pair.target.config)
        ),
        HIDDEN_STATE: torch.stack([relative_error(computed, reference) for computed, reference in states]),
    }


def key_value_errors(mapped: SlotKv, computed: SlotKv) -> Tensor:
    """Relative squared error of mapped keys and of mapped values: [2, layers, C], float32 on the CPU.

    The computed values are only nearly exact: above the first layer their context is mapped.
    """
    layers = zip(mapped.layers, computed.layers, strict=True)
    pairs = (pair for before, after in layers for pair in zip(before, after, strict=True))
    return relative_errors(pairs, ALONE).unflatten(0, (-1, 2)).transpose(0, 1)


def relative_error(values: Tensor, reference: Tensor) -> Tensor:
    """|values - reference|^2 / |reference|^2 of rows [C, size]: [C], float32 on the CPU."""
    values, reference = values.float(), reference.float()
    return ((values - reference).square().sum(-1) / reference.square().sum(-1).clamp(min=1e-12)).cpu()


def key_distance(before: SlotKv, after: SlotKv) -> Tensor:
    """1 - cosine of mapped and computed keys, averaged over heads: [layers, C]."""
    pairs = zip(before.layers, after.layers, strict=True)
    return torch.stack(
        [(1 - F.cosine_similarity(old.float(), new.float(), dim=-1)).mean(0).cpu() for (old, _), (new, _) in pairs]
    )
