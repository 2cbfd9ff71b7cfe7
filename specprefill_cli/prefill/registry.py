"""The registries of modes and scorers. Names are known without importing a mode or a scorer, and so without importing torch."""

from collections import UserDict
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from specprefill_cli.declarations import check_choice, flag
from specprefill_cli.settings import AUTO, Settings

if TYPE_CHECKING:
    from specprefill_cli.prefill.request import Mode
    from specprefill_cli.prefill.scorers.base import Scorer


class Registry(UserDict[str, Any]):
    """Modes or scorers by name, given as `module:class`, each loaded when it is first looked up."""

    def __getitem__(self, name: str) -> Any:
        if isinstance(self.data[name], str):
            self.data[name] = resolve_name(self.data[name])()
        return self.data[name]


MODES: Mapping[str, "Mode"] = Registry(
    {
        "full": "specprefill_cli.prefill.modes:FullMode",
        "select": "specprefill_cli.prefill.modes:SelectMode",
        "draft-kv": "specprefill_cli.draft_kv.modes:DraftKvMode",
        "hybrid": "specprefill_cli.draft_kv.modes:HybridMode",
    }
)
SCORERS: Mapping[str, "Scorer"] = Registry(
    {
        "question": "specprefill_cli.prefill.scorers.attention:QuestionScorer",
        "heads": "specprefill_cli.prefill.scorers.heads:HeadsScorer",
        "paper": "specprefill_cli.prefill.scorers.attention:PaperScorer",
        "blend": "specprefill_cli.prefill.scorers.meaning:BlendScorer",
        "embedding": "specprefill_cli.prefill.scorers.meaning:EmbeddingScorer",
        "lexical": "specprefill_cli.prefill.scorers.base:LexicalScorer",
        "random": "specprefill_cli.prefill.scorers.base:RandomScorer",
    }
)
# The registries, by the setting that takes their names.
REGISTRIES: Mapping[str, Mapping[str, Any]] = {"mode": MODES, "scorer": SCORERS}


def check_name(setting: str, value: str, label: str) -> None:
    """Raises UsageError for a mode or scorer that is not registered. The message begins with `label`."""
    if setting in REGISTRIES:
        check_choice(value, (AUTO, *REGISTRIES[setting]), label)


def check_names(settings: Settings, place: str = "") -> None:
    """Raises UsageError, with a place if given, for a mode or scorer that is not registered, before anything is loaded."""
    for name in REGISTRIES:
        check_name(name, getattr(settings, name), f"{place}: {name}" if place else flag(name))


def runs_draft(mode: str, scorer: str) -> bool:
    """Whether the draft may run during prefill; either name may be `auto`."""
    return (mode == AUTO or MODES[mode].uses_draft) and (scorer == AUTO or SCORERS[scorer].uses_draft)
