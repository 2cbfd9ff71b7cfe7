"""Ranks 1, 2, ... of a run: they execute rank 0's commands, print nothing, and end with it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.distributed.commands import Command, DecodeStep, OpenPair, Prefill, Rollback
from specprefill_cli.distributed.launch import join_run
from specprefill_cli.distributed.ranks import Ranks
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.prefix_cache import PrefixCache
from specprefill_cli.prefill.registry import MODES

# Prompts arrive as tokens, so that the user's own template need not be on every machine.
BUILT_IN_TEMPLATE = "ask"


@dataclass
class Worker:
    """What a rank holds between two commands.

    prefix_caches: this rank's shards of the target's prefix caches, by the names that rank 0 gave them
    """

    ranks: Ranks
    session: Session | None = None
    reader: ModelReader | None = None
    prefix_caches: dict[str, PrefixCache] = field(default_factory=dict)

    def execute(self, command: Command) -> None:
        """Execute a command on this rank. Raises whatever keeps it from doing so."""
        if isinstance(command, OpenPair):
            self.open_pair(command)
        elif isinstance(command, Prefill):
            self.prefill(command)
        elif self.reader is not None and isinstance(command, DecodeStep):
            self.reader.read(command.tokens, command.rows)
        elif self.reader is not None and isinstance(command, Rollback):
            self.reader.rollback(command.length)
        else:
            raise RuntimeError(f"{command}: nothing has been prefilled on this rank")

    def open_pair(self, command: OpenPair) -> None:
        """Load this rank's shard of the pair."""
        # The old pair must not stay in memory beside the new one.
        self.session = self.reader = None
        self.prefix_caches.clear()
        settings = command.settings.varied(prompt=BUILT_IN_TEMPLATE, prompt_folder=None)
        self.session = open_session(settings, command.draft, calibrated=command.calibrated, ranks=self.ranks)

    def prefill(self, command: Prefill) -> None:
        """Prefill this rank's shard of the target."""
        # The cache of the last answer must not stay in memory beside this one's.
        self.reader = None
        name, prefixes = command.prefix_cache, None
        if name is not None:
            cache = PrefixCache(capacity_bytes=command.prefix_cache_bytes)
            prefixes = self.prefix_caches.setdefault(name, cache)
        if self.session is None:
            raise RuntimeError("no pair was opened on this rank")
        request = replace(command.request, pair=self.session.pair, clock=PhaseClock(), target_prefixes=prefixes)
        result = MODES[command.mode].prefill(request)
        self.reader = ModelReader(request.target.model, result.state, result.answer_position)


def serve() -> NoReturn:
    """Execute commands until rank 0 ends the run, or is lost."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard input and output belong to rank 0.
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    ranks = join_run()
    worker = Worker(ranks)
    while True:
        try:
            worker.execute(ranks.receive())
        except Exception as error:
            ranks.fail(error)
