"""Everything that the lab asks of a session, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from specprefill_cli.answering.resolve import resolve_scorer
from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.documents.collection import Collection
from specprefill_cli.models.loading import LoadedModel, LoadedPair
from specprefill_cli.prefill.auto_mode import choose_mode
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.modes.base import PrefillResult
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.settings import OFF, Settings

LONGEST_ANSWER = 32
# Prefills in place of a mode.
Control = Callable[[PrefillRequest], PrefillResult]


def answer_with(
    session: Session,
    collection: Collection,
    question: str,
    settings: Settings,
    *,
    identifier: str = "",
    opening: str = "",
    control: Control | None = None,
) -> AnswerStream:
    """Prefill for a question; iterating over the stream decodes the answer.

    opening: text that the answer is made to begin with
    control: prefills in place of the mode that the settings name
    """
    if control is None:
        return session.ask(collection, question, settings, identifier, opening)
    session.warm_up(settings)
    prepared = session.prepare(collection, question, settings, identifier, opening)
    return session.answer(prepared, control(prepared.request))


def request_for(session: Session, collection: Collection, question: str, settings: Settings) -> PrefillRequest:
    """The tokenised prompt of a question, which no model has seen yet."""
    return session.request(collection, question, settings)


def check_context(request: PrefillRequest, settings: Settings) -> None:
    """Raise PromptTooLong for a prompt that does not fit the models that the settings' mode runs."""
    choose_mode(settings.mode, request, settings.max_new_tokens)


def with_scorer(session: Session, settings: Settings) -> Settings:
    """The settings with `auto` replaced by the scorer that serves this pair best."""
    return settings.varied(scorer=resolve_scorer(settings.scorer, session.pair))


def cold(session: Session, pair: CalibratedPair | None = None, cache: DocumentCache | None = None) -> Session:
    """A copy of the session that reuses no work of earlier questions but the given one, perhaps with another pair."""
    return replace(session, pair=pair or session.pair, cache=cache)


def draft_session(session: Session) -> Session:
    """A session in which the pair's draft answers alone, as a target."""
    draft, _ = loaded_models(session.pair)
    pair = CalibratedPair(session.pair.pair, target=draft, draft=None)
    return Session(pair=pair, template=session.template)


def loaded_models(pair: LoadedPair) -> tuple[LoadedModel, LoadedModel]:
    """Draft and target with their weights. Raises SpecprefillError for a pair that was loaded without either."""
    return pair.loaded_draft, pair.loaded_target


def short_answers(settings: Settings) -> Settings:
    """Settings for short greedy answers without speculation, whose time is that of prefill."""
    return settings.varied(temperature=0.0, speculate=OFF, max_new_tokens=LONGEST_ANSWER)
