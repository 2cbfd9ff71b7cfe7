"""What an engine is asked, and what it tells about it. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.prompting import Template
    from specprefill_cli.record import Record
    from specprefill_cli.settings import Settings

ANSWER, PASSAGES, PLAN = "answer", "passages", "plan"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question about documents.

    documents: read, or names that the engine reads
    task: `answer` it, or with the draft alone find `passages` or `plan` what would be kept
    top: passages to find; None: those of the keep ratio
    with_cells: also tell the fate of every chunk, for a page
    template: of the prompt; None: the engine's
    stop_tokens: whether the answer ends where the target ends it, and not only at its longest
    session: a variant of the engine's session; None: the engine's
    """

    documents: Collection | tuple[str, ...]
    question: str
    settings: Settings
    identifier: str = ""
    task: str = ANSWER
    top: int | None = None
    with_cells: bool = False
    template: Template | None = None
    stop_tokens: bool = True
    session: Session | None = None


@dataclass(frozen=True)
class Started:
    """The first token is in hand."""


@dataclass(frozen=True)
class Piece:
    """A piece of an answer's text."""

    text: str


@dataclass(frozen=True)
class Provisional:
    """The answer is complete, and full prefill begins to confirm it; its record."""

    result: Record


@dataclass(frozen=True)
class Done:
    """The result of the request; cells: the fate of every chunk, where it was asked for."""

    result: Any
    cells: Any = None


@dataclass(frozen=True)
class Failed:
    """Why there is no result."""

    error: BaseException


Event = Started | Piece | Provisional | Done | Failed
LAST = (Done, Failed)
# Takes the events of a request, on the engine's thread; it must not wait.
Deliver = Callable[[Event], None]


class QueueFull(Exception):
    """More requests wait than may, or the engine closes."""


class Cancelled(Exception):
    """What a request fails with that was cancelled before its first token."""
