"""A forward pass as a value, so that the engine can run the decoding passes of several answers together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from specprefill_cli.models.attention_plan import LocalWindow
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.query_capture import QueryCapture

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """Tokens [N] at positions [N] for a model to run behind a state. The state then grows by N.

    capture: keeps queries; last_layer: the pass ends when this layer has its queries, keys and values
    rows: logits of the last `rows` tokens [rows, V]; None: of the last one [V]
    local_window: limits what the document's tokens see (None: all before them)
    announced: entered while the pass runs; tells other ranks of it
    """

    model: PreTrainedModel
    tokens: Tensor
    positions: Tensor
    state: PrefillState
    capture: QueryCapture | None = None
    last_layer: int | None = None
    rows: int | None = None
    local_window: LocalWindow | None = None
    announced: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def length(self) -> int:
        """Tokens of the pass."""
        return len(self.tokens)


# Work that asks for passes by yielding them, is sent their logits, and returns a value.
Steps = Generator[Pass, Tensor, Value]


# Called before each pass of a prefill: the engine lets other answers go on there, and stops a cancelled question.
_BEFORE_PASS: ContextVar[Callable[[], None] | None] = ContextVar("before_pass", default=None)


def pause_before_pass() -> None:
    """Let the engine do what is due before the next pass of a prefill."""
    act = _BEFORE_PASS.get()
    if act is not None:
        act()


@contextmanager
def before_each_pass(act: Callable[[], None] | None) -> Iterator[None]:
    """While it lasts, call a function before each pass of a prefill. None: for code that watches a model with hooks."""
    token = _BEFORE_PASS.set(act)
    try:
        yield
    finally:
        _BEFORE_PASS.reset(token)
