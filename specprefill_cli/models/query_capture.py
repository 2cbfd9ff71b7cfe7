"""Queries of chosen tokens, kept while a pass runs, for scorers to compare with the keys of the cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class QueryCapture:
    """Keeps the queries of chosen tokens as attention sees them: after q-norm and rotary embedding.

    positions: token indices in the prompt, ascending
    queries: per layer index, tensors [heads, rows, head_size], in the order of the tokens
    scaling: per layer index, the factor that the layer puts on query-key products
    """

    positions: Tensor
    queries: dict[int, list[Tensor]] = field(default_factory=dict)
    scaling: dict[int, float] = field(default_factory=dict)

    def keep(self, layer: int, queries: Tensor, rows: Tensor, scaling: float) -> None:
        """Keep `rows` of a layer's queries [1, heads, Q, head_size]."""
        self.queries.setdefault(layer, []).append(queries[0].index_select(1, rows))
        self.scaling[layer] = scaling

    def layer(self, number: int) -> Tensor:
        """All kept queries of a layer: [heads, rows, head_size]."""
        return torch.cat(self.queries[number], dim=1)

    def at(self, positions: Tensor) -> QueryCapture:
        """The kept queries of some of the tokens: positions [C], ascending."""
        rows = torch.isin(self.positions, positions).nonzero()[:, 0]
        chosen = {number: [self.layer(number)[:, rows.to(self.queries[number][0].device)]] for number in self.queries}
        return QueryCapture(positions, chosen, self.scaling)
