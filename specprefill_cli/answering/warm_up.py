"""Warming up: no first question pays for lazy initialisation, and what `auto` and speculation need is measured.

On a CPU one short prompt does. On a GPU, libraries load their kernels by shape, and memory is taken from the driver when it is
first needed, so that passes of the sizes that will run are run once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specprefill_cli.decoding.adaptive import TIMED_WIDTHS
from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.speculation import adapts, draft_may_propose, draft_reader
from specprefill_cli.distributed.commands import Reserve
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.models.pass_costs import measure_passes
from specprefill_cli.models.reserve import reserve_cache
from specprefill_cli.prefill.auto_mode import automatic_modes
from specprefill_cli.prefill.modes.base import PrefillResult
from specprefill_cli.prefill.pass_size import pass_size
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.settings import AUTO, OFF, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.models.loading import LoadedPair

TEXT = "The gate is open from nine to five. "
SHORT_TEXT = TEXT * 8
LOOK_AHEAD = 8
# Characters of a token, about: how long a prompt will be is estimated from its documents' text.
CHARACTERS = 4
# Tokens behind a whole first pass, so that a pass over a filled cache runs too.
SECOND_PASS = 1_024
# A shorter prompt's kernels are those of the short one.
SHORTEST = 1_024
# Tokens that a context must have beside the documents, for the question, the instruction and look-ahead.
OUTSIDE = 512


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """What runs once before prompts of about one length.

    passes: (tokens before it, its own tokens) of each pass over the whole prompt; a mode's sparse passes follow from them
    widths: tokens of the passes that decode and verify
    room: tokens for which KV is allocated, and given back
    """

    passes: tuple[tuple[int, int], ...]
    widths: tuple[int, ...]
    room: int

    @property
    def prompt(self) -> int:
        """Tokens of the prompt that has these passes."""
        return sum(tokens for _, tokens in self.passes)


def shapes_to_warm(prompt_tokens: int, pass_tokens: int, context: int, speculates: bool) -> Shapes | None:
    """The shapes for prompts of about so many tokens on a GPU; None where the short prompt has them all.

    pass_tokens: tokens of one pass; context: the models' shorter one
    """
    length = min(prompt_tokens, context - OUTSIDE)
    if length < SHORTEST:
        return None
    first = min(length, pass_tokens)
    second = min(length - first, SECOND_PASS)
    passes = ((0, first), (first, second)) if second else ((0, first),)
    widths = (1, *(1 + width for width in TIMED_WIDTHS)) if speculates else (1,)
    return Shapes(passes=passes, widths=widths, room=length)


def warm_up(session: Session, settings: Settings) -> None:
    """Run the pair once in this mode on a short prompt, and measure what needs to be known.

    That is on a GPU the fixed cost of a pass, and where speculation adapts the cost of verifying.
    """
    if settings.mode in session.warmed:
        return
    request = request_of(session, SHORT_TEXT, settings)
    modes = modes_of(settings, request)
    session.warmed |= {settings.mode, *modes}
    for mode in modes:
        result = session.run_mode(mode, request)
    if settings.mode == AUTO:
        measure_passes(session.pair, request.prefill_chunk)
    if adapts(settings):
        target, draft = readers(session, settings, request, result)
        session.speculation.costs.measure(target, draft, int(request.prompt.tokens[-1]))


def warm_up_long(session: Session, settings: Settings, characters: int) -> None:
    """On a GPU, run the shapes of a prompt with so many characters of documents, once for each mode.

    The time counts as start-up.
    """
    if settings.mode in session.warmed_long or not on_gpu(session.pair):
        return
    started = time.perf_counter()
    pair, tokens = session.pair, characters // CHARACTERS
    context = min(model.context for model in (pair.target, pair.draft) if model is not None)
    size = pass_size(settings.prefill_chunk, pair, tokens)
    shapes = shapes_to_warm(tokens, size, context, settings.speculate != OFF)
    if shapes is None:
        return
    with pair.ranks.together(Reserve(shapes.room)):
        reserve_cache(pair, shapes.room)
    request = request_of(session, TEXT * (shapes.prompt * CHARACTERS // len(TEXT)), settings)
    modes = modes_of(settings, request)
    session.warmed_long |= {settings.mode, *modes}
    for mode in modes:
        result = session.run_mode(mode, replace(request, prefill_chunk=size))
    token = int(request.prompt.tokens[-1])
    for reader in filter(None, readers(session, settings, request, result)):
        for width in shapes.widths:
            reader.read([token] * width, width)
    pair.wait()
    session.startup_seconds += time.perf_counter() - started


def modes_of(settings: Settings, request: PrefillRequest) -> tuple[str, ...]:
    """The modes that a prompt may be prefilled in."""
    return automatic_modes(request) if settings.mode == AUTO else (settings.mode,)


def request_of(session: Session, text: str, settings: Settings) -> PrefillRequest:
    """A cold request about some text, for as little look-ahead as will do."""
    document = Collection((one_page_document("warm-up", text, "text/plain"),))
    request = session.with_cache(None).request(document, "When?", settings)
    return replace(request, look_ahead=min(request.look_ahead, LOOK_AHEAD), max_new_tokens=0)


def readers(
    session: Session, settings: Settings, request: PrefillRequest, result: PrefillResult
) -> tuple[ModelReader, ModelReader | None]:
    """Target and, where it may propose, draft, behind a prefilled prompt."""
    pair, position = session.pair, result.answer_position
    draft = draft_reader(pair, result, position) if draft_may_propose(settings, pair) else None
    return ModelReader(pair.loaded_target.model, result.state, position, pair.ranks), draft


def on_gpu(pair: LoadedPair) -> bool:
    """Whether both models run on CUDA devices."""
    return bool(pair.devices) and all(device.type == "cuda" for device in pair.devices)
