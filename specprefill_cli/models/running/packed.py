"""A forward pass of several sequences: linear layers run over all their tokens together, attention over each sequence alone.

Each sequence has its own cache and positions; prefill, verification and decoding are sequences of different lengths.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specprefill_cli.models.running.attention import LayerReached, group_heads
from specprefill_cli.models.running.cache import copy_to, device_of
from specprefill_cli.models.running.passes import ForwardInput, SequenceMetadata

# The fixed cost of a pass, in tokens computed in the same time: Python and kernel launches on a CPU (measured), and on a
# GPU reading all weights (calculated from the bandwidth and arithmetic of current cards).
PASS_OVERHEAD_TOKENS = {"cpu": 96, "cuda": 300}


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
        slots = [torch.arange(step.state.length - len(step.tokens), step.state.length) for step in passes]
    edges = list(accumulate((len(step.tokens) for step in passes), initial=0))
    spans = [slice(*edge) for edge in pairwise(edges)]
    inputs = {
        "input_ids": copy_to(torch.cat([step.tokens for step in passes])[None], device),
        "position_ids": copy_to(torch.cat([step.positions for step in passes])[None], device),
        "past_key_values": PackedCache(),
        "use_cache": True,
        # For `attend`.
        "sequences": list(map(sequence_metadata, passes, slots, spans)),
        "last_layer": last_layer,
    }
    if last_layer is not None:
        with suppress(LayerReached):
            model.base_model(**inputs)
        return [torch.empty(0)] * len(passes)
    counts = [step.rows or 1 for step in passes]
    # A tensor would go to the first device, and the last layer's states may be on another.
    rows = [row for end, count in zip(edges[1:], counts, strict=True) for row in range(end - count, end)]
    logits_by_pass = model(**inputs, logits_to_keep=rows).logits[0].float().split(counts)
    return [part[-1] if step.rows is None else part for step, part in zip(passes, logits_by_pass, strict=True)]


def sequence_metadata(step: ForwardInput, slots: Tensor, span: slice) -> SequenceMetadata:
    """A pass as attention sees it, with its slots [N] and its place among the tokens of all passes."""
    # In a cache of the whole prompt, a token's slot is its position.
    state, capture = step.state, step.capture
    rows = None if capture is None else torch.isin(slots, capture.positions).nonzero()[:, 0]
    return SequenceMetadata(
        step.positions, state.positions, step.local_window, span=span, state=state, capture=capture, rows=rows
    )


def pass_overhead(device_type: str) -> int:
    """The fixed cost of a forward pass on a type of device, in tokens computed in the same time."""
    return PASS_OVERHEAD_TOKENS.get(device_type, PASS_OVERHEAD_TOKENS["cuda"])


def last_token_runs_apart(tokens: int, layers: int, overhead_tokens: int) -> bool:
    """Whether the last token of a prompt gets a pass of its own, so that the others need no output of the last layer.

    It pays at least 11 % of the TTFT of `full` and 7 % of that of `select` at 8,192 tokens with six layers.
    """
    return tokens > layers * overhead_tokens


# Architectures with the layers that `OneTokenPass` computes, where they have no sliding window.
SUPPORTED_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# The pass of each model that has decoded; None where transformers must compute it.
PREPARED: "WeakKeyDictionary[PreTrainedModel, OneTokenPass | None]" = WeakKeyDictionary()


class OneTokenPass:
    """Calls the linear layers, and the rotary embedding once; norms, rotation and attention are single torch operations."""

    def __init__(self, model: PreTrainedModel) -> None:
        decoder: Any = model.get_decoder()
        self.embeddings, self.rotary, self.norm = decoder.embed_tokens, decoder.rotary_emb, decoder.norm
        head: Any = model.get_output_embeddings()
        self.head = head.forward
        self.layers = []
        for block in decoder.layers:
            attention = [getattr(block.self_attn, f"{name}_proj").forward for name in "qkvo"]
            mlp = [getattr(block.mlp, f"{name}_proj").forward for name in ("gate", "up", "down")]
            self.layers.append((block, block.self_attn, attention, mlp))

    @torch.inference_mode()
    def __call__(self, token: Tensor, position: Tensor, cache: Any) -> Tensor:
        """Run a token [1] at a position [1] after those of the cache; return float32 logits [1, V]."""
        hidden = self.embeddings(token)
        cos, sin = (factor[0] for factor in self.rotary(hidden, position[None]))
        half = cos.shape[-1] // 2
        # The rotation subtracts the half that `roll` moves to the front.
        sin = torch.cat([-sin[:, :half], sin[:, half:]], dim=-1)
        layers = enumerate(self.layers)
        for number, (block, attention, (to_query, to_key, to_value, to_output), (gate, up, down)) in layers:
            states = apply_norm(block.input_layernorm, hidden)
            projected = (project(states) for project in (to_query, to_key, to_value))
            query, key, value = (part.view(1, -1, 1, attention.head_dim) for part in projected)
            if hasattr(attention, "q_norm"):
                query, key = apply_norm(attention.q_norm, query), apply_norm(attention.k_norm, key)
            query, key = (torch.addcmul(part * cos, part.roll(half, -1), sin) for part in (query, key))
            keys, values = cache.update(key, value, number)
            query = group_heads(query, keys)
            output = F.scaled_dot_product_attention(query, keys, values, scale=attention.scaling)
            hidden = hidden + to_output(output.view(1, -1))
            states = apply_norm(block.post_attention_layernorm, hidden)
            hidden = hidden + down(block.mlp.act_fn(gate(states)) * up(states))
        return self.head(apply_norm(self.norm, hidden)).float()


def apply_norm(norm: Any, states: Tensor) -> Tensor:
    """States under a root-mean-square norm."""
    return F.rms_norm(states, norm.weight.shape, norm.weight, norm.variance_epsilon)


def one_token_pass(step: ForwardInput) -> OneTokenPass | None:
    """The quick pass of decoding, or None where transformers' modules must compute it."""
    decodes = len(step.tokens) == 1 and step.rows == 1 and step.capture is None and step.last_layer is None
    if not decodes:
        return None
    if step.model not in PREPARED:
        PREPARED[step.model] = OneTokenPass(step.model) if is_supported(step.model) else None
    return PREPARED[step.model]


def is_supported(model: PreTrainedModel) -> bool:
    """Whether `OneTokenPass` computes a model's layers: of a supported type, undivided, and on the CPU."""
    config = model.config
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    on_cpu = all(parameter.device.type == "cpu" for parameter in model.parameters())
    is_undivided = (getattr(model, "_tp_size", None) or 1) == 1
    return config.model_type in SUPPORTED_TYPES and not windowed and on_cpu and is_undivided
