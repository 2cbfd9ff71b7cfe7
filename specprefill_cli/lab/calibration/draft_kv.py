"""Runs a pair over text to fit its draft-KV maps."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from specprefill_cli.draft_kv.projection import KvCalibration, pair_identity
from specprefill_cli.draft_kv.raw_kv import StateCapture, embedded_states, finished_keys, raw_keys_values
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.calibration.kv_fit import Gram, fit_map
from specprefill_cli.models.loaded import LoadedModel, LoadedPair
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.attention_plan import LocalWindow
from specprefill_cli.models.running.cache import layer_count, layer_keys, new_state
from specprefill_cli.models.sources.tokenizers import encode_text

SEQUENCE = 1_024
# Every fifth sequence is held out; sums are saved after so many sequences.
HELD_OUT, SAVED = 5, 20
MOST_DRAFT_LAYERS = 4
FEWEST_SEQUENCES = 10
# With fewer rows per input, even a ridge regression fits noise.
ROWS_PER_INPUT = 5
# Tolerance relative to the largest key; bfloat16 rounds to 0.4 %.
ROUNDING = 0.02


def sequences(texts: Sequence[str], model: LoadedModel) -> Iterator[Tensor]:
    """Yield token sequences [SEQUENCE] of the texts, each beginning with the model's BOS token, if any."""
    bos = [model.tokenizer.bos_token_id] if model.tokenizer.bos_token_id is not None else []
    for text in texts:
        ids, _ = encode_text(model.tokenizer, text)
        for start in range(0, len(ids) - SEQUENCE // 2, SEQUENCE):
            yield torch.tensor([*bos, *ids[start : start + SEQUENCE - len(bos)]])


def calibrate_kv(
    pair: LoadedPair,
    texts: Sequence[str],
    step: Callable[[str], None],
    window: int | None = None,
    progress: Path | None = None,
) -> KvCalibration:
    """Fit the map of a pair.

    window: previous tokens that the draft sees; None: all
    progress: a file of what was added up so far: after a stop, the same call goes on there

    Raises SpecprefillError for different tokenizers, an unsupported architecture, or too little text.
    """
    draft, target = pair.loaded_draft, pair.loaded_target
    if not pair.same_tokenizer:
        raise SpecprefillError(
            f"{draft.name} and {target.name} have different tokenizers: draft KV cannot be mapped between them; "
            "use mode select"
        )
    draft_size, target_size = (model.config.get_text_config().hidden_size for model in (draft, target))
    layers, draft_layers = layer_count(target.model), spread_layers(layer_count(draft.model))
    cost = cost_of(target)
    outputs = dict.fromkeys(range(1, layers), 2 * cost.key_value_heads * cost.head_size)
    texts_hash = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
    identity = {**pair_identity(pair), "texts": texts_hash, "window": window}
    size = target_size + len(draft_layers) * draft_size
    empty = (0, Gram.empty(size, outputs), Gram.empty(size, outputs))
    done, fitted, held_out = load_sums(progress, identity) or empty
    count = 0
    for count, tokens in enumerate(sequences(texts, target), 1):
        if count <= done:
            continue
        step(f"mapping {draft.name}: sequence {count:,}")
        if count == 1:
            check_keys(target, tokens)
        draft_states = all_states(draft, tokens, draft_layers, window)
        states = all_states(target, tokens, range(layers))
        inputs = [states[0], *(draft_states[layer] for layer in draft_layers)]
        gram = held_out if count % HELD_OUT == 0 else fitted
        gram.add(
            torch.cat([part.float().to(states[0].device) for part in inputs], dim=-1),
            {layer: torch.cat(raw_keys_values(target.model, layer, states[layer]), dim=-1) for layer in outputs},
        )
        if progress is not None and count % SAVED == 0:
            sums = {"identity": identity, "count": count, "fitted": vars(fitted), "held_out": vars(held_out)}
            part = progress.with_suffix(".part")
            torch.save(sums, part)
            part.replace(progress)
    check_text(count, fitted.rows, len(fitted.inputs))
    kv_map = fit_map(fitted, held_out, draft_layers, target_size)
    return KvCalibration(pair_identity(pair), fitted.rows + held_out.rows, replace(kv_map, window=window))


def load_sums(path: Path | None, identity: Mapping[str, str | int | None]) -> tuple[int, Gram, Gram] | None:
    """The sequences and sums that `calibrate_kv` has saved for the same pair and text; None if there are none."""
    if path is None or not path.exists():
        return None
    sums = torch.load(path)
    return (sums["count"], Gram(**sums["fitted"]), Gram(**sums["held_out"])) if sums["identity"] == identity else None


def check_text(sequence_count: int, rows: int, inputs: int) -> None:
    """Raise SpecprefillError if the text is too short to fit maps with this many inputs."""
    if sequence_count < FEWEST_SEQUENCES:
        raise SpecprefillError(
            f"the text gives {sequence_count} sequences of {SEQUENCE} tokens; draft KV needs at least {FEWEST_SEQUENCES}"
        )
    if rows < ROWS_PER_INPUT * inputs:
        raise SpecprefillError(
            f"the text gives {rows:,} tokens to fit on; this pair needs at least {ROWS_PER_INPUT * inputs:,}: "
            "give more text"
        )


@torch.inference_mode()
def check_keys(model: LoadedModel, tokens: Tensor) -> None:
    """Check that keys built outside the model equal the model's own.

    Raises SpecprefillError for an architecture that builds keys differently.
    """
    positions = torch.arange(len(tokens))
    last = layer_count(model.model) - 1
    state = new_state(len(tokens))
    with StateCapture(model.model, range(last + 1)) as capture:
        prefill(model.model, tokens, positions, len(tokens), state, last_layer=last)
    unsupported = SpecprefillError(f"{model.name}: draft KV does not support its attention; use --mode select")
    if not is_close(embedded_states(model.model, tokens), capture.states(0, len(tokens))):
        raise unsupported
    for layer in range(last + 1):
        try:
            raw, _ = raw_keys_values(model.model, layer, capture.states(layer, len(tokens)))
            built = finished_keys(model.model, layer, raw, positions)
        except (RuntimeError, AttributeError) as error:
            raise unsupported from error
        if not is_close(built, layer_keys(state, layer)):
            raise unsupported


def is_close(built: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal up to rounding."""
    return built.shape == expected.shape and bool((built - expected).abs().max() <= ROUNDING * expected.abs().max())


def spread_layers(layers: int) -> list[int]:
    """Up to `MOST_DRAFT_LAYERS` layers, evenly spread to the last; without the first, because its input is only the token."""
    steps = (round(layers * number / MOST_DRAFT_LAYERS) for number in range(1, MOST_DRAFT_LAYERS + 1))
    return sorted({min(max(step, min(1, layers - 1)), layers - 1) for step in steps})


@torch.inference_mode()
def all_states(
    model: LoadedModel, tokens: Tensor, layers: Sequence[int], window: int | None = None
) -> dict[int, Tensor]:
    """Normalised inputs [N, hidden_size] by layer, from a single pass over tokens [N] that see `window` tokens back."""
    size, last = len(tokens), layer_count(model.model) - 1
    local = LocalWindow(window, size) if window is not None else None
    with StateCapture(model.model, layers) as capture:
        prefill(model.model, tokens, torch.arange(size), size, last_layer=last, local_window=local)
    return {layer: capture.states(layer, size) for layer in layers}
