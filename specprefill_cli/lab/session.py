"""Sessions of the lab, and settings for fair comparisons."""

from collections.abc import Sequence
from pathlib import Path

from specprefill_cli.answering.session import Session, open_session
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.prefill.auto_mode import choose_mode
from specprefill_cli.prefill.calibration import load_heads
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.settings import OFF, Settings

LONGEST_ANSWER = 32


def check_context(request: PrefillRequest, settings: Settings) -> None:
    """Raise PromptTooLong for a prompt that does not fit the models of the settings' mode."""
    choose_mode(settings.mode, request)


def questions_that_fit(
    session: Session, items: Sequence[Item], settings: Settings
) -> tuple[list[Item], list[tuple[Item, PromptTooLong]]]:
    """Split questions into those whose prompts fit the pair in the settings' mode, and the others with the reason.

    Raises PromptTooLong if no question fits.
    """
    fitting, left_out = [], []
    for item in items:
        try:
            check_context(session.request(item.collection, item.question, settings), settings)
            fitting.append(item)
        except PromptTooLong as error:
            left_out.append((item, error))
    if left_out and not fitting:
        raise left_out[0][1]
    return fitting, left_out


def open_with_heads(settings: Settings, folder: Path) -> Session:
    """Open a session with the scoring heads in a folder, or with the pair's own if the folder has none."""
    session = open_session(settings, draft=True)
    pair = session.pair
    pair.scoring_heads = load_heads(folder, pair.loaded_draft) or pair.scoring_heads
    return session


def short_answers(settings: Settings) -> Settings:
    """Settings for short greedy answers without speculation, so that prefill dominates the time."""
    return settings.varied(temperature=0.0, speculate=OFF, max_new_tokens=LONGEST_ANSWER)
