"""With `cache.py` and `keys.py` the only module that touches transformers' internals: attention, masks, passes.

transformers derives causality from the place of a token in the cache and sliding windows from cache slots. After a
sparse prefill neither holds, so the models loaded by specprefill run an attention function of our own, which masks by
position; `tests/models/test_adapter.py` pins what it relies on (seen in transformers 5.23, 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from specprefill_cli.models.cache import PrefillState, device_of, new_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION = "specprefill"
# Queries a masked attention call handles at once: bounds its mask to QUERY_BLOCK x keys.
QUERY_BLOCK = 1_024
# A forward pass costs at least as much as this many tokens do, however short it is: Python and kernel launches on a CPU
# (one token against 1,024, on two cores: 35 tokens for the target of `tiny`, 76 for its draft), and on a GPU reading all
# weights besides (memory bandwidth against arithmetic of current cards; calculated, not measured).
PASS_OVERHEAD_TOKENS = {"cpu": 48, "cuda": 300}


@dataclass
class QueryCapture:
    """Keeps the queries of chosen tokens as attention sees them: after q-norm and rotary embedding.

    wanted:  token indices in the prompt whose queries are kept, ascending
    queries: per layer index, tensors [heads, rows, head_size], in the order of the tokens
    scaling: per layer index, the factor that the layer puts on query-key products
    """

    wanted: Tensor
    queries: dict[int, list[Tensor]] = field(default_factory=dict)
    scaling: dict[int, float] = field(default_factory=dict)

    def keep(self, module: torch.nn.Module, queries: Tensor, rows: Tensor, scaling: float) -> None:
        layer = module.layer_idx
        self.queries.setdefault(layer, []).append(queries[0].index_select(1, rows.to(queries.device)))
        self.scaling[layer] = scaling

    def layer(self, number: int) -> Tensor:
        """All kept queries of a layer: [heads, rows, head_size]."""
        return torch.cat(self.queries[number], dim=1)


@dataclass
class PositionContext:
    """What our attention function must know of one forward pass.

    query_positions, key_positions: [Q] and [K] absolute positions on the CPU, ascending; the queries' own are among
        the keys'
    capture, rows: where to keep queries, and which rows of this pass (None: keep none)
    last_layer: the layer whose queries and keys end the pass (None: run to the end)
    masks: those built so far, because layers of one kind need the same
    """

    query_positions: Tensor
    key_positions: Tensor
    capture: QueryCapture | None = None
    rows: Tensor | None = None
    last_layer: int | None = None
    masks: dict[tuple, Tensor] = field(default_factory=dict)

    @cached_property
    def largest_distance(self) -> int:
        """Positions from the first key to the last query."""
        return int(self.query_positions[-1] - self.key_positions[0])

    @property
    def reads_everything(self) -> bool:
        """Whether the queries are the keys' last ones, so that causality by slot is causality by position."""
        return bool(self.query_positions[-1] == self.key_positions[-1])

    def visible_keys(self, first: int, last: int, window: int | None) -> slice:
        """The keys that one of the queries [first, last) can see."""
        end = int(torch.searchsorted(self.key_positions, self.query_positions[last - 1], right=True))
        if window is None:
            return slice(0, end)
        oldest = self.query_positions[first] - window + 1
        return slice(int(torch.searchsorted(self.key_positions, oldest)), end)


def block_mask(
    context: PositionContext, first: int, last: int, seen: slice, window: int | None, device: torch.device
) -> Tensor:
    """The mask [last - first, seen] of a block of queries, built once a pass for each kind of layer and device."""
    key = (first, last, window, device)
    if key not in context.masks:
        mask = position_mask(context.query_positions[first:last], context.key_positions[seen], window)
        context.masks[key] = mask.to(device)
    return context.masks[key]


class LayerReached(Exception):
    """Raised inside attention to end a pass whose upper layers nobody needs."""


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    context: PositionContext | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attention by position: query [1, heads, Q, d], key and value [1, kv_heads, K, d] -> [1, Q, heads, d].

    Raises ValueError for a variant of attention that it does not compute.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if context is None or attention_mask is not None or unknown:
        raise ValueError(f"specprefill's attention needs positions, and no mask or {', '.join(unknown) or 'bias'}")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if context.capture is not None and context.rows is not None and len(context.rows):
        context.capture.keep(module, query, context.rows, scaling)
    if context.last_layer == module.layer_idx:
        raise LayerReached
    length, total = query.shape[2], key.shape[2]
    window = sliding_window if sliding_window is not None and context.largest_distance >= sliding_window else None
    if window is None and length in (1, total) and context.reads_everything:
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=length > 1, scale=scaling, enable_gqa=grouped
        )
        return mixed.transpose(1, 2), None
    blocks = []
    for first in range(0, length, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, length)
        seen = context.visible_keys(first, last, window)
        mask = block_mask(context, first, last, seen, window, query.device)
        blocks.append(masked_attention(query[:, :, first:last], key[:, :, seen], value[:, :, seen], mask, scaling))
    return torch.cat(blocks, dim=2).transpose(1, 2), None


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention [1, heads, Q, d] under a boolean mask [Q, K]."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and query.is_cuda:
        # With a mask, CUDA has no fused kernel for grouped keys and would build all scores at once.
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)


def position_mask(query_positions: Tensor, key_positions: Tensor, window: int | None) -> Tensor:
    """Boolean [Q, K]: a key is seen when it is not later than the query, and inside the window counted in positions."""
    seen = key_positions[None] <= query_positions[:, None]
    return seen if window is None else seen & (key_positions[None] > query_positions[:, None] - window)


