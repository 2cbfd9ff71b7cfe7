"""Which attention heads each rank computes. Several ranks hold the same key-value head where there are too few.

transformers divides heads evenly, and key-value heads among at most as many ranks as there are. With more
ranks, several hold the same key-value head and divide its query heads, evenly or not: attention stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from specprefill_cli.distributed.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class HeadShare:
    """The attention heads that a rank holds: numbers of query heads, and of the key-value heads that they read.

    group: query heads of a key-value head, in the whole model
    ranks: the processes that hold the other heads; ALONE where this process holds all
    """

    queries: range
    keys: range
    group: int
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


def can_divide(heads: int, key_value_heads: int, ranks: int) -> bool:
    """Whether every rank gets heads of its own: equally many key-value heads, or some query heads of a shared head."""
    if key_value_heads % ranks == 0:
        return True
    return ranks % key_value_heads == 0 and ranks <= heads


def fitting_ranks(heads: int, key_value_heads: int) -> list[int]:
    """The numbers of ranks among which heads can be divided, ascending."""
    return [number for number in range(1, heads + 1) if can_divide(heads, key_value_heads, number)]


def share_of(heads: int, key_value_heads: int, ranks: int, rank: int) -> tuple[range, range]:
    """The query heads and the key-value heads of a rank, where `can_divide` allows so many ranks."""
    group = heads // key_value_heads
    if key_value_heads % ranks == 0:
        count = key_value_heads // ranks
        return range(rank * count * group, (rank + 1) * count * group), range(rank * count, (rank + 1) * count)
    copies = ranks // key_value_heads
    key_head, share = divmod(rank, copies)
    first, last = (key_head * group + group * edge // copies for edge in (share, share + 1))
    return range(first, last), range(key_head, key_head + 1)


def head_share(model: PreTrainedModel, ranks: Ranks = ALONE) -> HeadShare:
    """The heads of a model that this process holds: some where `ranks` divide the model, else all."""
    heads, key_value_heads = head_counts(model.config)
    group = heads // key_value_heads
    if ranks.size == 1 or not divides_heads(model.config) or (getattr(model, "_tp_size", None) or 1) == 1:
        return HeadShare(queries=range(heads), keys=range(key_value_heads), group=group)
    queries, keys = share_of(heads, key_value_heads, ranks.size, ranks.rank)
    return HeadShare(queries=queries, keys=keys, group=group, ranks=ranks)


def repeated_projections(config: PretrainedConfig, ranks: int) -> tuple[str, ...]:
    """The attention projections that transformers must leave undivided, for `divide_heads` to divide; mostly none."""
    heads, key_value_heads = head_counts(config)
    if ranks == 1 or not divides_heads(config) or key_value_heads % ranks == 0:
        return ()
    return ("k_proj", "v_proj") if heads % ranks == 0 else ("k_proj", "v_proj", "q_proj", "o_proj")


def divide_heads(model: PreTrainedModel, ranks: int, rank: int) -> None:
    """Make the projections that transformers left undivided compute the heads of a rank.

    Every rank keeps all their weights, so that it can identify the model on its own.
    """
    projections = repeated_projections(model.config, ranks)
    if not projections:
        return
    queries, keys = share_of(*head_counts(model.config), ranks, rank)
    decoder: Any = model.get_decoder()
    for attention in (layer.self_attn for layer in decoder.layers):
        for name in projections:
            heads = keys if name in ("k_proj", "v_proj") else queries
            columns = slice(heads.start * attention.head_dim, heads.stop * attention.head_dim)
            module = getattr(attention, name)
            module.forward = partial(project_inputs if name == "o_proj" else project_to_outputs, module, columns)


def project_to_outputs(linear: nn.Linear, columns: slice, states: Tensor) -> Tensor:
    """A linear layer's forward pass for some of its outputs."""
    return F.linear(states, linear.weight[columns], None if linear.bias is None else linear.bias[columns])


def project_inputs(linear: nn.Linear, columns: slice, states: Tensor) -> Tensor:
    """A linear layer's forward pass from some of its inputs; the other ranks add theirs."""
    output = F.linear(states, linear.weight[:, columns])
    dist.all_reduce(output)
    return output if linear.bias is None else output + linear.bias
