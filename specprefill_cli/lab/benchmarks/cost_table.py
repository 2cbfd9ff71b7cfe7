"""What the cost model predicts for pairs of published sizes on several ranks: the table in docs/multi-gpu.md.

`python -m specprefill_cli.lab.benchmarks.cost_table` prints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from specprefill_cli.lab.benchmarks.shapes import named_config, shape_pair
from specprefill_cli.lab.tables import markdown
from specprefill_cli.models.cost import ModelCost
from specprefill_cli.models.head_division import can_divide, share_of

PAIRS = "llama-3.1-8b:llama-3.1-70b,qwen2.5-1.5b:qwen2.5-72b,qwen2.5-0.5b:qwen2.5-32b"


def prefill_share(cost: ModelCost, tokens: int, ranks: int) -> float:
    """The most operations that a rank has of a prefill which ranks share: they divide heads, and everything else evenly.

    Where the heads cannot be divided, every rank runs the whole model. Communication is not counted.
    """
    total = cost.prefill_flops(tokens)
    if not can_divide(cost.heads, cost.key_value_heads, ranks):
        return total
    attention = cost.attention_flops(tokens, layers=cost.layers - 1)
    queries, _ = zip(*(share_of(cost.heads, cost.key_value_heads, ranks, rank) for rank in range(ranks)), strict=True)
    return attention * max(map(len, queries)) / cost.heads + (total - attention) / ranks


def predicted_speedup(
    draft: ModelCost, target: ModelCost, tokens: int, keep: float, ranks: int, divided: bool = True
) -> float:
    """Operations of `full` over those of `select` on the busiest rank.

    The draft reads the whole prompt with full attention. divided: ranks share it, else each runs all of it
    """
    scoring = prefill_share(draft, tokens, ranks if divided else 1)
    return prefill_share(target, tokens, ranks) / (scoring + prefill_share(target, round(keep * tokens), ranks))


def rows(pairs: Sequence[str], tokens: int, keep: float, ranks: Sequence[int]) -> list[dict[str, str]]:
    """A row for each pair, with a cell for each number of ranks."""
    table = []
    for pair in pairs:
        names = shape_pair(pair)
        draft, target = (
            ModelCost.of(named_config(name, role), "cuda")
            for name, role in zip(names, ("draft", "target"), strict=True)
        )
        cells = {
            str(count): f"{predicted_speedup(draft, target, tokens, keep, count):.1f}x "
            f"({predicted_speedup(draft, target, tokens, keep, count, divided=False):.2g}x)"
            for count in ranks
        }
        table.append({"pair": f"{names[0]} -> {names[1]}", **cells})
    return table


def main(
    pairs: Annotated[str, typer.Option(help="DRAFT:TARGET, comma-separated.")] = PAIRS,
    length: Annotated[int, typer.Option(min=64, help="Prompt length in tokens.")] = 131_072,
    keep: Annotated[float, typer.Option(min=0.001, max=1.0, help="Keep ratio.")] = 0.1,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, comma-separated.")] = "1,2,4,8",
) -> None:
    """Print the predicted speedup of `select` over `full` by number of ranks, in brackets with a draft whole on each."""
    table = rows(pairs.split(","), length, keep, [int(number) for number in ranks.split(",")])
    columns = {name: (lambda row, name=name: row[name]) for name in table[0]}
    print(markdown(table, columns))


if __name__ == "__main__":
    typer.run(main)
