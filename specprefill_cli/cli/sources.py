"""Merges settings from their sources: defaults < config file < environment < flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specprefill_cli.declarations import ENVIRONMENT_PREFIX, flag
from specprefill_cli.errors import UsageError
from specprefill_cli.files import read_toml
from specprefill_cli.prefill.registry import check_name
from specprefill_cli.settings import SETTINGS, Settings, config_path, parse_setting


@dataclass(frozen=True)
class Sourced:
    """A value and its source: "default", "file" or "environment"; place: the file's path, or the variable."""

    value: Any
    source: str
    place: str | None = None


def merge_settings(flags: Mapping[str, Any]) -> Settings:
    """Merge config file, environment and flags (None: not given). Raises UsageError, naming the place of a fault."""
    sourced = sourced_values()
    if flags.get("pair") is not None:
        sourced = without_models(sourced, above="flag")
    parsed = {name: parse_setting(name, value, flag(name)) for name, value in flags.items() if value is not None}
    settings = Settings(**{name: value.value for name, value in sourced.items()} | parsed)
    for name in SETTINGS:
        check_name(name, getattr(settings, name), flag(name) if name in parsed else f"{sourced[name].place}: {name}")
    return settings


def without_models(sourced: Mapping[str, Sourced], above: str) -> dict[str, Sourced]:
    """Drop the draft and target of all sources except `above`: a pair named in a source replaces those below it."""
    dropped = {role: Sourced(None, "default") for role in ("draft", "target") if sourced[role].source != above}
    return {**sourced, **dropped}


def sourced_values() -> dict[str, Sourced]:
    """Every setting by name, merged from defaults, config file and environment. Raises UsageError as `merge_settings`."""
    sourced = {name: Sourced(setting.default, "default") for name, setting in SETTINGS.items()}
    path = config_path()
    if path.exists():
        place, values = str(path), read_toml(path, str(path))
        parsed = {name: parse_setting(name, value, place) for name, value in values.items()}
        sourced |= {name: Sourced(value, "file", place) for name, value in parsed.items()}
    elif os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG"):
        raise UsageError(f"{ENVIRONMENT_PREFIX}CONFIG: {path} does not exist; fix or unset the variable")
    for name, setting in SETTINGS.items():
        if setting.variable in os.environ:
            value = setting.parse(os.environ[setting.variable], setting.variable)
            sourced[name] = Sourced(value, "environment", setting.variable)
    if sourced["pair"].source == "environment":
        sourced = without_models(sourced, above="environment")
    return sourced
