"""A session whose models are in the engine: what a command's process uses in place of one of its own.

Where the engine ends, the command goes on with a session of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specprefill_cli.serving.link import EngineGone, EngineLink
from specprefill_cli.serving.messages import Ask, Cancel, Finished, Open, Piece, Plan, Retrieve
from specprefill_cli.settings import AUTO

if TYPE_CHECKING:
    from specprefill_cli.answering.answer import Answer
    from specprefill_cli.answering.cells import Cell
    from specprefill_cli.answering.dry_run import DryRun
    from specprefill_cli.answering.retrieval import Retrieval
    from specprefill_cli.answering.session import Session
    from specprefill_cli.answering.stream import AnswerStream
    from specprefill_cli.documents.collection import Collection
    from specprefill_cli.prefill.prefix_cache import DocumentCache
    from specprefill_cli.prompting import Template
    from specprefill_cli.settings import Settings

GONE = "the server has ended; going on without it"


@dataclass(kw_only=True)
class RemoteSession:
    """Answers questions with the engine's pair, as a session of the command's own would.

    auto_scorer: what the scorer `auto` is for the pair in the mode of the settings
    open_own: loads that session, when the engine has gone; tell: shows a warning
    with_cells: whether answers bring the document's cells
    """

    link: EngineLink
    template: Template
    settings: Settings
    auto_scorer: str
    open_own: Callable[[], Session]
    tell: Callable[[str], None]
    with_cells: bool = False
    startup_seconds: float = 0.0
    own: Session | None = field(default=None)

    @property
    def cache(self) -> DocumentCache | None:
        """What this process keeps of documents: nothing while the engine answers."""
        return self.own.cache if self.own is not None else None

    def ask(self, documents: Collection, question: str, settings: Settings) -> RemoteStream | AnswerStream:
        """As `Session.ask`: prefill, and return the stream that decodes."""
        if self.own is None:
            values = self.question_values(documents, question, settings)
            message = Ask(**values, startup_seconds=self.startup_seconds, with_cells=self.with_cells)
            try:
                self.link.request(message)
                return RemoteStream(session=self, message=message)
            except EngineGone:
                self.go_on_alone()
        assert self.own is not None
        return self.own.ask(documents, question, settings)

    def retrieve(self, collection: Collection, question: str, settings: Settings, top: int | None) -> Retrieval:
        """As `retrieve` with a session of the command's own."""
        from specprefill_cli.answering.retrieval import retrieve

        values = self.question_values(collection, question, settings)
        try:
            return self.link.request(Retrieve(**values, top=top)).value
        except EngineGone:
            return retrieve(self.go_on_alone(), collection, question, settings, top)

    def dry_run(self, collection: Collection, question: str, settings: Settings) -> DryRun:
        """As `dry_run` with a session of the command's own."""
        from specprefill_cli.answering.dry_run import dry_run

        values = self.question_values(collection, question, settings)
        try:
            return self.link.request(Plan(**values)).value
        except EngineGone:
            return dry_run(self.go_on_alone(), collection, question, settings)

    def question_values(self, collection: Collection, question: str, settings: Settings) -> dict[str, Any]:
        """What every message with a question holds."""
        return {"collection": collection, "question": question, "settings": settings, "template": self.template}

    @property
    def scorer(self) -> str:
        """The scorer of the settings, with `auto` resolved."""
        return self.auto_scorer if self.settings.scorer == AUTO else self.settings.scorer

    def warm_up(self, settings: Settings) -> None:
        """The engine warms up what it is asked for; a session of the command's own does so when it is loaded."""
        if self.own is not None:
            self.own.warm_up(settings)

    def go_on_alone(self) -> Session:
        """Load a session of the command's own."""
        self.tell(GONE)
        self.own = replace(self.open_own(), startup_seconds=self.startup_seconds)
        return self.own


@dataclass(kw_only=True)
class RemoteStream:
    """An answer while the engine decodes it: iterate for pieces of text, then call `result`."""

    session: RemoteSession
    message: Ask
    last: Finished | None = None
    own: AnswerStream | None = None
    written: str = ""
    interrupted: bool = False

    def __iter__(self) -> Iterator[str]:
        """Pieces of text; interrupting it (Ctrl-C) keeps what came so far."""
        try:
            yield from self.pieces()
        except EngineGone:
            yield from self.pieces_alone()

    def pieces(self) -> Iterator[str]:
        """The engine's pieces; an interrupt is passed on, and the engine then ends the answer."""
        while self.last is None:
            try:
                message = self.session.link.receive()
                if isinstance(message, Piece):
                    self.written += message.text
                    yield message.text
                elif isinstance(message, Finished):
                    self.last = message
            except KeyboardInterrupt:
                self.interrupted = True
                self.session.link.send(Cancel())

    def pieces_alone(self) -> Iterator[str]:
        """The rest of the answer by a session of the command's own; what was written already is left out."""
        message = self.message
        stream = self.session.go_on_alone().ask(message.collection, message.question, message.settings)
        self.own, skip = stream, len(self.written)
        for piece in stream:
            if len(piece) > skip:
                yield piece[skip:]
            skip = max(0, skip - len(piece))

    def result(self) -> Answer:
        """The finished answer."""
        if self.own is not None:
            return self.own.result()
        assert self.last is not None, "the answer has not been read to its end"
        return self.last.answer

    @property
    def cells(self) -> list[Cell]:
        """The document's cells."""
        from specprefill_cli.answering.cells import stream_cells

        if self.own is not None:
            return stream_cells(self.own)
        assert self.last is not None
        return self.last.cells or []

    def finished(self) -> Answer:
        """Decode to the end; the answer. Raises KeyboardInterrupt when Ctrl-C ended it."""
        for _ in self:
            pass
        answer = self.result()
        # The answer may have ended in the pass in which the interrupt came.
        if self.interrupted or answer.stopped == "interrupt":
            raise KeyboardInterrupt
        return answer


def open_remote(
    connection: socket.socket,
    settings: Settings,
    opening: Open,
    open_own: Callable[[], Session],
    tell: Callable[[str], None],
) -> RemoteSession | None:
    """A session with the engine; None where the engine has gone.

    Raises SpecprefillError for settings that no session could be opened with.
    """
    from specprefill_cli.answering.session import check_settings

    template = check_settings(settings)
    link = EngineLink(connection)
    try:
        opened = link.request(opening)
    except EngineGone:
        tell(GONE)
        return None
    return RemoteSession(
        link=link,
        template=template,
        settings=settings,
        auto_scorer=opened.auto_scorer,
        open_own=open_own,
        tell=tell,
    )
