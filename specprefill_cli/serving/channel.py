"""The engine's end of a command's socket: its questions become jobs, their payloads go back."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from specprefill_cli.answering.dry_run import dry_run
from specprefill_cli.answering.resolve import resolve_scorer
from specprefill_cli.answering.retrieval import retrieve
from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.serving.engine import AskJob, CallJob, Engine, Job
from specprefill_cli.serving.frames import HEADER, frame, length_of
from specprefill_cli.serving.messages import Ask, Cancel, Failed, Open, Opened, Payload, Plan, Question, Retrieve
from specprefill_cli.serving.submission import Submission
from specprefill_cli.settings import AUTO

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session


@dataclass
class Channel:
    """Serves one command. session_of: the session that suits what the command says at its beginning."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    engine: Engine
    session_of: Callable[[Open], Session]
    session: Session | None = None
    inbox: asyncio.Queue[object] = field(default_factory=asyncio.Queue)
    submission: Submission | None = None
    closing: bool = False

    async def serve(self) -> None:
        """Serve until the command ends, or until `close` and the end of the job in hand."""
        pump = asyncio.create_task(self.pump())
        try:
            while not self.closing and (message := await self.inbox.get()) is not None:
                await self.handle(message)
        except OSError:
            pass
        finally:
            pump.cancel()
            self.writer.close()

    async def pump(self) -> None:
        """Read messages; an interrupt, or the command's end, reaches the running job at once."""
        try:
            while True:
                message = pickle.loads(await self.receive())
                if not isinstance(message, Cancel):
                    self.inbox.put_nowait(message)
                elif self.submission is not None:
                    self.submission.cancel()
        except (OSError, asyncio.IncompleteReadError):
            if self.submission is not None:
                self.submission.cancel()
            self.inbox.put_nowait(None)

    async def receive(self) -> bytes:
        """The next message; it comes from a process that the host has forked."""
        return await self.reader.readexactly(length_of(await self.reader.readexactly(HEADER)))

    async def handle(self, message: object) -> None:
        """Do what a message asks for, and send everything that comes of it."""
        if isinstance(message, Open):
            self.session = self.session_of(message)
            await self.send(Opened(auto_scorer=resolve_scorer(AUTO, self.session.pair, message.mode)))
            return
        assert isinstance(message, Question), "commands send nothing else"
        assert self.session is not None, "commands open a session first"
        async with Submission(self.engine, job_of(message, self.session)) as self.submission:
            async for payload in self.submission:
                await self.send(payload)
        self.submission = None

    async def send(self, payload: Payload) -> None:
        self.writer.write(frame(pickled(payload)))
        await self.writer.drain()

    def close(self) -> None:
        """End after the job in hand."""
        self.closing = True
        self.inbox.put_nowait(None)


def job_of(message: Question, session: Session) -> Job:
    """The job that answers a message."""
    session = replace(session, template=message.template, startup_seconds=message.startup_seconds)
    arguments = (session, message.collection, message.question, message.settings)
    if isinstance(message, Retrieve):
        return CallJob(partial(retrieve, *arguments, message.top))
    if isinstance(message, Plan):
        return CallJob(partial(dry_run, *arguments))
    assert isinstance(message, Ask)
    return AskJob(
        session=session,
        collection=message.collection,
        question=message.question,
        settings=message.settings,
        with_cells=message.with_cells,
    )


def pickled(payload: Payload) -> bytes:
    """A payload for the command; an error that cannot be pickled is told by its type and message."""
    if isinstance(payload, Failed) and not isinstance(payload.error, SpecprefillError):
        try:
            pickle.loads(pickle.dumps(payload))
        except Exception:
            payload = Failed(RuntimeError(f"{type(payload.error).__name__}: {first_line(payload.error)}"))
    return pickle.dumps(payload)


async def open_channel(connection: socket.socket, engine: Engine, session_of: Callable[[Open], Session]) -> Channel:
    """A channel on a connected socket."""
    reader, writer = await asyncio.open_connection(sock=connection)
    return Channel(reader, writer, engine, session_of)
