"""Confirms a provisional answer: full prefill runs after it, and a single pass verifies all of its tokens.

If the pass rejects a token, full prefill would have answered differently from there on: decoding restarts at that token.
"""

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.decoding.rounds import DecodeLog
from specprefill_cli.decoding.runner import prefill_shard
from specprefill_cli.decoding.sampling import Detokenizer, Sampler
from specprefill_cli.errors import first_line
from specprefill_cli.models.running.cache import new_state
from specprefill_cli.models.running.passes import ForwardInput
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PhaseClock
from specprefill_cli.record import BASELINE, NOT_FOUND, UNCONFIRMED


@dataclass(kw_only=True)
class Confirmation:
    """What is known about a provisional answer.

    provisional: its text, None before its end; confirmed: whether full prefill gives the same, None while unknown
    seconds: from its end until then; log_probabilities: of the final answer's tokens, after full prefill
    """

    provisional: str | None = None
    confirmed: bool | None = None
    seconds: float | None = None
    log_probabilities: list[float] = field(default_factory=list)


def confirm(stream: Any) -> Generator[ForwardInput | str | Confirmation, Tensor, None]:
    """Confirm or correct an ended answer: yield what is known, then passes. Ctrl-C or a lack of memory leaves it.

    stream: the answer's `AnswerStream`
    """
    confirmation: Confirmation = stream.confirmation
    confirmation.provisional = stream.text
    if stream.resolved.mode == BASELINE:
        confirmation.confirmed, confirmation.seconds = True, 0.0
        confirmation.log_probabilities = stream.log_probabilities
        return
    began = time.perf_counter()
    yield confirmation
    provisional = tuple(stream.tokens)
    # Free the KV cache of the answer.
    stream.prefilled = replace(stream.prefilled, state=new_state())
    if stream.speculator is not None:
        stream.speculator.proposers = ()
    # Use a new clock: the question's clock already holds its TTFT.
    request = replace(stream.request, clock=PhaseClock())
    tokens: list[int] = []

    def collect(token: int) -> Iterator[str]:
        tokens.append(token)
        return iter(())

    try:
        with request.pair.ranks.run_on_all_ranks(partial(prefill_shard, BASELINE, request.portable())):
            prefilled = MODES[BASELINE].prefill(request)
        # Decoded only from where it differs from the provisional answer.
        exact = replace(
            stream,
            resolved=replace(stream.resolved, request=request, mode=BASELINE),
            prefilled=prefilled,
            sampler=Sampler(),
            first_token=int(prefilled.logits.argmax()),
            log=DecodeLog(),
            known_tokens=provisional,
            confirmation=Confirmation(),
            # Fits have seen short prompts.
            answerable_model=None,
            states=None,
        )
        yield from exact.decode(collect)
    except KeyboardInterrupt:
        return stream.interrupt(UNCONFIRMED)
    except torch.OutOfMemoryError as error:
        return stream.notes.append(f"out of memory ({first_line(error)}): {UNCONFIRMED}")
    confirmation.log_probabilities = exact.log_probabilities
    confirmation.confirmed = tuple(tokens) == provisional and not exact.is_denied
    detokenizer = Detokenizer(request.pair.target.tokenizer)
    stream.tokens, pieces = tokens, [*map(detokenizer.push, tokens), detokenizer.finish()]
    stream.pieces = [NOT_FOUND] if exact.is_denied else pieces
    confirmation.seconds = time.perf_counter() - began
