"""The registries of modes and scorers: the built-in, and those that installed packages add.

Names are known without importing a mode or a scorer, and so without importing torch. A package adds its own through the
entry-point groups `specprefill.modes` and `specprefill.scorers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from specprefill_cli.errors import SpecprefillError, first_line
from specprefill_cli.settings import AUTO, Settings, check_choice, flag

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from specprefill_cli.prefill.mode import Mode
    from specprefill_cli.prefill.scorers.base import Scorer

Item = TypeVar("Item")


class Registry(Mapping[str, Item], Generic[Item]):
    """Modes or scorers by name, each loaded and created when it is first looked up.

    A plugin cannot take a built-in name.
    """

    def __init__(self, noun: str, group: str, builtin: Mapping[str, str]) -> None:
        self.noun = noun
        self.group = group
        self.builtin = builtin
        self.loaded: dict[str, Item] = {}

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """Entry points of other packages under names that are not built-in. Finding them takes a tenth of a start."""
        from importlib.metadata import entry_points

        entries = sorted(entry_points(group=self.group), key=lambda entry: entry.name)
        return {entry.name: entry for entry in entries if entry.name not in self.builtin}

    def __getitem__(self, name: str) -> Item:
        """The mode or scorer. Raises KeyError for an unknown name, SpecprefillError for a plugin that cannot be loaded."""
        if name in self.builtin and name not in self.loaded:
            self.loaded[name] = resolve_name(self.builtin[name])()
        elif name not in self.loaded:
            entry = self.plugins[name]
            try:
                self.loaded[name] = entry.load()()
            except Exception as error:
                raise SpecprefillError(
                    f"{self.noun} '{name}' of the plugin {entry.value} cannot be loaded ({first_line(error)}); "
                    "upgrade or uninstall the package"
                ) from error
        return self.loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.builtin, *self.plugins))

    def __len__(self) -> int:
        return len(self.builtin) + len(self.plugins)

    def __contains__(self, name: object) -> bool:
        return name in self.builtin or name in self.plugins

    def usable(self) -> Iterator[tuple[str, Item]]:
        """Names and items without the plugins that cannot be loaded."""
        for name in self:
            with suppress(SpecprefillError):
                yield name, self[name]


MODES: Registry[Mode] = Registry(
    "mode",
    "specprefill.modes",
    {
        "full": "specprefill_cli.prefill.modes:FullMode",
        "select": "specprefill_cli.prefill.modes:SelectMode",
        "draft-kv": "specprefill_cli.draft_kv.modes:DraftKvMode",
        "hybrid": "specprefill_cli.draft_kv.modes:HybridMode",
    },
)
SCORERS: Registry[Scorer] = Registry(
    "scorer",
    "specprefill.scorers",
    {
        "question": "specprefill_cli.prefill.scorers.attention:QuestionScorer",
        "heads": "specprefill_cli.prefill.scorers.heads:HeadsScorer",
        "paper": "specprefill_cli.prefill.scorers.attention:PaperScorer",
        "blend": "specprefill_cli.prefill.scorers.blend:BlendScorer",
        "embedding": "specprefill_cli.prefill.scorers.embedding:EmbeddingScorer",
        "lexical": "specprefill_cli.prefill.scorers.lexical:LexicalScorer",
        "random": "specprefill_cli.prefill.scorers.lexical:RandomScorer",
    },
)
# The registries, by the setting that takes their names.
REGISTRIES: Mapping[str, Registry[Any]] = {"mode": MODES, "scorer": SCORERS}


def check_name(setting: str, value: str, label: str) -> None:
    """Raises UsageError for a mode or scorer that is not registered. The message begins with `label`."""
    registry = REGISTRIES.get(setting)
    if registry is not None and value not in (AUTO, *registry.builtin):
        check_choice(value, (AUTO, *registry), label)


def check_names(settings: Settings) -> None:
    """Raises UsageError for a mode or scorer that is not registered; called before anything is loaded."""
    for name in REGISTRIES:
        check_name(name, getattr(settings, name), flag(name))


def runs_draft(mode: str, scorer: str) -> bool:
    """Whether the draft may run during prefill; either name may be `auto`."""
    may_score = mode == AUTO or MODES[mode].uses_draft
    return may_score and (scorer == AUTO or SCORERS[scorer].uses_draft)
