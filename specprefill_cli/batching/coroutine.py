"""A piece of work that stops wherever it needs a forward pass, so that passes of several pieces can run together.

Prefill modes and scorers, which may be plugins, and decoding call models deep inside ordinary functions. greenlet stops
them there without making a generator of each; one thread runs them all, so nothing has to be locked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context

import greenlet
from torch import Tensor

from specprefill_cli.models.passes import RUNNER, Pass


class Coroutine:
    """Work of one thread that is resumed with what it waits for.

    waiting: the pass that it needs next; None where it only paused, has not begun, or has ended
    packs: whether its passes are handed out; otherwise they run at once, and it stops only where it pauses
    """

    def __init__(self, work: Callable[[], None], packs: bool = True) -> None:
        self.work = work
        self.packs = packs
        self.waiting: Pass | None = None
        self.greenlet = greenlet.greenlet(self.run)
        self.greenlet.gr_context = copy_context()

    @property
    def ended(self) -> bool:
        """Whether the work is done, or was stopped."""
        return self.greenlet.dead

    def run(self) -> None:
        """The work, in its own context."""
        RUNNER.set(self.hand_out if self.packs else None)
        self.work()

    def hand_out(self, step: Pass) -> Tensor:
        """Stop until the logits of a pass are there."""
        self.waiting = step
        return self.pause()

    def pause(self) -> Tensor:
        """Stop until the next `resume`; what that was given."""
        return self.greenlet.parent.switch()

    def resume(self, outcome: Tensor | BaseException | None = None) -> None:
        """Go on, up to the next stop, with the logits of the pass or the error that it raised.

        Raises what the work raises.
        """
        self.waiting = None
        self.greenlet.parent = greenlet.getcurrent()
        if isinstance(outcome, BaseException):
            self.greenlet.throw(outcome)
        elif self.greenlet:
            self.greenlet.switch(outcome)
        else:
            self.greenlet.switch()

    def stop(self) -> None:
        """End the work where it stands; its `finally` blocks run."""
        self.waiting = None
        self.greenlet.parent = greenlet.getcurrent()
        self.greenlet.throw(greenlet.GreenletExit)
