"""Names of modes, scorers and proposers, which are known without importing torch."""

from __future__ import annotations

from specprefill_cli.decoding.proposers import PROPOSERS
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.settings import AUTO, Settings, check_choice


def check_names(settings: Settings) -> None:
    """Raises UsageError for a mode, scorer or proposer that is not registered; called before anything is loaded."""
    for option, name, known in (
        ("--mode", settings.mode, MODES),
        ("--scorer", settings.scorer, SCORERS),
        ("--proposer", settings.proposer, PROPOSERS),
    ):
        check_choice(name, (AUTO, *known), option)
