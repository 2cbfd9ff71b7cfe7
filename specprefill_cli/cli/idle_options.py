"""Options that were given on the command line and have no effect beside the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from specprefill_cli.prefill.auto_mode import runs_draft
from specprefill_cli.prefill.registry import MODES, SCORERS
from specprefill_cli.settings import AUTO, OFF, Settings, flag


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
    """Whether the draft reads with the window of the settings."""
    windowed = settings.scorer == AUTO or SCORERS[settings.scorer].uses_window
    windowed = windowed and (settings.mode == AUTO or MODES[settings.mode].uses_window)
    return windowed and runs_draft(settings.mode, settings.scorer)


def places_tokens(settings: Settings) -> bool:
    """Whether the mode takes prompts beyond the target's context, and so decides where their tokens stand."""
    return settings.mode == AUTO or MODES[settings.mode].any_length


def obeys(name: str, settings: Settings) -> bool:
    """Whether the mode obeys a setting that only some modes have."""
    return settings.mode != AUTO and name in MODES[settings.mode].own_settings


# By what they need: the options, and the settings in which they have an effect.
NEEDS: Mapping[str, tuple[Sequence[str], Callable[[Settings], bool]]] = {
    "--mode select or hybrid": (("keep",), uses_keep),
    "--mode select": (("positions",), places_tokens),
    "--mode draft-kv": (("recompute", "recompute_by"), partial(obeys, "recompute")),
    "--mode draft-kv or hybrid": (("accept_risk", "exact_layers"), partial(obeys, "accept_risk")),
    "a mode other than full": (("scorer", "chunk_size", "confirm"), scores_document),
    "a scorer that looks ahead (question, paper)": (("look_ahead",), looks_ahead),
    "--mode select and a scorer that runs the draft, other than paper": (("draft_window",), reads_with_window),
    "--temperature above 0": (("top_p", "top_k"), lambda settings: settings.temperature > 0),
    "--speculate": (("proposer",), lambda settings: settings.speculate != OFF),
}


def idle_options(
    given: Collection[str], variants: Sequence[Settings], written: Callable[[str], str] = flag
) -> list[str]:
    """A warning for each reason why options given by name have no effect in any of the settings they run with.

    written: what the user writes for an option, from its name
    """
    return [
        f"{', '.join(idle)}: no effect without {need}"
        for need, (options, has_effect) in NEEDS.items()
        if (idle := [written(name) for name in options if name in given]) and not any(map(has_effect, variants))
    ]
