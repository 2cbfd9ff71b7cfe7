"""A forward pass as a value, so that whoever drives several questions can run their passes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from specprefill_cli.models.attention_plan import LocalWindow
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.query_capture import QueryCapture

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """Tokens [N] at positions [N] that a model is to run behind a state, which then grows by N.

    capture: keeps queries; last_layer: the pass ends when this layer has its queries, keys and values
    rows: logits of the last `rows` tokens [rows, V]; None: of the last one [V]
    local_window: limits what the document's tokens see (None: all before them)
    """

    model: PreTrainedModel
    tokens: Tensor
    positions: Tensor
    state: PrefillState
    capture: QueryCapture | None = None
    last_layer: int | None = None
    rows: int | None = None
    local_window: LocalWindow | None = None

    @property
    def length(self) -> int:
        """Tokens of the pass."""
        return len(self.tokens)


# Who runs the passes of the current context and returns their logits; None: each runs at once.
RUNNER: ContextVar[Callable[[Pass], Tensor] | None] = ContextVar("RUNNER", default=None)


@contextmanager
def run_at_once() -> Iterator[None]:
    """While it lasts, passes run alone and at once: for code that watches a model with hooks."""
    token = RUNNER.set(None)
    try:
        yield
    finally:
        RUNNER.reset(token)
