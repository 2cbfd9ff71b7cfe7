"""What answers the rows of a batch: one session, and the documents that rows share."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specprefill_cli.answering.session import Session, check_names, loads_draft
from specprefill_cli.batching.rows import Row
from specprefill_cli.documents.collection import Collection
from specprefill_cli.errors import UsageError
from specprefill_cli.reporting.jsonl import answer_record
from specprefill_cli.settings import Settings, convert

# Lists of documents whose text is kept.
MOST_COLLECTIONS = 8


class Shelf:
    """Reads each list of documents once, and keeps the latest ones."""

    def __init__(self, read: Callable[[Sequence[str]], Collection], most: int = MOST_COLLECTIONS) -> None:
        self.read = read
        self.most = most
        self.collections: OrderedDict[tuple[str, ...], Collection] = OrderedDict()

    def __call__(self, names: tuple[str, ...]) -> Collection:
        if names not in self.collections:
            self.collections[names] = self.read(names)
        self.collections.move_to_end(names)
        if len(self.collections) > self.most:
            self.collections.popitem(last=False)
        return self.collections[names]


class SessionAnswerer:
    """Answers rows with one session.

    shelf: reads the documents that rows name; own: what the other rows ask about, read once: standard input has no more
    """

    def __init__(self, session: Session, settings: Settings, shelf: Shelf, own: Collection | None) -> None:
        self.session = session
        self.settings = settings
        self.shelf = shelf
        self.own = own

    def __call__(self, row: Row) -> dict[str, Any]:
        """The record of a row's answer; its start-up is the session's, and the reading of documents that are its own.

        Raises SpecprefillError for what cannot be read or answered, KeyboardInterrupt when the answer was interrupted.
        """
        settings = row_settings(self.settings, row)
        if self.session.pair.draft is None and loads_draft(settings):
            raise UsageError("this row needs the draft, which was not loaded; give the batch a --mode that uses it")
        began = time.perf_counter()
        collection = self.shelf(row.documents) if row.documents else self.own
        self.session.warm_up(settings)
        reading = time.perf_counter() - began
        answer = self.session.ask(collection, row.question, settings).finished()
        ignored = [f"key '{key}' of the row means nothing here and was ignored" for key in row.ignored]
        return answer_record(
            replace(
                answer,
                startup_seconds=answer.startup_seconds + reading,
                warnings=[*answer.warnings, *ignored],
            )
        )


def row_settings(settings: Settings, row: Row) -> Settings:
    """The batch's settings with the row's own. Raises UsageError for a value that cannot be."""
    own = {name: convert(name, value, f"row {row.identifier}") for name, value in row.overrides.items()}
    settings = replace(settings, **own)
    check_names(settings)
    return settings
