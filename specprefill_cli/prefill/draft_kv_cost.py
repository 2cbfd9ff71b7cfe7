"""What draft KV needs of a pair, and its expected cost."""

from __future__ import annotations

from dataclasses import replace

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.models.cost import cost_of
from specprefill_cli.prefill.projection import KvMap, choose_map, pair_calibration, remedy
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest

# Prefix and checkpoint tokens, recomputed chunks, and the suffix.
TARGET_PASSES = 3


def draft_request(request: PrefillRequest, kv_map: KvMap) -> PrefillRequest:
    """The request as the draft reads it: all tokens up to the map's last layer, with the window that it was fitted with.

    The map needs states of all tokens, so that the draft starts cold.
    """
    last_layer, window = max(kv_map.draft_layers, default=0), calibrated_window(request)
    return replace(request.cold(), last_draft_layer=last_layer, draft_window=window)


def calibrated_window(request: PrefillRequest) -> int | None:
    """The window with which the pair's maps were fitted."""
    calibration = pair_calibration(request.pair)
    return calibration.window if calibration is not None else None


def draft_kv_cost(request: PrefillRequest, kv_map: KvMap, tokens: int) -> float:
    """Operations of a prefill with draft KV in which the target computes so many tokens, fixed costs of passes included."""
    length, target = request.prompt.length, cost_of(request.pair.target)
    draft = SCORERS[request.scorer].cost(draft_request(request, kv_map), with_overhead=True)
    mapping = 2.0 * length * sum(weights.numel() for weights in kv_map.weights.values())
    # Computed tokens are spread over the prompt, and each sees on average half of it.
    seen = target.attention_flops(tokens, (length - tokens) // 2)
    exact = kv_map.exact_layers and target.reading_flops(length, kv_map.exact_layers)
    return draft + mapping + exact + target.linear_flops(tokens) + seen + TARGET_PASSES * target.overhead_flops()


def find_map(request: PrefillRequest, mode: str) -> KvMap:
    """The pair's map for the number of exact layers.

    Raises SpecprefillError, with the reason and the remedy, where draft KV is not possible.
    """
    pair = request.pair
    if not SCORERS[request.scorer].uses_draft:
        raise SpecprefillError(f"--mode {mode} needs a scorer that runs the draft, not --scorer {request.scorer}")
    if not pair.same_tokenizer:
        raise SpecprefillError(
            f"--mode {mode}: {request.draft.name} and {pair.target.name} have different tokenizers, so that one's KV "
            "cannot stand for the other's; use --mode select"
        )
    if rotation_depends_on_length(pair.target.config):
        raise SpecprefillError(
            f"--mode {mode}: {pair.target.name} rotates its keys by the length of the prompt, so that mapped KV would not "
            "fit; use --mode select"
        )
    calibration = pair_calibration(pair)
    kv_map = choose_map(list(calibration.maps.values()), request.exact_layers) if calibration is not None else None
    if kv_map is None:
        which = f"with --exact-layers {request.exact_layers} " if calibration is not None else ""
        raise SpecprefillError(
            f"--mode {mode}: this pair has no map of draft KV {which}yet; make it with "
            f"{remedy(pair, request.exact_layers)}"
        )
    return kv_map
