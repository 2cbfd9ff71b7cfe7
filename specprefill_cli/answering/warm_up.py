"""Warming up: no first question pays for lazy initialisation, and what `auto` and speculation need is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specprefill_cli.decoding.reader import ModelReader
from specprefill_cli.decoding.speculation import adapts, draft_may_propose, draft_reader
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.models.pass_costs import measure_passes
from specprefill_cli.prefill.auto_mode import automatic_modes
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.settings import AUTO, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session

SHORT_TEXT = "The gate is open from nine to five. " * 8
LOOK_AHEAD = 8


def warm_up(session: Session, settings: Settings) -> None:
    """Run the pair once in this mode on a short prompt, and measure what needs to be known.

    That is on a GPU the fixed cost of a pass, and where speculation adapts the cost of verifying.
    """
    if settings.mode in session.warmed:
        return
    request = short_request(session, settings)
    modes = automatic_modes(request) if settings.mode == AUTO else (settings.mode,)
    session.warmed |= {settings.mode, *modes}
    for mode in modes:
        result = session.run_mode(mode, request)
    if settings.mode == AUTO:
        measure_passes(session.pair, request.prefill_chunk)
    if adapts(settings):
        pair, position = session.pair, result.answer_position
        draft = draft_reader(pair, result, position) if draft_may_propose(settings, pair) else None
        target = ModelReader(pair.loaded_target.model, result.state, position, pair.ranks)
        session.speculation.costs.measure(target, draft, int(request.prompt.tokens[-1]))


def short_request(session: Session, settings: Settings) -> PrefillRequest:
    """A cold request about a short text, for as little look-ahead as will do."""
    document = Collection((one_page_document("warm-up", SHORT_TEXT, "text/plain"),))
    request = session.with_cache(None).request(document, "When?", settings)
    return replace(request, look_ahead=min(request.look_ahead, LOOK_AHEAD), max_new_tokens=0)
