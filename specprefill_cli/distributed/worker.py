"""Ranks 1, 2, ... of a run: they do their part of what rank 0 orders, print nothing, and end with it."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from specprefill_cli.distributed.commands import Forget, Open, Prefill, Read
from specprefill_cli.distributed.launch import join_run
from specprefill_cli.distributed.ranks import End
from specprefill_cli.errors import SpecprefillError, first_line

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.decoding.reader import ModelReader
    from specprefill_cli.distributed.ranks import Ranks
    from specprefill_cli.prefill.prefix_cache import PrefixCache


BUILT_IN = "ask"


@dataclass
class Follower:
    """What a rank holds between two orders. states: kept states of the target, by the names that rank 0 gave them."""

    ranks: Ranks
    session: Session | None = None
    reader: ModelReader | None = None
    states: dict[str, PrefixCache] = field(default_factory=dict)
    unable: str = ""

    def follow(self, order: object) -> None:
        """Do this rank's part of an order. Raises whatever keeps it from that."""
        if isinstance(order, Open):
            self.open(order)
        elif self.session is None:
            raise SpecprefillError(self.unable)
        elif isinstance(order, Prefill):
            self.prefill(order)
        elif isinstance(order, Read):
            self.reader.read(order.tokens, order.rows)
        elif isinstance(order, Forget):
            self.reader.rollback(order.length)

    def open(self, order: Open) -> None:
        from specprefill_cli.answering.session import open_session

        # What was loaded before must not stand in memory beside it.
        self.session = self.reader = None
        self.states.clear()
        # Prompts come as tokens: a template of the user's need not be on this machine.
        settings = replace(order.settings, prompt=BUILT_IN, prompt_folder=None)
        try:
            self.session = open_session(settings, order.draft, calibrated_pair=order.calibrated, ranks=self.ranks)
        except Exception as error:
            self.unable = first_line(error)
            raise

    def prefill(self, order: Prefill) -> None:
        from specprefill_cli.decoding.reader import ModelReader
        from specprefill_cli.prefill.phases import PhaseClock
        from specprefill_cli.prefill.prefix_cache import PrefixCache
        from specprefill_cli.prefill.registry import MODES

        # The cache of the answer before must not stand in memory beside this one's.
        self.reader = None
        kept = None if order.states is None else self.states.setdefault(order.states, PrefixCache())
        pair = self.session.pair
        request = replace(order.request, pair=pair, clock=PhaseClock(), target_prefixes=kept)
        prefilled = MODES[order.mode].prefill(request)
        self.reader = ModelReader(pair.target.model, prefilled.state, request.prompt.length)


def serve() -> NoReturn:
    """Follow orders until rank 0 ends the run, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "--debug" not in sys.argv[1:2]:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
    ranks = join_run()
    follower, watch = Follower(ranks), ranks.watch
    while True:
        received = ranks.receive()
        if isinstance(received.order, End):
            # Nothing is left to be written, and taking down connections takes time.
            os._exit(0)
        watch.failure = ""
        watch.order = received.number
        try:
            follower.follow(received.order)
        except Exception as error:
            # Rank 0 fails in the same way, or waits for this rank and reads why.
            watch.failure = first_line(error)
