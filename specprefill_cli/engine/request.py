"""Requests to an engine, the events that it delivers, and the interface of all engines. Does not import torch."""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specprefill_cli.documents.document import Collection
from specprefill_cli.settings import Settings

if TYPE_CHECKING:
    from specprefill_cli.prompting import Template

ANSWER, PASSAGES = "answer", "passages"
# Reads documents by name.
ReadDocuments = Callable[[tuple[str, ...]], Collection]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A question about documents.

    documents: the documents themselves, names for the engine to read, or a function that reads them when the engine calls it
    task: `answer` the question, or use only the draft to find `passages`
    top: number of passages; None: those of the keep ratio
    with_cells: also return every chunk with its fate, for an HTML page
    template: of the prompt; None: the engine's
    stop_texts: texts that end the answer and are not part of it
    no_prefix_sharing: whether it shares no work with other requests about the same documents
    """

    documents: Collection | tuple[str, ...] | Callable[[], Collection]
    question: str
    settings: Settings
    task: str = ANSWER
    top: int | None = None
    with_cells: bool = False
    template: "Template | None" = None
    stop_texts: tuple[str, ...] = ()
    no_prefix_sharing: bool = False

    def read_documents(self, read: ReadDocuments | None) -> Collection:
        """Return the documents (named ones by `read`, else `read_collection`), or the shortlist of many. Raises DocumentError."""
        from specprefill_cli.documents.collect import read_collection
        from specprefill_cli.prefill.shortlist import shortlist

        documents: Collection
        if isinstance(self.documents, tuple):
            documents = (read or read_collection)(self.documents)
        else:
            documents = self.documents() if callable(self.documents) else self.documents
        return shortlist(documents, self.question, self.settings)


@dataclass(frozen=True)
class Started:
    """The first token has been chosen."""


@dataclass(frozen=True)
class Piece:
    """A piece of an answer's text."""

    text: str


@dataclass(frozen=True)
class Provisional:
    """The answer is complete, and full prefill begins to confirm it."""


@dataclass(frozen=True)
class Done:
    """The result of the request; cells: every chunk with its fate, if requested."""

    result: Any
    cells: Any = None


@dataclass(frozen=True)
class Failed:
    """The request has failed. error: the reason."""

    error: BaseException


Event = Started | Piece | Provisional | Done | Failed
LAST = (Done, Failed)
# Receives the events of a request, on the engine's thread; it must not block.
EventCallback = Callable[[Event], None]


class QueueFull(Exception):
    """Too many requests wait, or the engine is closing."""


class Cancelled(Exception):
    """The failure of a request that was cancelled before its first token."""


class Engine(ABC):
    """Turns requests into events: with models in this process or in Ray actors, through this user's server or an endpoint.

    capacity: requests worth having in flight
    """

    capacity: int

    @abstractmethod
    def submit(self, request: Request, on_event: EventCallback) -> Any:
        """Add a request, from any thread; return a ticket for `cancel`. Raises QueueFull if the engine has ended."""

    def cancel(self, ticket: Any) -> None:  # noqa: B027
        """End a request that nobody waits for any more."""

    def close(self) -> None:  # noqa: B027
        """End the engine, once no request is in flight."""


class RemoteEngine(Engine):
    """An engine whose answers come from another process; a thread waits for each submitted request."""

    @abstractmethod
    def ask(self, request: Request) -> Generator[Event, None, None]:
        """Yield the events of a request. Raises the error that the request fails with."""

    def submit(self, request: Request, on_event: EventCallback) -> threading.Event:
        """Wait for the events in a new thread. Return the ticket, which is set once the request is cancelled."""
        cancelled = threading.Event()

        def deliver() -> None:
            try:
                # Closing the generator closes its connection, in this thread.
                with closing(self.ask(request)) as events:
                    for event in events:
                        if cancelled.is_set():
                            raise Cancelled
                        on_event(event)
            except BaseException as error:
                on_event(Failed(Cancelled() if cancelled.is_set() else error))

        # A daemon, so that a silent server delays neither other requests nor the program's exit.
        threading.Thread(target=deliver, name="asking", daemon=True).start()
        return cancelled

    def cancel(self, ticket: threading.Event) -> None:
        """End a request at its next event."""
        ticket.set()


def is_device_failure(error: BaseException) -> bool:
    """Whether an accelerator failed so that all further work on it will fail too: any error but a lack of memory."""
    is_runtime_error = isinstance(error, RuntimeError) and re.search(r"\b(CUDA|HIP) error", str(error)) is not None
    is_device_error = is_runtime_error or type(error).__name__ == "AcceleratorError"
    # cuBLAS reports a lack of memory as a failed allocation.
    return is_device_error and re.search("out of memory|alloc_failed", str(error).lower()) is None
