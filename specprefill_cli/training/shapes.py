"""The sizes of target and draft, for a run on CPU and for one on a GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama-architecture model, and the layers of the heads that training guides (see `network.ProbeTargets`)."""

    hidden_size: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate_size: int
    region_layers: tuple[int, ...]
    pointer_layers: tuple[int, ...]
    vocabulary: int = 8_192
    rope_theta: float = 500_000.0
    context: int = 16_384
    norm_epsilon: float = 1e-5


@dataclass(frozen=True)
class PairShape:
    target: ModelShape
    draft: ModelShape


PAIR_SHAPES = {
    "cpu": PairShape(
        target=ModelShape(
            hidden_size=256,
            layers=6,
            heads=4,
            key_value_heads=2,
            head_size=64,
            intermediate_size=704,
            region_layers=(2, 3),
            pointer_layers=(4, 5),
        ),
        draft=ModelShape(
            hidden_size=128,
            layers=3,
            heads=2,
            key_value_heads=1,
            head_size=64,
            intermediate_size=352,
            region_layers=(2,),
            pointer_layers=(2,),
        ),
    ),
    "gpu": PairShape(
        target=ModelShape(
            hidden_size=512,
            layers=8,
            heads=8,
            key_value_heads=4,
            head_size=64,
            intermediate_size=1_408,
            region_layers=(3, 4),
            pointer_layers=(6, 7),
        ),
        draft=ModelShape(
            hidden_size=192,
            layers=3,
            heads=3,
            key_value_heads=1,
            head_size=64,
            intermediate_size=512,
            region_layers=(2,),
            pointer_layers=(2,),
        ),
    ),
    "smoke": PairShape(
        target=ModelShape(
            hidden_size=64,
            layers=2,
            heads=2,
            key_value_heads=1,
            head_size=32,
            intermediate_size=128,
            region_layers=(1,),
            pointer_layers=(1,),
        ),
        draft=ModelShape(
            hidden_size=32,
            layers=2,
            heads=1,
            key_value_heads=1,
            head_size=32,
            intermediate_size=64,
            region_layers=(1,),
            pointer_layers=(1,),
        ),
    ),
}
