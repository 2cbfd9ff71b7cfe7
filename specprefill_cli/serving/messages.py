"""What a command's process and the engine say to each other, on a socket that only these two hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specprefill_cli.answering.answer import Answer
    from specprefill_cli.answering.cells import Cell
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.prompting import Template
    from specprefill_cli.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Open:
    """A command begins. mode: of its questions; draft: whether it would load the draft; target_weights: and the target's weights.

    memory_cache: the setting, for a command that keeps documents between its own questions alone, as `batch` does
    """

    mode: str
    draft: bool
    target_weights: bool = True
    memory_cache: str | float | None = None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The session is there. auto_scorer: what the scorer `auto` is for its pair in the mode."""

    auto_scorer: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """What all questions have. startup_seconds: of the command."""

    collection: Collection
    question: str
    settings: Settings
    template: Template
    startup_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ask(Question):
    """Answer, and stream. with_cells: also send the document's cells, for a page."""

    with_cells: bool = False


@dataclass(frozen=True, kw_only=True)
class Retrieve(Question):
    """Find passages."""

    top: int | None


@dataclass(frozen=True, kw_only=True)
class Plan(Question):
    """Plan without an answer."""


@dataclass(frozen=True)
class Cancel:
    """Ctrl-C: end the answer in hand."""


@dataclass(frozen=True)
class Prefilled:
    """The first token is in hand."""


@dataclass(frozen=True)
class Piece:
    """A piece of an answer's text."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of an answer; cells: the document's, where they were asked for."""

    answer: Answer
    cells: list[Cell] | None = None


@dataclass(frozen=True)
class Result:
    """What a job without text returned."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """What a job raised."""

    error: Exception


Payload = Opened | Prefilled | Piece | Finished | Result | Failed
LAST = (Opened, Finished, Result, Failed)
