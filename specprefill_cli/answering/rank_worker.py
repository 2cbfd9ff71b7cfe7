"""Ranks 1, 2, ... of a run: they execute rank 0's commands, print nothing, and end with it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.speculation import draft_reader
from specprefill_cli.distributed.commands import (
    Command,
    DecodeStep,
    OpenOther,
    OpenPair,
    Prefill,
    ReadPrompt,
    Role,
    Score,
    SharedCache,
)
from specprefill_cli.distributed.launch import join_run
from specprefill_cli.distributed.ranks import Ranks
from specprefill_cli.models.adapter import prefill
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.prefix_cache import PrefixCache
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import shared_scores

# Prompts arrive as tokens, so that the user's own template need not be on every machine.
BUILT_IN_TEMPLATE = "ask"


@dataclass
class Worker:
    """What a rank holds between two commands.

    readers: the models that read the answer, each behind the prompt
    prefix_caches: this rank's shards of prefix caches, by the names that rank 0 gave them
    """

    ranks: Ranks
    session: Session | None = None
    readers: dict[Role, ModelReader] = field(default_factory=dict)
    prefix_caches: dict[str, PrefixCache] = field(default_factory=dict)

    def execute(self, command: Command) -> None:
        """Execute a command on this rank. Raises whatever keeps it from doing so."""
        if isinstance(command, OpenPair | OpenOther):
            self.open(command)
        elif isinstance(command, Prefill):
            self.prefill(command)
        elif isinstance(command, DecodeStep) and command.role in self.readers:
            reader = self.readers[command.role]
            reader.rollback(command.length)
            reader.read_now(command.tokens, command.rows)
        elif isinstance(command, Score):
            shared_scores(self.own(command.request))
        elif isinstance(command, ReadPrompt):
            self.read_prompt(command)
        else:
            raise RuntimeError(f"{command}: nothing has been prefilled on this rank")

    def open(self, command: OpenPair | OpenOther) -> None:
        """Load or make this rank's shard of the pair."""
        # The old pair must not stay in memory beside the new one.
        self.session = None
        self.readers.clear()
        self.prefix_caches.clear()
        if isinstance(command, OpenOther):
            self.session = command.opener(self.ranks)
            return
        settings = command.settings.varied(prompt=BUILT_IN_TEMPLATE, prompt_folder=None)
        self.session = open_session(settings, command.draft, calibrated=command.calibrated, ranks=self.ranks)

    def prefill(self, command: Prefill) -> None:
        """Prefill this rank's shard of the target, and of the draft where the ranks share it."""
        # The caches of the last answer must not stay in memory beside this one's.
        self.readers.clear()
        request = replace(
            self.own(command.request),
            draft_prefixes=self.prefix_cache(command.draft_cache),
            target_prefixes=self.prefix_cache(command.target_cache),
        )
        result = MODES[command.mode].prefill(request)
        self.readers[Role.TARGET] = ModelReader(request.target.model, result.state, result.answer_position)
        if request.pair.draft_ranks.size > 1:
            self.readers[Role.DRAFT] = draft_reader(request.pair, result, result.answer_position)

    def read_prompt(self, command: ReadPrompt) -> None:
        """Run this rank's shard of the draft over the prompt."""
        draft = self.opened().pair.loaded_draft
        # The cache of the last answer must not stay in memory beside this one's.
        self.readers.pop(Role.DRAFT, None)
        _, state = prefill(draft.model, command.tokens, command.positions, command.chunk)
        self.readers[Role.DRAFT] = ModelReader(draft.model, state, command.position)

    def own(self, request: PrefillRequest) -> PrefillRequest:
        """Rank 0's request, with what belongs to this process."""
        return replace(request, pair=self.opened().pair, clock=PhaseClock())

    def opened(self) -> Session:
        """The session. Raises RuntimeError where there is none yet."""
        if self.session is None:
            raise RuntimeError("no pair was opened on this rank")
        return self.session

    def prefix_cache(self, shared: SharedCache | None) -> PrefixCache | None:
        """This rank's shard of a cache, made when it is first named."""
        if shared is None:
            return None
        return self.prefix_caches.setdefault(shared.name, PrefixCache(capacity_bytes=shared.capacity_bytes))


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
