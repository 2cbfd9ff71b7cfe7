"""Options that were given and do nothing beside the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specprefill_cli.prefill.auto_mode import needs_draft
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prefill.scorers.paper import PaperScorer
from specprefill_cli.settings import AUTO, OFF, Settings, flag

DRAFT_KV = ("draft-kv", "hybrid")


def reads_with_window(settings: Settings) -> bool:
    """Whether the draft reads with the window that is asked for: draft KV takes that of its maps."""
    return settings.mode in (AUTO, "select") and needs_draft(settings) and settings.scorer != PaperScorer.name


def uses_keep(settings: Settings) -> bool:
    return settings.mode == AUTO or MODES[settings.mode].uses_keep


def looks_ahead(settings: Settings) -> bool:
    return settings.mode != "full" and (settings.scorer == AUTO or SCORERS[settings.scorer].looks_ahead)


# By reason: the options, and where they have an effect.
NEEDS: Mapping[str, tuple[Sequence[str], Callable[[Settings], bool]]] = {
    "--mode select or hybrid": (("keep",), uses_keep),
    "a mode other than full": (("scorer", "chunk_size"), lambda settings: settings.mode != "full"),
    "--mode draft-kv": (("recompute",), lambda settings: settings.mode == "draft-kv"),
    "--mode draft-kv or hybrid": (("accept_risk", "exact_layers"), lambda settings: settings.mode in DRAFT_KV),
    "a scorer that looks ahead (question, paper)": (("look_ahead",), looks_ahead),
    "--mode select and a scorer that runs the draft, but paper": (("draft_window",), reads_with_window),
    "--temperature above 0": (("top_p", "top_k"), lambda settings: settings.temperature > 0),
    "--speculate": (("proposer",), lambda settings: settings.speculate != OFF),
}


def without_effect(flags: Mapping[str, Any], wanted: Sequence[Settings]) -> list[str]:
    """What was given on the command line and has no effect in any of the settings it runs with, a line for each reason."""
    return [
        f"{', '.join(given)}: no effect without {reason}"
        for reason, (names, matters) in NEEDS.items()
        if not any(matters(settings) for settings in wanted)
        and (given := [flag(name) for name in names if flags.get(name) is not None])
    ]
