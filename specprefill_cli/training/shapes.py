"""Sizes of target and draft for runs on a CPU, on a GPU, and for a smoke test, from shapes.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a Llama model, and the layers with guided heads (see `network.ProbeTargets`)."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    region_layers: Sequence[int]
    pointer_layers: Sequence[int]
    head_size: int = 64
    vocabulary: int = 8_192
    rope_theta: float = 500_000.0
    context: int = 16_384
    norm_epsilon: float = 1e-5

    @property
    def key_value_heads(self) -> int:
        return max(1, self.heads // 2)


@dataclass(frozen=True)
class PairShape:
    """The shapes of a pair's target and draft."""

    target: ModelShape
    draft: ModelShape


SHAPES = json.loads((resources.files("specprefill_cli.training") / "shapes.json").read_text(encoding="utf-8"))
PAIR_SHAPES = {
    name: PairShape(ModelShape(**pair["target"]), ModelShape(**pair["draft"])) for name, pair in SHAPES.items()
}
