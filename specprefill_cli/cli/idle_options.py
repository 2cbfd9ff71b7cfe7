"""Options that were given on the command line and have no effect beside the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from specprefill_cli.prefill.auto_mode import needs_draft
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.prefill.scorers.paper import PaperScorer
from specprefill_cli.settings import AUTO, OFF, Settings, flag, in_words

# Both map the draft's KV, which no capability of a mode says.
DRAFT_KV_MODES = ("draft-kv", "hybrid")


class Need(NamedTuple):
    """Options, in which settings they have an effect, and what they need in words."""

    options: Sequence[str]
    met: Callable[[Settings], bool]
    words: Callable[[], str]


def uses_keep(settings: Settings) -> bool:
    """Whether the mode can have a keep ratio."""
    return settings.mode == AUTO or MODES[settings.mode].uses_keep


def scores_document(settings: Settings) -> bool:
    """Whether the mode can need the document's importance."""
    return settings.mode == AUTO or MODES[settings.mode].uses_draft


def looks_ahead(settings: Settings) -> bool:
    """Whether the draft may decode before scoring."""
    return scores_document(settings) and (settings.scorer == AUTO or SCORERS[settings.scorer].looks_ahead)


def reads_with_window(settings: Settings) -> bool:
    """Whether the draft reads with the window of the settings; draft KV has that of its maps."""
    return settings.mode not in DRAFT_KV_MODES and needs_draft(settings) and settings.scorer != PaperScorer.name


def modes_with(capability: str) -> str:
    """The built-in modes with a capability, as an option."""
    return f"--mode {in_words([name for name in MODES.builtin if getattr(MODES[name], capability)])}"


def scorers_with(capability: str) -> str:
    """The built-in scorers with a capability."""
    return ", ".join(name for name in SCORERS.builtin if getattr(SCORERS[name], capability))


NEEDS = (
    Need(("keep",), uses_keep, lambda: modes_with("uses_keep")),
    Need(("scorer", "chunk_size"), scores_document, lambda: modes_with("uses_draft")),
    Need(("recompute",), lambda settings: settings.mode == "draft-kv", lambda: "--mode draft-kv"),
    Need(
        ("accept_risk", "exact_layers"),
        lambda settings: settings.mode in DRAFT_KV_MODES,
        lambda: f"--mode {in_words(list(DRAFT_KV_MODES))}",
    ),
    Need(("look_ahead",), looks_ahead, lambda: f"a scorer that looks ahead ({scorers_with('looks_ahead')})"),
    Need(
        ("draft_window",), reads_with_window, lambda: "--mode select and a scorer that runs the draft, other than paper"
    ),
    Need(("top_p", "top_k"), lambda settings: settings.temperature > 0, lambda: "--temperature above 0"),
    Need(("proposer",), lambda settings: settings.speculate != OFF, lambda: "--speculate"),
)


def idle_options(given: Collection[str], variants: Sequence[Settings]) -> list[str]:
    """A warning for each reason why options given by name have no effect in any of the settings they run with."""
    warnings = []
    for need in NEEDS:
        idle = [flag(name) for name in need.options if name in given]
        if idle and not any(map(need.met, variants)):
            warnings.append(f"{', '.join(idle)}: no effect without {need.words()}")
    return warnings
