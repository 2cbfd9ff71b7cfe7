"""Requests to an engine, the events that it delivers, and the interface of all engines. Imports no torch."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from specprefill_cli.documents.document import Collection
    from specprefill_cli.prompting import Template
    from specprefill_cli.record import Record
    from specprefill_cli.settings import Settings

ANSWER, PASSAGES, PLAN = "answer", "passages", "plan"
# Reads documents by name.
Reader = Callable[["tuple[str, ...]"], "Collection"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question about documents.

    documents: read, names that the engine reads, or what reads them in the engine's time
    task: `answer` it, or with the draft alone find `passages` or `plan` what would be kept
    top: passages to find; None: those of the keep ratio
    with_cells: also tell the fate of every chunk, for a page
    template: of the prompt; None: the engine's
    stop_texts: texts that end the answer, and are no part of it
    isolated: whether it shares no work with other requests about the same documents
    """

    documents: Collection | tuple[str, ...] | Callable[[], Collection]
    question: str
    settings: Settings
    task: str = ANSWER
    top: int | None = None
    with_cells: bool = False
    template: Template | None = None
    stop_texts: tuple[str, ...] = ()
    isolated: bool = False

    def read_documents(self, read: Reader) -> Collection:
        """Its documents, read where they are not yet. Raises DocumentError."""
        if isinstance(self.documents, tuple):
            return read(self.documents)
        return self.documents() if callable(self.documents) else self.documents


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
    """The failure of a request that was cancelled before its first token."""


class Engine(Protocol):
    """Turns requests into events: with the models of this process or of Ray's, by this user's server, or by an endpoint.

    capacity: requests worth having in flight
    """

    @property
    def capacity(self) -> int: ...

    def submit(self, request: Request, deliver: Deliver) -> Any:
        """Add a request, from any thread; returns what `cancel` takes. Raises QueueFull where the engine has ended."""

    def cancel(self, ticket: Any) -> None:
        """Let nobody wait for a request any more."""

    def close(self) -> None:
        """End the engine, once no request is in flight."""


class WaitingEngine(Engine, Protocol):
    """An engine whose caller can also wait for the events of one request."""

    def ask(self, request: Request) -> Iterator[Event]:
        """The events of one request; Ctrl-C ends its answer. Raises what it fails with."""


class Asking(threading.Thread):
    """Delivers the events of a request that is answered elsewhere, in a thread of its own.

    stop: wakes the thread where it waits for the next event
    """

    def __init__(self, events: Iterator[Event], deliver: Deliver, stop: Callable[[], None] = lambda: None) -> None:
        # A daemon, because neither another request nor the program's end waits for a silent server.
        super().__init__(name="asking", daemon=True)
        self.events, self.deliver, self.stop = events, deliver, stop
        self.cancelled = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            # The end of a generator closes its connection, in this thread.
            with closing(self.events):  # type: ignore[type-var]
                for event in self.events:
                    if self.cancelled.is_set():
                        raise Cancelled
                    self.deliver(event)
        except BaseException as error:
            self.deliver(Failed(Cancelled() if self.cancelled.is_set() else error))


class RemoteEngine(ABC):
    """An engine whose answers come from another process: a thread waits for each request that is submitted."""

    @abstractmethod
    def ask(self, request: Request) -> Iterator[Event]:
        """The events of one request. Raises what it fails with."""

    def submit(self, request: Request, deliver: Deliver) -> Asking:
        """Ask in a new thread."""
        return Asking(self.ask(request), deliver)

    def cancel(self, ticket: Asking) -> None:
        """End a request at its next event."""
        ticket.cancelled.set()
        ticket.stop()

    def close(self) -> None:  # noqa: B027
        """Leave the other process as it is."""


def is_device_failure(error: BaseException) -> bool:
    """Whether an accelerator raised an error that all further work on it will raise too: any but a lack of memory."""
    name, text = type(error).__name__, str(error)
    failed = name == "AcceleratorError" or (isinstance(error, RuntimeError) and re.search(r"\b(CUDA|HIP) error", text))
    return bool(failed) and "out of memory" not in text.lower()
