"""Answers the rows of a batch with one session and the documents that rows share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from specprefill_cli.answering.resolve import check_names, loads_draft
from specprefill_cli.answering.session import Session
from specprefill_cli.batching.rows import Row
from specprefill_cli.documents.collection import Collection
from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.reporting.jsonl import answer_record
from specprefill_cli.settings import Settings, parse_setting

Reader = Callable[[tuple[str, ...]], Collection]


@dataclass(frozen=True)
class SessionAnswerer:
    """Answers rows with one session.

    read: reads the documents that rows name; own: the documents of all other rows
    """

    session: Session
    settings: Settings
    read: Reader
    own: Collection | None

    def __call__(self, row: Row) -> dict[str, Any]:
        """The record of a row's answer; reading the row's own documents counts as start-up.

        Raises SpecprefillError for a document that cannot be read or a question that cannot be answered,
        KeyboardInterrupt when the answer was interrupted.
        """
        settings = row_settings(self.settings, row)
        if self.session.pair.draft is None and loads_draft(settings):
            raise UsageError("this row needs the draft, which was not loaded; give the batch a --mode that uses it")
        began = time.perf_counter()
        collection = self.read(row.documents) if row.documents else self.own
        assert collection is not None, "`parse_line` refuses rows without documents"
        self.session.warm_up(settings)
        reading = time.perf_counter() - began
        answer = self.session.ask(collection, row.question, settings).finished()
        ignored = [f"key '{key}' of the row is unknown and was ignored" for key in row.ignored]
        seconds = answer.startup_seconds + reading
        return answer_record(replace(answer, startup_seconds=seconds, warnings=[*answer.warnings, *ignored]))


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


def row_settings(settings: Settings, row: Row) -> Settings:
    """The batch's settings with the row's own. Raises UsageError for a wrong value."""
    place = f"row {row.identifier}"
    settings = settings.varied(**{name: parse_setting(name, value, place) for name, value in row.overrides.items()})
    check_names(settings)
    return settings
