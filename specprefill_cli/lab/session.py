"""Everything that the lab asks of a session, in one place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.documents.collection import Collection
from specprefill_cli.models.loading import LoadedModel, LoadedPair
from specprefill_cli.prefill.modes.base import Prefill
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.settings import OFF, Settings

LONGEST_ANSWER = 32


def answer_with(
    session: Session,
    collection: Collection,
    question: str,
    settings: Settings,
    *,
    identifier: str = "",
    opening: str = "",
    control: Prefill | None = None,
) -> AnswerStream:
    """Prefill for a question; iterating over the stream decodes the answer.

    opening: text that the answer is made to begin with
    control: prefills in place of the mode that the settings name
    """
    return session.ask(collection, question, settings, identifier, opening, strategy=control)


def request_for(
    session: Session, collection: Collection, question: str, settings: Settings, clock: PhaseClock | None = None
) -> ScoringRequest:
    """The tokenised prompt of a question, which no model has seen yet."""
    return session.prepare(collection, question, settings, clock or PhaseClock())


def check_context(session: Session, request: ScoringRequest, settings: Settings) -> None:
    """Raise PromptTooLong for a prompt that does not fit the models that the settings' mode runs."""
    session.choose_mode(request, settings)


def with_scorer(session: Session, settings: Settings) -> Settings:
    """The settings with `auto` replaced by the scorer that serves this pair best."""
    return session.with_scorer(settings)


def cold(session: Session, pair: LoadedPair | None = None) -> Session:
    """A copy of the session that reuses no work of earlier questions, perhaps with another pair."""
    return replace(session, pair=pair or session.pair, shared=None)


def draft_session(session: Session) -> Session:
    """A session in which the pair's draft answers alone, as a target."""
    draft, _ = loaded_models(session.pair)
    return Session(LoadedPair(session.pair.pair, target=draft, draft=None), session.template)


def loaded_models(pair: LoadedPair) -> tuple[LoadedModel, LoadedModel]:
    """Draft and target with their weights. Raises TypeError for a pair that was loaded without either."""
    if pair.draft is None or not isinstance(pair.target, LoadedModel):
        raise TypeError("the pair was loaded without its draft or the target's weights")
    return pair.draft, pair.target


def varied(settings: Settings, **values: Any) -> Settings:
    """The settings with some values replaced."""
    return replace(settings, **values)


def short_answers(settings: Settings) -> Settings:
    """Settings for short greedy answers without speculation, whose time is that of prefill."""
    return varied(settings, temperature=0.0, speculate=OFF, max_new_tokens=LONGEST_ANSWER)
