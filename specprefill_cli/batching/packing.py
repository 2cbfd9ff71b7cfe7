"""Which passes of several questions run together, and running them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median

from torch import Tensor

from specprefill_cli.batching.admission import packed_tokens
from specprefill_cli.batching.tickets import Ticket
from specprefill_cli.models.adapter import pass_overhead, run_alone
from specprefill_cli.models.cache import rollback
from specprefill_cli.models.packed import run_packed
from specprefill_cli.models.passes import Pass
from specprefill_cli.prefill.calibration import CalibratedPair

# Passes whose speed the length of the next ones follows.
TIMED_PASSES = 9


class Packer:
    """Chooses the passes that run next, and runs those of one model as one.

    room: tokens that long passes are packed up to; short: tokens of a pass up to which it is short
    """

    def __init__(self, pair: CalibratedPair) -> None:
        self.pair = pair
        self.room = packed_tokens(pair)
        self.short = pass_overhead(pair.loaded_target.device)
        self.token_seconds: deque[float] = deque(maxlen=TIMED_PASSES)

    @property
    def seconds_per_token(self) -> float | None:
        """The median of the latest long passes; None before the first."""
        return median(self.token_seconds) if self.token_seconds else None

    def due(self, running: Sequence[Ticket]) -> Iterable[list[tuple[Ticket, Pass]]]:
        """The passes to run now, in groups that can be packed: all short ones, and of the long ones the oldest.

        Long ones join while the whole stays below what is worth packing, so that no answer waits for more than one.
        """
        waiting = [(ticket, ticket.work.waiting) for ticket in running if ticket.work and ticket.work.waiting]
        waiting.sort(key=lambda entry: (entry[1].length > self.short, entry[0].number))
        groups: dict[tuple[int, int | None], list[tuple[Ticket, Pass]]] = {}
        total, long = 0, 0
        for ticket, step in waiting:
            if step.length > self.short and long and total + step.length > self.room:
                break
            total += step.length
            long += step.length > self.short
            groups.setdefault((id(step.model), step.last_layer), []).append((ticket, step))
        return groups.values()

    def run(self, steps: list[tuple[Ticket, Pass]]) -> list[tuple[Ticket, Tensor | Exception]]:
        """Run passes of one model as one; what each of them returns or raises."""
        began, tokens = time.perf_counter(), sum(step.length for _, step in steps)
        outcomes: list[Tensor | Exception] | None = None
        if len(steps) > 1:
            try:
                outcomes = [*run_packed([step for _, step in steps])]
            except Exception:
                # Run alone, the pass at fault raises this again, and the others do not suffer.
                outcomes = None
        outcomes = [attempt(step) for _, step in steps] if outcomes is None else outcomes
        if tokens > 4 * self.short:
            self.pair.wait()
            self.token_seconds.append((time.perf_counter() - began) / tokens)
        return [(ticket, outcome) for (ticket, _), outcome in zip(steps, outcomes, strict=True)]


def attempt(step: Pass) -> Tensor | Exception:
    """Run a pass alone; its logits, or what it raised. Where it fails, its state is as it was."""
    length = step.state.length
    try:
        return run_alone(step)
    except BaseException as error:
        rollback(step.state, length)
        if not isinstance(error, Exception):
            raise
        return error