def no_mask(*_: object, **__: object) -> None:
    """Registered with the attention function, so that transformers builds no mask for it."""


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, no_mask)


def recompute(
    model: PreTrainedModel,
    tokens: Tensor,
    slots: Tensor,
    state: PrefillState,
    capture: QueryCapture | None = None,
    logits: bool = True,
) -> Tensor | None:
    """One forward pass of tokens [N] whose keys and values replace those in slots [N], ascending, of a filled cache.

    Each token sees the keys at positions up to its own, whatever lies in slots behind it. Returns the logits [V] of the
    last token, or None without `logits`.
    """
    for layer in state.cache.layers:
        layer.slots = slots
    try:
        return forward(model, tokens, state.positions[slots], state, slots, capture, logits)
    finally:
        for layer in state.cache.layers:
            layer.slots = None


def run(
    model: PreTrainedModel,
    tokens: Tensor,
    positions: Tensor,
    state: PrefillState,
    capture: QueryCapture | None = None,
    logits: bool = True,
    last_layer: int | None = None,
    rows: int | None = None,
) -> Tensor | None:
    """One forward pass of tokens [N] at positions [N] behind the state, which grows by N.

    last_layer: end the pass when this layer has its queries, keys and values; those above it get none for these tokens

    Returns the logits [V] of the last token in float32; those of the last `rows` tokens [rows, V] where `rows` is
    given; or None where `logits` is false or the pass ends early: then the head over the vocabulary is not computed.
    """
    slots = torch.arange(state.length, state.length + len(tokens))
    state.positions = torch.cat([state.positions, positions])
    return forward(model, tokens, positions, state, slots, capture, logits, last_layer, rows)


@torch.inference_mode()
def forward(
    model: PreTrainedModel,
    tokens: Tensor,
    positions: Tensor,
    state: PrefillState,
    slots: Tensor,
    capture: QueryCapture | None,
    logits: bool,
    last_layer: int | None = None,
    rows: int | None = None,
) -> Tensor | None:
    """The pass behind `run` and `recompute`; the state knows the positions of all slots already."""
    captured = None
    if capture is not None:
        # The tokens that a capture wants are named by their slots: in a cache of the whole prompt, their positions.
        captured = torch.isin(slots, capture.wanted).nonzero()[:, 0]
    device = device_of(model.get_input_embeddings())
    whole = logits and last_layer is None
    call = model if whole else model.base_model
    try:
        output = call(
            input_ids=tokens[None].to(device),
            position_ids=positions[None].to(device),
            past_key_values=state.cache,
            use_cache=True,
            context=PositionContext(positions, state.positions, capture, captured, last_layer),
            **({"logits_to_keep": rows or 1} if whole else {}),
        )
    except LayerReached:
        return None
    if not whole:
        return None
    return output.logits[0, -1].float() if rows is None else output.logits[0, -rows:].float()


def prefill(
    model: PreTrainedModel,
    tokens: Tensor,
    positions: Tensor,
    chunk: int,
    capture: QueryCapture | None = None,
    state: PrefillState | None = None,
) -> tuple[Tensor, PrefillState]:
    """Run tokens [N] at positions [N] through the model, `chunk` at a time; logits [V] of the last one, and the state.

    Only the last token needs an output of the last layer; the others leave there nothing but keys and values. Where
    that saves more than one more pass costs, they end in it, and the last token follows alone.
    """
    state = new_state(len(tokens)) if state is None else state
    layers = model.config.get_text_config().num_hidden_layers
    if len(tokens) > layers * pass_overhead(device_of(model.get_input_embeddings()).type):
        read_keys(model, tokens[:-1], positions[:-1], chunk, layers - 1, capture, state)
        return run(model, tokens[-1:], positions[-1:], state, capture), state
    result = None
    for start, end in chunked(len(tokens), chunk):
        result = run(model, tokens[start:end], positions[start:end], state, capture, logits=end == len(tokens))
    return result, state


def read_keys(
    model: PreTrainedModel,
    tokens: Tensor,
    positions: Tensor,
    chunk: int,
    last_layer: int,
    capture: QueryCapture | None,
    state: PrefillState,
) -> None:
    """Run tokens [N] as far as the queries, keys and values of `last_layer`; the layers above stay without them."""
    for start, end in chunked(len(tokens), chunk):
        run(model, tokens[start:end], positions[start:end], state, capture, last_layer=last_layer)


def pass_overhead(device_type: str) -> int:
    """Tokens whose computation takes as long as the fixed cost of a forward pass on a kind of device."""
    return PASS_OVERHEAD_TOKENS.get(device_type, PASS_OVERHEAD_TOKENS["cuda"])


def chunked(length: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + size, length)) for start in range(0, length, size))


def window_layers(config) -> Sequence[int | None]:
    """Per layer, the sliding window in tokens, or None for full attention."""
    text = config.get_text_config()
    window = getattr(text, "sliding_window", None)
    if window is None or getattr(text, "use_sliding_window", True) is False:
        return [None] * text.num_hidden_layers
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def rotation_depends_on_length(config) -> bool:
    """Whether the rotary embedding of a token changes with the length of its prompt, as with `longrope` and `dynamic`."""
    found = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [found, *(part for part in found.values() if isinstance(part, dict))]
    return any(kind.get("rope_type") in ("longrope", "dynamic") for kind in kinds)


def devices(model: PreTrainedModel) -> frozenset[torch.device]:
    """The devices that a model runs on."""
    return frozenset(parameter.device for parameter in model.parameters() if not parameter.is_meta)


def synchronize(used: Iterable[torch.device]) -> None:
    """Wait until devices have finished their work, so that a clock around it tells the truth."""
    for device in used:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()
