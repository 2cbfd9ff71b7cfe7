"""What a server is: the settings that decide what it has loaded, and the installation that it runs from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specprefill_cli import __version__
from specprefill_cli.models.pairs import chosen_pair
from specprefill_cli.settings import SETTINGS, Settings

# Environment variables that decide what is loaded.
VARIABLES = ("SPECPREFILL_CALIBRATION", "HF_HOME", "HF_HUB_CACHE", "CUDA_VISIBLE_DEVICES")
# Settings that are compared as the models that they name, or that decide nothing for an answer.
ELSEWHERE = ("pair", "draft", "target", "adapter", "offline", "memory_cache")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Everything that must be the same for a server to answer as a process of its own would.

    models: hub ids, or where draft, target and adapter are on this machine: a name there depends on the working folder
    installation: the package's folder, the environment's, and when the package was last changed
    """

    version: str
    installation: str
    models: list[str]
    settings: dict[str, Any]
    variables: dict[str, str | None]

    def difference(self, other: Mapping[str, Any]) -> str | None:
        """What a running server has that is not this, in words. other: its identity, as JSON."""
        if (other.get("version"), other.get("installation")) != (self.version, self.installation):
            return "a server of another version or installation is running"
        if other["models"] != self.models:
            return f"the running server has the pair {' -> '.join(other['models'])}"
        for name, value in self.settings.items():
            if other["settings"].get(name) != value:
                return f"the running server has {SETTINGS[name].flag} {other['settings'].get(name)}"
        for name, variable in self.variables.items():
            if other["variables"].get(name) != variable:
                return f"the running server has another {name}"
        return None

    def to_json(self) -> dict[str, Any]:
        """The identity as JSON values."""
        return asdict(self)


def identity_of(settings: Settings) -> Identity:
    """What a server with these settings would be. Raises UsageError for a pair that does not exist."""
    pair = chosen_pair(settings)
    names = filter(None, (pair.draft, pair.target, pair.adapter))
    models = [os.path.realpath(name) if os.path.exists(name) else name for name in names]
    loading = [name for name, setting in SETTINGS.items() if not setting.per_question and name not in ELSEWHERE]
    return Identity(
        version=__version__,
        installation=installation(),
        models=models,
        settings={name: getattr(settings, name) for name in loading},
        variables={name: os.environ.get(name) for name in VARIABLES},
    )


def installation() -> str:
    """The package's folder, the environment's, and when the files of the package were last changed."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # A folder's own time does not change when a file in it is rewritten.
    changed = max(path.stat().st_mtime_ns for path in Path(package).rglob("*.py"))
    return f"{package} {sys.prefix} {changed}"
