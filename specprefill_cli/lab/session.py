"""Sessions of the lab: with controls, with other models, and with settings for fair comparisons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.documents.document import Collection
from specprefill_cli.prefill.auto_mode import choose_mode
from specprefill_cli.prefill.calibration import CalibratedPair, load_heads
from specprefill_cli.prefill.request import PrefillRequest, PrefillResult
from specprefill_cli.settings import OFF, Settings

LONGEST_ANSWER = 32
# A control prefills in place of a mode.
Control = Callable[[PrefillRequest], PrefillResult]


def answer_with(
    session: Session, collection: Collection, question: str, settings: Settings, control: Control | None = None
) -> AnswerStream:
    """Prefill for a question, with the control if given; iterating over the stream decodes the answer."""
    if control is None:
        return session.ask(collection, question, settings)
    session.warm_up(settings)
    prepared = session.prepare(collection, question, settings)
    return session.answer(prepared, control(prepared.request))


def check_context(request: PrefillRequest, settings: Settings) -> None:
    """Raise PromptTooLong for a prompt that does not fit the models of the settings' mode."""
    choose_mode(settings.mode, request)


def open_with_heads(settings: Settings, folder: Path) -> Session:
    """Open a session with the scoring heads in a folder, or with the pair's own if the folder has none."""
    session = open_session(settings, draft=True)
    pair = session.pair
    pair.scoring_heads = load_heads(folder, pair.loaded_draft) or pair.scoring_heads
    return session


def draft_session(session: Session) -> Session:
    """A session in which the pair's draft answers alone, in the target's place."""
    pair = CalibratedPair(session.pair.pair, target=session.pair.loaded_draft, draft=None)
    return Session(pair=pair, template=session.template)


def short_answers(settings: Settings) -> Settings:
    """Settings for short greedy answers without speculation, so that prefill dominates the time."""
    return settings.varied(temperature=0.0, speculate=OFF, max_new_tokens=LONGEST_ANSWER)
