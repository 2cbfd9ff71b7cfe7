"""What a checkpoint can see of the error of mapped KV, one number for each layer and checkpoint.

`attention_output_error` and the measures of keys and values need only what the target computes at checkpoints anyway.
The hidden state's error does not: the map gives keys and values, no states of the target, so that the computed state
can only be held against the one of full prefill. It tells how far a checkpoint itself can be trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.models.adapter import recompute, window_layers
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.models.raw_kv import StateCapture, layer_count
from specprefill_cli.prefill.checkpoints import SlotKv, checkpoint_errors, key_value_errors
from specprefill_cli.prefill.request import PrefillRequest

ERROR, KEY_COSINE, VALUE_ERROR = "error", "key_cosine", "value_error"
ATTENTION_OUTPUT, HIDDEN_STATE = "attention_output_error", "hidden_state_error"
# Those that a request can compute without full prefill.
OBSERVABLE = (ERROR, KEY_COSINE, VALUE_ERROR, ATTENTION_OUTPUT)


@dataclass(frozen=True)
class Watched:
    """The checkpoints' queries, and the normalised inputs [C, hidden_size] of every layer, while they were computed."""

    queries: QueryCapture
    states: tuple[Tensor, ...]


def watch(request: PrefillRequest, state: PrefillState, computed: Tensor, checkpoints: Tensor) -> Watched:
    """Compute the slots that `inspect` computed once more: that changes nothing, and this time it is watched."""
    model = request.pair.target.model
    queries, layers = QueryCapture(checkpoints), range(layer_count(model))
    with StateCapture(model, layers) as states:
        recompute(model, request.prompt.tokens[computed], computed, state, queries, logits=False)
    rows = torch.isin(computed, checkpoints).nonzero()[:, 0]
    return Watched(queries, tuple(picked(states.states(layer, len(computed)), rows) for layer in layers))


def picked(states: Tensor, rows: Tensor) -> Tensor:
    return states[rows.to(states.device)]


def signals_at(
    request: PrefillRequest, before: SlotKv, after: SlotKv, watched: Watched, exact: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Every signal by name, [layers, C] each.

    before, after: KV at the checkpoints as mapped and as computed; exact: per layer, the inputs [C, hidden_size] that
    full prefill gives
    """
    windows = window_layers(request.pair.target.model.config)
    return {
        ERROR: checkpoint_errors(before, after),
        KEY_COSINE: key_distance(before, after),
        VALUE_ERROR: key_value_errors(before, after)[1],
        ATTENTION_OUTPUT: attention_output_error(before, after, watched.queries, windows),
        HIDDEN_STATE: torch.stack(
            [relative_error(ours, true) for ours, true in zip(watched.states, exact, strict=True)]
        ),
    }


def relative_error(ours: Tensor, true: Tensor) -> Tensor:
    """|ours - true|^2 / |true|^2 of rows [C, size]: [C], float32 on the CPU."""
    ours, true = ours.float(), true.float()
    return ((ours - true).square().sum(-1) / true.square().sum(-1).clamp(min=1e-12)).cpu()


def key_distance(before: SlotKv, after: SlotKv) -> Tensor:
    """1 - cosine of mapped and computed keys, mean over heads: [layers, C]."""
    return torch.stack(
        [
            (1 - F.cosine_similarity(old.float(), new.float(), dim=-1)).mean(0).cpu()
            for (old, _), (new, _) in zip(before.layers, after.layers, strict=True)
        ]
    )


def attention_output_error(
    before: SlotKv, after: SlotKv, queries: QueryCapture, windows: Sequence[int | None]
) -> Tensor:
    """Relative squared error [layers, C] of the attention's output at each checkpoint, mapped KV against computed KV.

    Only the checkpoints up to it are attended to, because the target's own KV is known nowhere else.
    """
    rows = []
    for layer, window in enumerate(windows):
        asked = queries.layer(layer).float() * queries.scaling[layer]
        outputs = [causal_output(asked, *held.layers[layer], held.slots, window) for held in (before, after)]
        mapped, computed = (output.transpose(0, 1).flatten(1) for output in outputs)
        rows.append(relative_error(mapped, computed))
    return torch.stack(rows)


def causal_output(queries: Tensor, keys: Tensor, values: Tensor, places: Tensor, window: int | None) -> Tensor:
    """Attention [heads, C, d] of scaled queries [heads, C, d] to keys and values [kv_heads, C, d] at places [C]."""
    groups = queries.shape[0] // keys.shape[0]
    keys, values = (held.float().repeat_interleave(groups, 0) for held in (keys, values))
    distance = (places[:, None] - places[None]).to(keys.device)
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    return (queries @ keys.transpose(1, 2)).masked_fill(hidden, float("-inf")).softmax(-1) @ values
