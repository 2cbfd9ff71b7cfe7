"""Answers the rows of a batch with one session and the documents that rows share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch

from specprefill_cli.answering.answer import Answer
from specprefill_cli.answering.resolve import check_names, loads_draft
from specprefill_cli.batching.out_of_memory import free_memory, with_short_passes
from specprefill_cli.batching.rows import Row
from specprefill_cli.documents.collection import Collection
from specprefill_cli.errors import SpecprefillError, UsageError, first_line
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.reporting.jsonl import answer_record
from specprefill_cli.settings import Settings, parse_setting

Reader = Callable[[tuple[str, ...]], Collection]


class Answering(Protocol):
    """A session that answers: one in this process, or the running server's, whose cache is out of reach."""

    startup_seconds: float

    @property
    def cache(self) -> DocumentCache | None:
        """What it keeps of documents between questions."""

    def warm_up(self, settings: Settings) -> None:
        """Prepare for questions with these settings."""

    def ask(self, documents: Collection, question: str, settings: Settings) -> FinishedStream:
        """Prefill for a question."""


class FinishedStream(Protocol):
    """An answer that can be waited for."""

    def finished(self) -> Answer:
        """The answer. Raises KeyboardInterrupt when Ctrl-C ended it."""


@dataclass(frozen=True, kw_only=True)
class RowQuestion:
    """A row as a question for the session; reading_seconds: what reading its documents took."""

    row: Row
    collection: Collection
    settings: Settings
    reading_seconds: float

    def record(self, answer: Answer, warnings: Sequence[str] = ()) -> dict[str, Any]:
        """The record of its answer; reading the row's own documents counts as start-up."""
        ignored = [f"key '{key}' of the row is unknown and was ignored" for key in self.row.ignored]
        seconds = answer.startup_seconds + self.reading_seconds
        return answer_record(replace(answer, startup_seconds=seconds, warnings=[*answer.warnings, *warnings, *ignored]))


@dataclass(frozen=True)
class SessionAnswerer:
    """Answers rows with one session.

    read: reads the documents that rows name; own: the documents of all other rows
    concurrency: rows that may be answered at once (see `row_scheduler`); None: as many as pay
    """

    session: Answering
    settings: Settings
    read: Reader
    own: Collection | None
    concurrency: int | None = 1

    def __call__(self, row: Row) -> dict[str, Any]:
        """The record of a row's answer.

        Raises SpecprefillError for a document that cannot be read or a question that cannot be answered,
        KeyboardInterrupt when the answer was interrupted.
        """
        question = self.question(row)
        return question.record(*self.ask(question.collection, row.question, question.settings))

    def question(self, row: Row) -> RowQuestion:
        """Read a row's documents, and warm up for its mode. Raises SpecprefillError for a row that cannot be asked."""
        settings = settings_with(self.settings, row.overrides, f"row {row.identifier}")
        if loads_draft(settings) and not loads_draft(self.settings):
            raise UsageError("this row needs the draft, which was not loaded; give the batch a --mode that uses it")
        began = time.perf_counter()
        collection = self.read(row.documents) if row.documents else self.own
        assert collection is not None, "`parse_line` refuses rows without documents"
        self.session.warm_up(settings)
        reading = time.perf_counter() - began
        return RowQuestion(row=row, collection=collection, settings=settings, reading_seconds=reading)

    def ask(self, collection: Collection, question: str, settings: Settings) -> tuple[Answer, list[str]]:
        """The answer, and a warning where it took a second attempt.

        Where the device is out of memory, what was kept of earlier documents is dropped, and passes are short; a prompt that is
        too long even so raises torch.OutOfMemoryError.
        """
        try:
            return self.session.ask(collection, question, settings).finished(), []
        except torch.OutOfMemoryError as error:
            reason = first_line(error)
        # Behind the block above, because the error holds what the failed attempt has allocated.
        free_memory(self.session.cache)
        settings = with_short_passes(settings)
        answer = self.session.ask(collection, question, settings).finished()
        return answer, [f"out of memory ({reason}); asked again in passes of {settings.prefill_chunk} tokens"]


def read_once(read: Reader, limit: int = 8) -> Reader:
    """A reader that reads each of the latest `limit` lists of documents once, also one that cannot be read."""

    @lru_cache(limit)
    def outcome(names: tuple[str, ...]) -> Collection | SpecprefillError:
        try:
            return read(names)
        except SpecprefillError as error:
            return error

    def remembered(names: tuple[str, ...]) -> Collection:
        collection = outcome(names)
        if isinstance(collection, SpecprefillError):
            raise collection
        return collection

    return remembered


def settings_with(settings: Settings, overrides: Mapping[str, Any], place: str) -> Settings:
    """Settings with others in their place. Raises UsageError, which begins with `place`, for a wrong value."""
    settings = settings.varied(**{name: parse_setting(name, value, place) for name, value in overrides.items()})
    check_names(settings)
    return settings
