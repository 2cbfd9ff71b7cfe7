"""A cache of the target filled from the draft's states, checked at checkpoint tokens, and partly recomputed."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.draft_kv.checkpoints import attention_mass, attention_output_error, checkpoint_slots, copy_slots
from specprefill_cli.draft_kv.projection import KvMap
from specprefill_cli.draft_kv.raw_kv import StateCapture, embedded_states, finished_keys, raw_keys_values, split_heads
from specprefill_cli.models.running.adapter import window_layers
from specprefill_cli.models.running.cache import KvCacheState, device_of, layer_count, new_state
from specprefill_cli.models.running.packed import forward
from specprefill_cli.models.running.passes import ForwardInput, QueryCapture, before_each_pass
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scores

# The first tokens of a prompt gather attention from everywhere and are always computed.
ALWAYS_EXACT = 16


@torch.inference_mode()
def mapped_state(request: PrefillRequest, kv_map: KvMap, draft_states: dict[int, Tensor]) -> KvCacheState:
    """A target cache of all prompt tokens: layer 0 exact, others mapped from normalised inputs [M, draft_hidden]."""
    model, tokens = request.target.model, request.prompt.tokens
    positions = torch.arange(len(tokens))
    embedded = embedded_states(model, tokens)
    # Filled layer by layer, to avoid a second copy of the cache.
    state = new_state(len(tokens))
    for layer in range(layer_count(model)):
        if layer == 0:
            keys, values = raw_keys_values(model, 0, embedded)
        else:
            place = (device_of(model.get_decoder().layers[layer]), model.dtype)
            keys, values = (part.to(*place) for part in kv_map.apply(layer, draft_states, embedded))
        finished = finished_keys(model, layer, keys, positions)
        state.cache.update(finished[None], split_heads(model, layer, values)[None], layer)
    state.positions = positions
    return state


@dataclass(frozen=True, kw_only=True)
class MappedPrompt:
    """A prompt before any chunk is recomputed.

    state: the target's cache; computed: prompt tokens that are exact in it
    mass, errors: attention mass and error of every document token, [layers, n] each; risks: [chunks]
    """

    scores: Scores
    state: KvCacheState
    computed: Tensor
    mass: Tensor
    errors: Tensor
    risks: Tensor


@torch.inference_mode()
def inspect(request: PrefillRequest, state: KvCacheState, scores: Scores) -> MappedPrompt:
    """Compute prefix, suffix and checkpoint tokens against the mapped cache, and compare mapped with computed KV."""
    prompt, model = request.prompt, request.target.model
    start, end = prompt.document
    checkpoints = checkpoint_slots(prompt.document, scores.importance)
    always = torch.arange(min(max(start, ALWAYS_EXACT), end))
    suffix = torch.arange(end, prompt.length)
    slots = torch.unique(torch.cat([torch.arange(start), always, checkpoints, suffix]))
    mapped = copy_slots(state, checkpoints)
    capture = QueryCapture(torch.cat([checkpoints, suffix]))
    recompute_parts(request, state, slots, capture)
    computed, queries = copy_slots(state, checkpoints), capture.at(checkpoints)
    windows = window_layers(model.config)
    errors = attention_output_error(mapped, computed, queries, windows, torch.arange(start, end))
    # Tokens just computed hold the target's own values.
    errors[:, slots[(slots >= start) & (slots < end)] - start] = 0
    mass = attention_mass(state, capture.at(suffix), prompt.document, windows)
    # Attention mass times error, mean over layers, summed over a chunk's tokens.
    token_risks, size = (mass * errors).mean(0), request.chunk_size
    risks = F.pad(token_risks, (0, -len(token_risks) % size)).view(-1, size).sum(1)
    return MappedPrompt(scores=scores, state=state, computed=slots, mass=mass, errors=errors, risks=risks)


@torch.inference_mode()
def repair(request: PrefillRequest, state: KvCacheState, slots: Tensor) -> Tensor:
    """Recompute slots [N], ascending, then the suffix on the repaired cache; return the logits [V] of the last token."""
    prompt = request.prompt
    recompute_parts(request, state, slots)
    suffix = torch.arange(state.length - (prompt.length - prompt.document[1]), state.length)
    return recompute(request.target.model, prompt.tokens[state.positions[suffix]], suffix, state)


def recompute_parts(
    request: PrefillRequest, state: KvCacheState, slots: Tensor, capture: QueryCapture | None = None
) -> None:
    """Recompute slots [N], ascending, in passes of the request's size: no token sees a token of a later pass."""
    for first in range(0, len(slots), request.prefill_chunk):
        pass_slots = slots[first : first + request.prefill_chunk]
        tokens = request.prompt.tokens[state.positions[pass_slots]]
        recompute(request.target.model, tokens, pass_slots, state, capture, logits=False)


def recompute(
    model: PreTrainedModel,
    tokens: Tensor,
    slots: Tensor,
    state: KvCacheState,
    capture: QueryCapture | None = None,
    logits: bool = True,
) -> Tensor:
    """Run tokens [N] and put their keys and values into slots [N], ascending, of a filled cache.

    Returns float32 logits [V] of the last token; without `logits` the pass ends with the last layer's values.
    """
    last_layer = None if logits else layer_count(model) - 1
    positions = state.positions[slots]
    # Copied once to each device, because every copy waits for it.
    slots_by_device = {device: slots.to(device) for device in {layer.keys.device for layer in state.layers}}
    for layer in state.layers:
        layer.slots = slots_by_device[layer.keys.device]
    try:
        step = ForwardInput(
            model=model, tokens=tokens, positions=positions, state=state, capture=capture, last_layer=last_layer
        )
        return forward([step], [slots])[0]
    finally:
        for layer in state.layers:
            layer.slots = None


def drop_slots(state: KvCacheState, kept: Tensor) -> KvCacheState:
    """The cache reduced to slots [K], ascending."""
    reduced = new_state(len(kept))
    for number, layer in enumerate(state.layers):
        places = kept.to(layer.keys.device)
        reduced.cache.update(layer.keys.index_select(-2, places), layer.values.index_select(-2, places), number)
    reduced.positions = state.positions[kept]
    return reduced


def score_and_map(request: PrefillRequest, kv_map: KvMap) -> tuple[Scores, KvCacheState]:
    """Score with a cold draft, since the map needs all its states, and fill a target cache from them."""
    last_layer = max(kv_map.draft_layers, default=0)
    drafted = replace(request.without_caches(), last_draft_layer=last_layer, draft_window=kv_map.window)
    with before_each_pass(None), StateCapture(request.draft.model, kv_map.draft_layers) as capture:
        scores = SCORERS[request.scorer].score(drafted)
    with before_each_pass(None), request.clock.phase("mapping"):
        states = {layer: capture.states(layer, request.prompt.length) for layer in kv_map.draft_layers}
        return scores, mapped_state(request, kv_map, states)
