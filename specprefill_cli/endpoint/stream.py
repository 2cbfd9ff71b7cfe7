"""The answer of an endpoint while it comes: text piece by piece, and at the end everything that is known about it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from specprefill_cli.answering.stream import TextStream
from specprefill_cli.endpoint.choosing import SELECT, Choice
from specprefill_cli.endpoint.client import Reply
from specprefill_cli.models.tokenizers import count_tokens
from specprefill_cli.prefill.phases import UPSTREAM
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import Record, Verdict
from specprefill_cli.settings import Settings

DECODES_ALONE = Verdict("off", "the endpoint decodes by itself")
# Share of our count below which the server's own count of the prompt suggests that it has cut it.
DOUBTFUL = 0.4


@dataclass(kw_only=True)
class EndpointStream(TextStream):
    """The answer of a server.

    reply, rest: the message and its pieces after the first; upstream_seconds: from sending to the first piece
    """

    settings: Settings
    prefilled: Choice
    reply: Reply
    rest: Iterator[str]
    first: str
    upstream_seconds: float
    decode_seconds: float = 0.0

    @property
    def request(self) -> PrefillRequest:
        return self.prefilled.request

    def __iter__(self) -> Generator[str, None, None]:
        """Pieces of text as they arrive. Raises EndpointError where the answer is cut off."""
        began = time.perf_counter()
        try:
            yield from self.emit(self.first)
            for piece in self.rest:
                yield from self.emit(piece)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            # Also where the caller stops iterating.
            self.decode_seconds = time.perf_counter() - began
            self.reply.close()
            if self.on_end is not None:
                self.on_end()

    def warnings(self, length_stop: bool) -> list[str]:
        """All warnings: about documents, what was chosen, how tokens are counted, and the answer's end."""
        draft = self.request.draft
        counted = self.reply.prompt_tokens
        there = f"; the endpoint counts {counted:,} in the sent text" if counted else ""
        warnings = [*self.collection.warnings, *draft.warnings, *self.prefilled.warnings]
        warnings.append(
            f"tokens are counted with {draft.name}'s tokenizer{there}; kept text is sent as prose, without its original "
            "positions, draft KV or speculation"
        )
        if counted and counted < DOUBTFUL * self.prefilled.plan.kept_tokens:
            warnings.append(
                "the endpoint counts too few tokens and may have cut the prompt; give its model a longer context"
            )
        return warnings + self.end_warnings("its longest" if length_stop else None)

    def result(self) -> Record:
        request, choice = self.request, self.prefilled
        tokens = self.reply.completion_tokens or count_tokens(self.text)
        length_stop = self.reply.finish_reason == "length"
        selects = choice.mode == SELECT
        draft_ran = selects and SCORERS[request.scorer].uses_draft
        return self.record(
            self.settings,
            length_stop,
            self.citations,
            mode=choice.mode,
            reason=choice.reason,
            draft=request.draft.name if draft_ran else None,
            ttft_seconds=request.clock.ttft + self.upstream_seconds,
            phases=request.clock.phases() | {UPSTREAM: self.upstream_seconds},
            generated_tokens=tokens,
            tokens_per_second=(tokens - 1) / self.decode_seconds if tokens > 1 and self.decode_seconds else None,
            acceptance_rate=None,
            warnings=self.warnings(length_stop),
            speculation=DECODES_ALONE,
            scorer=request.scorer if selects else None,
            draft_window=request.draft_window if draft_ran else None,
        )
