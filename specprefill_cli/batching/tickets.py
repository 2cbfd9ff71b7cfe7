"""Questions that a scheduler was given, and what it tells about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specprefill_cli.answering.answer import Answer
from specprefill_cli.answering.resolve import Prepared
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.batching.coroutine import Coroutine
from specprefill_cli.documents.collection import Collection
from specprefill_cli.settings import Settings

# Takes an answer and the pieces of its text, where it runs; a pass may run between two pieces.
Consumer = Callable[[AnswerStream, Iterator[str]], None]


@dataclass(eq=False, kw_only=True)
class Ticket:
    """A question that was submitted, and how far it is.

    stop_tokens: whether the answer ends where the target ends it, and not only at its longest
    session: answers it; consume: takes the answer; None: it comes as events
    number: the order of submission; prepared: tokenised, while it is the next to be admitted
    bytes: of keys and values, estimated when it was admitted
    prefilled: whether its first token is there, and what others may share is in the session's cache
    interrupted: whether it was told to end where it stands
    """

    collection: Collection
    question: str
    settings: Settings
    identifier: str
    stop_tokens: bool
    number: int
    session: Session
    consume: Consumer | None = None
    prepared: Prepared | None = None
    bytes: int = 0
    prefilled: bool = False
    interrupted: bool = False
    work: Coroutine | None = None

    @property
    def shares(self) -> tuple[int, str, str, str]:
        """Questions for which this is equal can share what prefill computes of their documents."""
        return id(self.session.cache), self.collection.text, self.settings.mode, self.settings.scorer


@dataclass(frozen=True, kw_only=True)
class Event:
    """What happened to a question: a piece of its answer's text, and at the end the whole answer or an error."""

    ticket: Ticket
    text: str | None = None
    answer: Answer | None = None
    error: Exception | None = None

    @property
    def last(self) -> bool:
        """Whether nothing more will come for this ticket."""
        return self.text is None
