"""The phases of the time to first token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PHASES = (
    "tokenize",
    "draft_prefill",
    "look_ahead",
    "scoring",
    "selection",
    "mapping",
    "checkpoints",
    "target_prefill",
    "first_token",
)
# With an endpoint, after all of them: from sending the text to the first piece of the answer. That is network, queue, prefill
# and first token of the server.
UPSTREAM = "upstream"


@dataclass
class PhaseClock:
    """Seconds by phase; `wait` synchronises the devices at the end of each phase.

    A phase begins where the previous one ended, so that the phases add up to the TTFT.
    """

    wait: Callable[[], None] = lambda: None
    seconds: dict[str, float] = field(default_factory=dict)
    started: float | None = None
    ended: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.started is None:
            self.wait()
            self.started = self.ended = time.perf_counter()
        start = self.ended
        try:
            yield
        finally:
            self.wait()
            self.ended = time.perf_counter()
            self.seconds[name] = self.seconds.get(name, 0.0) + self.ended - start

    def resume(self) -> None:
        """Count nothing of the time since the last phase ended: the question waited for others."""
        if self.started is not None:
            waited = time.perf_counter() - self.ended
            self.started += waited
            self.ended += waited

    @property
    def ttft(self) -> float:
        """Seconds from the start of the first phase to the end of the last."""
        return self.ended - self.started if self.started is not None else 0.0

    def phases(self) -> dict[str, float]:
        """Seconds of every phase in order; 0 for a phase that the mode does not have."""
        return {name: self.seconds.get(name, 0.0) for name in PHASES}
