"""Which worker a row goes to: one that has its documents, else one that has nothing to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specprefill_cli.batching.executor import Task

# Lists of documents that a worker keeps (`answerer.read_once`).
KEPT_LISTS = 8
# How well a row suits a worker: its documents are there; at no worker; at another one.
HERE, NOWHERE, ELSEWHERE = range(3)


@dataclass
class Router:
    """Remembers the latest lists of documents of each worker, the least recently used one first."""

    latest: dict[int, dict[tuple[str, ...], None]] = field(default_factory=dict)

    def forget(self, worker: int) -> None:
        """A worker is lost, and with it what it kept."""
        self.latest.pop(worker, None)

    def sent(self, worker: int, documents: tuple[str, ...]) -> None:
        """Remember that a worker was sent a row about these documents."""
        kept = self.latest.setdefault(worker, {})
        kept.pop(documents, None)
        kept[documents] = None
        if len(kept) > KEPT_LISTS:
            del kept[next(iter(kept))]

    def suits(self, worker: int, documents: tuple[str, ...]) -> int:
        """How well rows about these documents suit a worker; the batch's own (none named) are everywhere."""
        if not documents or documents in self.latest.get(worker, ()):
            return HERE
        return ELSEWHERE if any(documents in kept for kept in self.latest.values()) else NOWHERE

    def choose(self, worker: int, waiting: Sequence[Task]) -> Task:
        """The row that suits a worker best; of those that suit it equally well, the one that has waited longest."""
        return min(waiting, key=lambda task: self.suits(worker, task.row.documents))
