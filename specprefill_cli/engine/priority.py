"""Which running answers go on: those that a user waits for first; a confirmation uses what they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specprefill_cli.engine.question import Ticket


def due(running: Sequence[Ticket], prefilling: bool) -> list[Ticket]:
    """The running answers whose next passes run now.

    A confirmation runs where nothing else does, one at a time, so that only one holds the KV of a whole prompt.

    prefilling: whether a question waits for its first token
    """
    urgent = [ticket for ticket in running if not ticket.confirming]
    if urgent or prefilling:
        return urgent
    # One that has begun goes on before others begin.
    return sorted(running, key=lambda ticket: not ticket.bytes)[:1]
