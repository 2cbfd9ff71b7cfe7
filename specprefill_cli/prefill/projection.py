"""The map from the draft's states to the target's keys and values: ridge regressions, one a target layer.

Inputs are the normalised inputs of a few draft layers (and, where the target computes its first layers itself, of its
layer at the edge); outputs are the target's keys before norm and rotary embedding, and its values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import write_whole
from specprefill_cli.models.calibration import pair_options, weights_fingerprint

if TYPE_CHECKING:
    from specprefill_cli.models.loading import LoadedPair

ALL_COLUMNS = slice(None)
WEIGHTS, DESCRIPTION = "kv_map.safetensors", "kv_map.json"


@dataclass(frozen=True)
class LayerFit:
    """How one target layer is mapped: its draft layers, ridge strength, and share of variance missed on held-out text."""

    layer: int
    draft_layers: tuple[int, ...]
    ridge: float
    key_error: float
    value_error: float


@dataclass(frozen=True)
class KvMap:
    """A fitted map. weights: per target layer [inputs + 1, 2 * kv_heads * head_size], the last row being the offset.

    exact_layers: target layers that are computed exactly for all tokens; the state at the next one is an input too
    placed: the weights on the devices that they have been used on
    """

    exact_layers: int
    fits: tuple[LayerFit, ...]
    weights: Mapping[int, Tensor]
    placed: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"exact-{self.exact_layers}{'-draft' if self.draft_layers else ''}"

    @property
    def draft_layers(self) -> tuple[int, ...]:
        """All draft layers that some target layer reads, ascending."""
        return tuple(sorted({layer for fit in self.fits for layer in fit.draft_layers}))

    def apply(
        self, layer: int, states: Mapping[int, Tensor], edge: Tensor | None, columns: slice = ALL_COLUMNS
    ) -> tuple[Tensor, Tensor]:
        """Raw keys and values of a target layer, [N, kv_heads * head_size] each, or those of its columns that are wanted.

        states: per draft layer [N, draft_hidden]; edge: [N, target_hidden] where the first target layers were computed
        """
        fit = next(fit for fit in self.fits if fit.layer == layer)
        inputs = ([] if edge is None else [edge]) + [states[number] for number in fit.draft_layers]
        # Draft and target may differ in device and dtype.
        joined = torch.cat([part.to(inputs[0].device, torch.float32) for part in inputs], dim=-1)
        place = (layer, joined.device)
        if place not in self.placed:
            self.placed[place] = self.weights[layer].to(joined.device)
        weights = (part[:, columns].to(joined) for part in self.placed[place].chunk(2, dim=-1))
        keys, values = (joined @ weight[:-1] + weight[-1] for weight in weights)
        return keys, values


@dataclass(frozen=True)
class Calibration:
    """The maps of one pair, and what tells whether they belong to it.

    window: how far back the draft saw while it read the text they were fitted on, and must see in their use; None: all
    """

    identity: Mapping[str, str | int]
    rows: int
    maps: Mapping[str, KvMap] = field(default_factory=dict)
    window: int | None = None

    def save(self, folder: Path) -> Path:
        """Write weights (float16), then the description that reads them; each file is complete before it takes its place.

        Raises SpecprefillError where that is not possible.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{name}.{layer}": weight.half().contiguous()
            for name, one in self.maps.items()
            for layer, weight in one.weights.items()
        }
        description = {
            "schema": 1,
            "identity": dict(self.identity),
            "rows": self.rows,
            "window": self.window,
            "maps": {
                name: {"exact_layers": one.exact_layers, "fits": [asdict(fit) for fit in one.fits]}
                for name, one in self.maps.items()
            },
        }
        write_whole(folder / WEIGHTS, save(tensors))
        write_whole(folder / DESCRIPTION, json.dumps(description, indent=1) + "\n")
        return folder / DESCRIPTION


def pair_identity(pair: LoadedPair) -> dict[str, str | int]:
    """What a calibration says of its pair: hashes of weights and tokenizer, and sizes."""
    found: dict[str, str | int] = {"tokenizer": pair.target.fingerprint}
    for role, one in (("draft", pair.draft), ("target", pair.target)):
        text = one.model.config.get_text_config()
        found |= {
            f"{role}_weights": weights_fingerprint(one.model),
            f"{role}_layers": text.num_hidden_layers,
            f"{role}_hidden_size": text.hidden_size,
        }
    return found


def load_calibration(folder: Path, pair: LoadedPair) -> Calibration | None:
    """The maps in a folder, or None where there are none.

    Raises SpecprefillError when the files are damaged or belong to another pair.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
        maps = {}
        for name, one in values["maps"].items():
            fits = tuple(LayerFit(**{**fit, "draft_layers": tuple(fit["draft_layers"])}) for fit in one["fits"])
            weights = {fit.layer: tensors[f"{name}.{fit.layer}"] for fit in fits}
            maps[name] = KvMap(one["exact_layers"], fits, weights)
        found = Calibration(values["identity"], values["rows"], maps, values["window"])
    except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        raise SpecprefillError(
            f"{path}: not a calibration of draft KV ({error}); recreate it with {remedy(pair)}"
        ) from error
    for name, value in pair_identity(pair).items():
        if found.identity.get(name) != value:
            raise SpecprefillError(
                f"{path}: made for another pair ({name} '{found.identity.get(name)}', this one has '{value}'); recreate it "
                f"with {remedy(pair)}"
            )
    return found


def choose_map(maps: Sequence[KvMap], exact_layers: int) -> KvMap | None:
    """The map for a number of exactly computed layers with the smallest held-out error."""
    fitting = [one for one in maps if one.exact_layers == exact_layers]
    return min(fitting, key=lambda one: sum(fit.key_error + fit.value_error for fit in one.fits), default=None)


def remedy(pair: LoadedPair, exact_layers: int = 0) -> str:
    """The command that makes a pair's maps."""
    which = f" --exact {exact_layers}" if exact_layers else ""
    return f"specprefill calibrate {pair_options(pair.pair)} --text FILES{which}"
