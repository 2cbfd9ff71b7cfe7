"""The map from the draft's states to the target's keys and values: a ridge regression for each target layer.

Inputs are the target's embedding and the normalised inputs of a few draft layers; outputs are the target's keys before
norm and rotary embedding, and its values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specprefill_cli.draft_kv.gate import Gate
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.loaded import LoadedPair
from specprefill_cli.models.running.adapter import rotation_depends_on_length
from specprefill_cli.models.sources.tokenizers import fingerprint
from specprefill_cli.prefill.calibration import (
    CalibratedPair,
    calibration_folder,
    check_identity,
    model_identity,
    read_description,
)
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.meaning import BlendScorer, reads_english

# Tokens that are mapped together: their inputs are joined in float32, and a whole prompt's would exceed its KV.
ROWS = 8_192
WEIGHTS, DESCRIPTION = "kv_map.safetensors", "kv_map.json"
NAME = "exact-0-draft"


@dataclass(frozen=True)
class LayerFit:
    """How a target layer is mapped: its draft layers, ridge strength, and unexplained share of variance on held-out text."""

    layer: int
    draft_layers: tuple[int, ...]
    ridge: float
    key_error: float
    value_error: float


@dataclass(frozen=True)
class KvMap:
    """A fitted map. weights: per target layer [inputs + 1, 2 * kv_heads * head_size]; the last row is the offset.

    gate: the calibrated limit of risk, if any; embedding: whether that of the target is an input
    window: previous tokens that a token saw in the draft during the fit, and must see in use; None: all
    """

    fits: tuple[LayerFit, ...]
    weights: Mapping[int, Tensor]
    gate: Gate | None = None
    embedding: bool = False
    window: int | None = None

    @property
    def draft_layers(self) -> tuple[int, ...]:
        """All draft layers that some target layer reads, ascending."""
        return tuple(sorted({layer for fit in self.fits for layer in fit.draft_layers}))

    def apply(self, layer: int, states: Mapping[int, Tensor], embedded: Tensor) -> tuple[Tensor, Tensor]:
        """Raw keys and values [N, kv_heads * head_size] of a layer, from draft states and embedding [N, hidden]."""
        fit = next(fit for fit in self.fits if fit.layer == layer)
        inputs = ([embedded] if self.embedding else []) + [states[number] for number in fit.draft_layers]
        # Products of bfloat16 states need no float32, which takes several times as long on a CPU.
        dtype = torch.bfloat16 if all(part.dtype is torch.bfloat16 for part in inputs) else torch.float32
        weight, pieces = self.weights[layer].to(inputs[0].device, dtype), []
        for first in range(0, len(inputs[0]), ROWS):
            joined = torch.cat([part[first : first + ROWS].to(weight.device, dtype) for part in inputs], dim=-1)
            pieces.append(joined @ weight[:-1] + weight[-1])
        keys, values = torch.cat(pieces).chunk(2, dim=-1)
        return keys, values


@dataclass(frozen=True)
class KvCalibration:
    """The map of a pair, and what identifies the pair."""

    identity: Mapping[str, str | int]
    rows: int
    kv_map: KvMap


def pair_identity(pair: LoadedPair) -> dict[str, str | int]:
    """The identity of a pair in calibrations: hashes of weights and tokenizer, and sizes."""
    identity: dict[str, str | int] = {"tokenizer": fingerprint(pair.target.tokenizer)}
    for role, loaded in (("draft", pair.loaded_draft), ("target", pair.loaded_target)):
        identity |= {f"{role}_{name}": value for name, value in model_identity(loaded).items() if name != "tokenizer"}
    return identity


def load_calibration(folder: Path, pair: LoadedPair) -> KvCalibration | None:
    """The map in a folder, if any. Raises SpecprefillError when it is damaged or belongs to another pair."""
    path = folder / DESCRIPTION

    def parse(fields: dict[str, Any]) -> KvCalibration:
        tensors, stored = load_file(folder / WEIGHTS), fields["maps"][NAME]
        fits = tuple(LayerFit(**{**fit, "draft_layers": tuple(fit["draft_layers"])}) for fit in stored["fits"])
        weights = {fit.layer: tensors[f"{NAME}.{fit.layer}"] for fit in fits}
        # Without a gate any risk is accepted.
        gate = Gate(**stored["gate"]) if stored.get("gate") else None
        kv_map = KvMap(fits, weights, gate, stored["embedding"], fields["window"])
        check_identity(path, fields["identity"], pair_identity(pair), "pair", remedy(pair))
        return KvCalibration(fields["identity"], fields["rows"], kv_map)

    return read_description(path, "draft-KV maps", remedy(pair), parse)


def set_calibration(pair: CalibratedPair, calibration: KvCalibration | None) -> None:
    """Keep a map with the pair."""
    pair.mode_data["draft-kv"] = calibration


def pair_calibration(pair: CalibratedPair) -> KvCalibration | None:
    """The pair's map, read from its folder the first time; None where there is none."""
    if pair.mode_data.get("draft-kv") is None:
        set_calibration(pair, load_calibration(calibration_folder(pair.pair), pair))
    return pair.mode_data["draft-kv"]


def find_map(request: PrefillRequest, mode: str) -> KvMap:
    """The pair's map. Raises SpecprefillError, with the reason and the remedy, where draft KV is not possible."""
    pair, target = request.pair, request.pair.target
    calibration = None
    if pair.ranks.size > 1:
        reason = "this mode runs in a single process; leave out --tensor-parallel, or use --mode select"
    elif not SCORERS[request.scorer].uses_draft or (request.scorer == BlendScorer.name and not reads_english(request)):
        reason = f"this mode needs a scorer that runs the draft, not --scorer {request.scorer}; use --scorer heads"
    elif not pair.same_tokenizer:
        reason = f"{request.draft.name} and {target.name} have different tokenizers; use --mode select"
    elif rotation_depends_on_length(target.config):
        reason = f"{target.name} rotates its keys by the length of the prompt; use --mode select"
    elif (calibration := pair_calibration(pair)) is None:
        reason = f"this pair has no map of draft KV yet; make it with {remedy(pair)}"
    if calibration is None:
        raise SpecprefillError(f"--mode {mode}: {reason}")
    return calibration.kv_map


def remedy(pair: LoadedPair) -> str:
    """The command that makes a pair's map."""
    named = pair.pair
    options = f"--draft {named.draft} --target {named.target}" if named.name == "custom" else f"--pair {named.name}"
    return f"specprefill calibrate {options} --text FILES"
