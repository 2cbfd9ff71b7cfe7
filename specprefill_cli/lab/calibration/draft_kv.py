"""Running a pair over text to fit its draft-KV maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.lab.calibration.kv_fit import Gram, fit_map
from specprefill_cli.models.adapter import read_keys
from specprefill_cli.models.attention_plan import LocalWindow
from specprefill_cli.models.cache import layer_keys, new_state
from specprefill_cli.models.loading import LoadedModel, LoadedPair
from specprefill_cli.models.raw_kv import (
    StateCapture,
    embedded_states,
    finished_keys,
    key_value_size,
    layer_count,
    raw_keys_values,
)
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.prefill.projection import KvCalibration, pair_identity

SEQUENCE = 1_024
# Every fifth sequence is held out.
HELD_OUT = 5
MOST_CANDIDATES = 6
FEWEST_SEQUENCES = 10
# With fewer rows for each input a regression fits noise.
ROWS_PER_INPUT = 15


def sequences(texts: Sequence[str], model: LoadedModel, length: int = SEQUENCE) -> Iterator[Tensor]:
    """Token sequences [length] of the texts, each beginning with the begin token where the model has one."""
    begin = [model.tokenizer.bos_token_id] if model.tokenizer.bos_token_id is not None else []
    for text in texts:
        ids, _ = encode_text(model.tokenizer, text)
        for start in range(0, len(ids) - length // 2, length):
            yield torch.tensor([*begin, *ids[start : start + length - len(begin)]])


def calibrate_kv(
    pair: LoadedPair,
    texts: Sequence[str],
    exact_layers: Sequence[int],
    step: Callable[[int], None],
    window: int | None = None,
) -> Calibration:
    """Fit the maps `exact-0-draft`, and for every number of exact layers one with and one without the draft.

    window: how far back the draft sees while it reads; None: to the start

    Raises SpecprefillError for two tokenizers, keys that are made in an unknown way, or a text that is too short;
    UsageError for a number of exact layers that the target does not have.
    """
    if not pair.same_tokenizer:
        raise SpecprefillError(
            f"{pair.draft.name} and {pair.target.name} have different tokenizers: draft KV cannot be mapped between them; "
            "use mode select"
        )
    candidates = draft_candidates(layer_count(pair.draft.model))
    draft_size = pair.draft.model.config.get_text_config().hidden_size
    target_size = pair.target.model.config.get_text_config().hidden_size
    layers = layer_count(pair.target.model)
    edges = sorted(set(exact_layers))
    if edges and not 0 < edges[0] <= edges[-1] < layers - 1:
        raise UsageError(
            f"--exact {','.join(map(str, edges))}: {pair.target.name} can compute 1 to {layers - 2} layers exactly"
        )
    grams = {edge: (new_gram(pair, edge, candidates), new_gram(pair, edge, candidates)) for edge in [0, *edges]}
    count = 0
    for count, tokens in enumerate(sequences(texts, pair.target), 1):
        step(count)
        if count == 1:
            check_keys(pair.target, tokens)
        draft_states = all_states(pair.draft, tokens, candidates, window)
        target_states = all_states(pair.target, tokens, range(layers))
        for edge, (fitted, held_out) in grams.items():
            inputs = ([target_states[edge]] if edge else []) + [draft_states[number] for number in candidates]
            outputs = {
                layer: torch.cat(raw_keys_values(pair.target.model, layer, target_states[layer]), dim=-1)
                for layer in fitted.outputs
            }
            device = inputs[0].device
            joined = torch.cat([part.float().to(device) for part in inputs], dim=-1)
            (held_out if count % HELD_OUT == 0 else fitted).add(joined, outputs)
    if count < FEWEST_SEQUENCES:
        raise SpecprefillError(
            f"the text gives {count} sequences of {SEQUENCE} tokens; draft KV needs at least {FEWEST_SEQUENCES}"
        )
    widest = max(gram[0].inputs.shape[0] for gram in grams.values())
    if grams[0][0].rows < ROWS_PER_INPUT * min(widest, 3 * draft_size + target_size):
        raise SpecprefillError(
            f"the text gives {grams[0][0].rows:,} tokens to fit on; this pair needs at least "
            f"{ROWS_PER_INPUT * min(widest, 3 * draft_size + target_size):,}: give more text"
        )
    maps = [fit_map(*grams[0], candidates, draft_size, 0, 0)]
    for edge in edges:
        maps += [
            fit_map(*grams[edge], candidates, draft_size, target_size, edge, with_draft) for with_draft in (True, False)
        ]
    return Calibration(
        pair_identity(pair), sum(gram.rows for gram in grams[0]), {one.name: one for one in maps}, window
    )


@torch.inference_mode()
def check_keys(model: LoadedModel, tokens: Tensor) -> None:
    """Whether keys built outside the model are the model's own.

    Raises SpecprefillError for an architecture that makes its keys in another way than the adapter knows.
    """
    positions = torch.arange(len(tokens))
    last = layer_count(model.model) - 1
    state = new_state(len(tokens))
    with StateCapture(model.model, range(last + 1)) as capture:
        read_keys(model.model, tokens, positions, len(tokens), last, None, state)
    refused = SpecprefillError(
        f"{model.name}: its keys are made in a way that draft KV does not know; use --mode select"
    )
    first = capture.states(0, len(tokens))
    if not close(embedded_states(model.model, tokens), first):
        raise refused
    for layer in range(last + 1):
        try:
            raw, _ = raw_keys_values(model.model, layer, capture.states(layer, len(tokens)))
            built = finished_keys(model.model, layer, raw, positions)
        except (RuntimeError, AttributeError) as error:
            raise refused from error
        if not close(built, layer_keys(state, layer)):
            raise refused


def close(built: Tensor, own: Tensor) -> bool:
    """Whether two tensors are the same but for rounding."""
    return built.shape == own.shape and bool((built - own).abs().max() <= 0.02 * own.abs().max())


def draft_candidates(layers: int) -> list[int]:
    """Up to six draft layers, evenly spread; the first holds only the tokens themselves and is left out where it can be."""
    usable = list(range(1, layers)) if layers > 2 else list(range(layers))
    if len(usable) <= MOST_CANDIDATES:
        return usable
    return sorted(
        {usable[round(place * (len(usable) - 1) / (MOST_CANDIDATES - 1))] for place in range(MOST_CANDIDATES)}
    )


def new_gram(pair: LoadedPair, edge: int, candidates: Sequence[int]) -> Gram:
    """An empty Gram for the target layers above `edge`, or above the first where no layer is computed exactly."""
    draft, target = pair.draft.model.config.get_text_config(), pair.target.model.config.get_text_config()
    outputs = {}
    for layer in range(edge + 1, layer_count(pair.target.model)):
        heads, size = key_value_size(pair.target.model, layer)
        outputs[layer] = 2 * heads * size
    return Gram.empty((target.hidden_size if edge else 0) + len(candidates) * draft.hidden_size, outputs)


@torch.inference_mode()
def all_states(
    model: LoadedModel, tokens: Tensor, layers: Sequence[int], window: int | None = None
) -> dict[int, Tensor]:
    """Normalised inputs [N, hidden_size] of the layers, from one reading of tokens [N], each seeing `window` back."""
    size, last = len(tokens), layer_count(model.model) - 1
    local = LocalWindow(window, size) if window is not None else None
    with StateCapture(model.model, layers) as capture:
        read_keys(model.model, tokens, torch.arange(size), size, last, None, new_state(size), local)
    return {layer: capture.states(layer, size) for layer in layers}
