"""LoRA adapters in PEFT's format (arXiv 2106.09685): read, checked, and merged into the weights of a model."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specprefill_cli.errors import SpecprefillError, first_line

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FACTOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")
# Settings that are like this, or not set: other kinds of adapter compute something else than W + scale x B A.
UNSET = ("fan_in_fan_out", "use_dora", "use_rslora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern")
PLAIN = {"peft_type": "LORA", "bias": "none"} | dict.fromkeys(UNSET)


@dataclass(frozen=True, kw_only=True)
class LoraAdapter:
    """The change of weights: scale times B [out, rank] A [rank, in]; factors: A and B in float32, by layer."""

    name: str
    scale: float
    factors: "Mapping[str, tuple[Tensor, Tensor]]"

    def merged(self, module: str, weight: "Tensor") -> "Tensor":
        """A layer's weight [out, in] plus the adapter's change, if any. Raises SpecprefillError for another shape."""
        if module not in self.factors:
            return weight
        down, up = self.factors[module]
        shape = (up.shape[0], down.shape[1])
        if tuple(weight.shape) != shape:
            raise self.misfit(f"{module} is {list(weight.shape)} there and {list(shape)} in the adapter")
        return weight.float() + self.scale * (up.to(weight.device) @ down.to(weight.device))

    def check_modules(self, names: Collection[str]) -> None:
        """Raises SpecprefillError for a layer that the model, given by its layers' names, does not have."""
        for module in self.factors:
            if module not in names:
                raise self.misfit(f"the model has no layer {module}")

    def misfit(self, reason: str) -> SpecprefillError:
        return SpecprefillError(f"adapter {self.name}: {reason}; give the adapter of this model")


def read_adapter(folder: Path, name: str) -> LoraAdapter:
    """Read an adapter. Raises SpecprefillError if it is damaged, incomplete, or not a plain LoRA."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        problem = f"adapter {name}: cannot be read ({first_line(error)}); give a folder with {CONFIG} and {WEIGHTS}"
        raise SpecprefillError(problem) from error
    for key, plain in PLAIN.items():
        if config.get(key) and config[key] != plain:
            raise SpecprefillError(f"adapter {name}: {key} is {config[key]}; give a plain LoRA adapter, or merge it")
    return LoraAdapter(name=name, scale=alpha / rank, factors=pair_factors(tensors, rank, name))


def pair_factors(tensors: "Mapping[str, Tensor]", rank: int, name: str) -> "dict[str, tuple[Tensor, Tensor]]":
    """A and B in float32 by layer. Raises SpecprefillError for an unknown or missing tensor, or another rank."""
    factors: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = FACTOR.fullmatch(key)
        if match is None:
            raise SpecprefillError(f"adapter {name}: {key} is no part of a plain LoRA; merge it into its model first")
        factors.setdefault(match["module"], {})[match["factor"]] = tensor.float()
    for module, pair in factors.items():
        if set(pair) != {"A", "B"} or (pair["A"].shape[0], pair["B"].shape[1]) != (rank, rank):
            raise SpecprefillError(f"adapter {name}: {module} has not two factors of rank {rank}; download it again")
    return {module: (pair["A"], pair["B"]) for module, pair in factors.items()}


def merge_adapter(model: "PreTrainedModel", adapter: LoraAdapter) -> None:
    """Change weights in place. Raises SpecprefillError for another model's, quantised or divided ones."""
    from torch.nn import Linear

    layers = dict(model.named_modules())
    adapter.check_modules(layers)
    for name in adapter.factors:
        layer = layers[name]
        if not isinstance(layer, Linear):
            raise adapter.misfit(f"it changes {type(layer).__name__}, no plain linear layer")
        weight = layer.weight
        if not weight.is_floating_point() or weight.itemsize < 2 or hasattr(weight, "full_tensor"):
            raise SpecprefillError(
                f"adapter {adapter.name}: only whole, unquantised weights can take it; leave out --quantization and "
                "--tensor-parallel"
            )
        # In float32 until it is rounded to its dtype.
        weight.data = adapter.merged(name, weight.data).to(weight.dtype)
