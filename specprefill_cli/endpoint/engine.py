"""An engine whose target is behind an endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specprefill_cli.answering.cells import stream_cells
from specprefill_cli.engine.request import ANSWER, Done, Event, Piece, Request, Started

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session


@dataclass(frozen=True)
class EndpointEngine:
    """Answers one request at a time, in the calling thread. session: of `open_endpoint`."""

    session: Session

    def ask(self, request: Request) -> Iterator[Event]:
        """The events of a question about documents that were read; Ctrl-C ends the answer, which is complete up to there.

        Raises what `EndpointSession.ask` raises, and EndpointError where the answer is cut off.
        """
        assert request.task == ANSWER, "plans and passages need a target with weights here"
        assert not isinstance(request.documents, tuple), "the documents were read"
        stream = self.session.ask(request.documents, request.question, request.settings, request.identifier)
        yield Started()
        for text in stream:
            yield Piece(text)
        yield Done(stream.result(), stream_cells(stream) if request.with_cells else None)
