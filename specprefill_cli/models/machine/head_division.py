"""Which attention heads each rank computes: equally many key-value heads, and the query heads that read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specprefill_cli.distributed import ALONE, Ranks

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class LocalHeads:
    """The attention heads that a rank holds: numbers of query heads, and of the key-value heads that they read.

    ranks: the processes that hold the other heads; ALONE where this process holds all
    """

    queries: range
    keys: range
    ranks: Ranks = ALONE


def head_counts(config: PretrainedConfig) -> tuple[int, int]:
    """Query heads and key-value heads of a layer."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    return heads, getattr(text, "num_key_value_heads", None) or heads


def divides_heads(config: PretrainedConfig) -> bool:
    """Whether tensor parallelism splits a model's attention heads; with fused projections (Phi-3) it does not."""
    plan = getattr(config.get_text_config(), "base_model_tp_plan", None) or {}
    return any(style == "colwise" and name.endswith(("k_proj", "qkv_proj")) for name, style in plan.items())


def local_heads(model: PreTrainedModel, ranks: Ranks = ALONE) -> LocalHeads:
    """The heads of a model that this process holds: some where `ranks` divide the model, else all."""
    heads, key_value_heads = head_counts(model.config)
    if ranks.size == 1 or not divides_heads(model.config) or (getattr(model, "_tp_size", None) or 1) == 1:
        return LocalHeads(queries=range(heads), keys=range(key_value_heads))
    queries, keys = (part_of(count, ranks) for count in (heads, key_value_heads))
    return LocalHeads(queries=queries, keys=keys, ranks=ranks)


def part_of(count: int, ranks: Ranks) -> range:
    """This rank's part of `count` heads, which the number of ranks divides."""
    size = count // ranks.size
    return range(ranks.rank * size, (ranks.rank + 1) * size)
