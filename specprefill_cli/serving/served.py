"""Whether a command can use the server that has taken it, and the session that it then has."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from specprefill_cli.models.pairs import find_pair
from specprefill_cli.settings import SETTINGS, Settings

# Settings, and environment variables, that decide what is loaded and where it runs.
LOADING = ("devices", "tensor_parallel", "dtype", "quantization", "rope_scaling")
VARIABLES = ("SPECPREFILL_CALIBRATION", "HF_HOME", "HF_HUB_CACHE", "CUDA_VISIBLE_DEVICES")


def loading_variables() -> dict[str, str | None]:
    """The environment variables that decide what is loaded."""
    return {name: os.environ.get(name) for name in VARIABLES}


def model_places(settings: Settings) -> tuple[str, str]:
    """Hub ids of draft and target, or where they are on this machine: a name there depends on the working folder.

    Raises UsageError for a pair that does not exist.
    """
    pair = find_pair(settings.pair, settings.draft, settings.target)
    draft, target = (os.path.realpath(name) if os.path.exists(name) else name for name in (pair.draft, pair.target))
    return draft, target


@dataclass(frozen=True, kw_only=True)
class Served:
    """The server of a command.

    engine: the socket to it; settings, variables: what it was started with; models: `model_places` in its own folder
    """

    engine: socket.socket
    settings: Settings
    models: tuple[str, str]
    variables: Mapping[str, str | None]

    def difference(self, settings: Settings) -> str | None:
        """Why a command with these settings needs models of its own, or None.

        Raises UsageError for a pair that does not exist.
        """
        if model_places(settings) != self.models:
            return f"the running server has the pair {' -> '.join(self.models)}"
        for name in LOADING:
            if getattr(settings, name) != getattr(self.settings, name):
                return f"the running server has {SETTINGS[name].flag} {getattr(self.settings, name)}"
        for name, value in self.variables.items():
            if os.environ.get(name) != value:
                return f"the running server has another {name}"
        return None
