"""All settings in one frozen dataclass, merged once: defaults < config file < environment < flags."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from specprefill_cli.errors import UsageError

ENVIRONMENT_PREFIX = "SPECPREFILL_"
AUTO = "auto"
OFF = "off"
# Generators of random numbers take no more.
LARGEST_SEED = 2**63 - 1
# Settings that are a number or one of these words.
WORDS = {"speculate": (AUTO, OFF), "draft_window": (AUTO, OFF), "prefill_chunk": (AUTO,)}


@dataclass(frozen=True)
class Settings:
    """How to read, prefill and answer.

    tensor_parallel: processes that share the target, each with a GPU of its own
    quantization: how the target's weights are packed while they are loaded
    keep: ratio of prompt tokens that the target computes, or None for `auto`
    look_ahead: tokens that the draft decodes before scoring; chunk_size: document tokens a chunk
    prefill_chunk: tokens a forward pass reads at once, or `auto`: chosen from the memory that is free
    draft_window: how far back the draft sees while it reads the document: `auto`, `off`, or tokens
    recompute: most of the prompt that draft KV may recompute; accept_risk: risk that may remain, None for any
    exact_layers: first target layers that draft KV computes exactly for all tokens
    speculate: `off`, `auto`, or how many tokens are proposed at once while decoding
    """

    pair: str = "tiny"
    draft: str | None = None
    target: str | None = None
    devices: str = AUTO
    tensor_parallel: int = 1
    dtype: str = AUTO
    quantization: str = "none"
    offline: bool = False
    mode: str = AUTO
    scorer: str = AUTO
    keep: float | None = None
    look_ahead: int = 8
    chunk_size: int = 32
    prefill_chunk: str | int = AUTO
    draft_window: str | int = AUTO
    recompute: float = 0.15
    accept_risk: float | None = None
    exact_layers: int = 0
    prompt: str | None = None
    prompt_folder: str | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    speculate: str | int = AUTO
    proposer: str = AUTO

    def varied(self, **values: Any) -> Settings:
        """A copy with other values."""
        return replace(self, **values)

    def __post_init__(self) -> None:
        """Raises UsageError for the first value out of its range."""
        at_least = {
            "tensor_parallel": 1,
            "look_ahead": 0,
            "chunk_size": 1,
            "exact_layers": 0,
            "max_new_tokens": 1,
            "top_k": 0,
            "seed": 0,
        }
        for name, smallest in at_least.items():
            if getattr(self, name) < smallest:
                raise UsageError(f"{flag(name)} {getattr(self, name)}: must be at least {smallest}")
        if self.seed > LARGEST_SEED:
            raise UsageError(f"--seed {self.seed}: must be at most {LARGEST_SEED}")
        if isinstance(self.prefill_chunk, int) and self.prefill_chunk < 16:
            raise UsageError(f"--prefill-chunk {self.prefill_chunk}: must be at least 16, or 'auto'")
        if not 0 <= self.recompute <= 1:
            raise UsageError(f"--recompute {self.recompute:g}: must be between 0 and 1")
        if self.accept_risk is not None and not 0 <= self.accept_risk < math.inf:
            raise UsageError(f"--accept-risk {self.accept_risk:g}: must be 0 or more, and finite")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise UsageError(f"--keep {self.keep:g}: must be above 0 and at most 1, or 'auto'")
        if not 0 <= self.temperature <= 10:
            raise UsageError(f"--temperature {self.temperature:g}: must be between 0 and 10")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p:g}: must be above 0 and at most 1")
        for name in ("speculate", "draft_window"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise UsageError(f"{flag(name)} {value}: must be at least 1, or 'off' or 'auto'")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def config_path() -> Path:
    """The config file: $SPECPREFILL_CONFIG, or config.toml in the platform's folder for configuration."""
    import platformdirs

    chosen = os.environ.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    return Path(chosen) if chosen else Path(platformdirs.user_config_dir("specprefill")) / "config.toml"


def prompt_folder(settings: Settings) -> Path:
    """The user's prompt templates: the folder that is set, or `prompts` beside the config file."""
    return Path(settings.prompt_folder).expanduser() if settings.prompt_folder else config_path().parent / "prompts"


def merge_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ, file: Path | None = None
) -> Settings:
    """Settings from the config file, the environment and flags; a flag that is None was not given.

    Raises UsageError for an unknown key or a value that cannot be read, naming where it stands.
    """
    found = sourced_values(environment, file)
    if flags.get("pair") is not None:
        name_pair(found, "flag")
    values = {name: sourced.value for name, sourced in found.items()}
    values |= {name: convert(name, value, flag(name)) for name, value in flags.items() if value is not None}
    return replace(Settings(), **values)


def name_pair(found: dict[str, Sourced], source: str) -> None:
    """A pair named in one source replaces both models of the sources below it."""
    for role in ("draft", "target"):
        if found[role].source != source:
            found[role] = Sourced(None, "default")


@dataclass(frozen=True)
class Sourced:
    """A value and where it comes from: "default", "file" or "environment"; place: the file's path or the variable."""

    value: Any
    source: str
    place: str | None = None


def sourced_values(environment: Mapping[str, str] = os.environ, file: Path | None = None) -> dict[str, Sourced]:
    """Every setting by name, as defaults, the config file and the environment leave it.

    Raises UsageError for an unknown key or a value that cannot be read, naming where it stands.
    """
    found = {field.name: Sourced(field.default, "default") for field in fields(Settings)}
    path = file or config_path()
    if path.is_file():
        found |= {name: Sourced(value, "file", str(path)) for name, value in read_file(path).items()}
    elif file is None and environment.get(ENVIRONMENT_PREFIX + "CONFIG") and not path.exists():
        raise UsageError(f"{ENVIRONMENT_PREFIX}CONFIG: {path} does not exist; fix or unset the variable")
    for name in list(found):
        variable = variable_of(name)
        if variable in environment:
            found[name] = Sourced(convert(name, environment[variable], variable), "environment", variable)
    if found["pair"].source == "environment":
        name_pair(found, "environment")
    return found


def variable_of(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def read_file(path: Path) -> dict[str, Any]:
    try:
        return parse_settings(path.read_text(encoding="utf-8-sig"), path)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not valid TOML ({error}); fix or remove the file") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}); check its permissions") from error


def parse_settings(text: str, path: Path) -> dict[str, Any]:
    """The settings in a config file's text. Raises UsageError that names the file."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not valid TOML ({error}); fix or remove the file") from error
    return {name: convert(name, value, str(path)) for name, value in values.items()}


def convert(name: str, value: Any, place: str) -> Any:
    """A value as the setting's type and in its range; `place` says where it stands."""
    converted = convert_type(name, value, place)
    try:
        replace(Settings(), **{name: converted})
    except UsageError as error:
        if place == flag(name):
            raise
        raise UsageError(f"{place}: {str(error).replace(flag(name), name, 1)}") from error
    return converted


def convert_type(name: str, value: Any, place: str) -> Any:
    kinds = {field.name: field.type for field in fields(Settings)}
    if name not in kinds:
        raise UsageError(f"{place}: unknown setting '{name}'; known are {', '.join(kinds)}")
    kind = str(kinds[name])
    try:
        if name == "keep" and value == AUTO:
            return None
        if value in WORDS.get(name, ()):
            return value
        if kind == "bool":
            return (
                value
                if isinstance(value, bool)
                else {"1": True, "true": True, "0": False, "false": False}[value.lower()]
            )
        if isinstance(value, bool) or ("int" in kind and isinstance(value, float)):
            raise TypeError
        if kind in ("int", "str | int"):
            return int(value)
        if kind in ("float", "float | None"):
            return float(value)
        return str(value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        words = {
            "keep": "a number or 'auto'",
            "speculate": "'off', 'auto' or a whole number",
            "draft_window": "'off', 'auto' or a whole number",
            "prefill_chunk": "'auto' or a whole number",
        }
        kinds_in_words = {"int": "a whole number", "bool": "true or false", "str": "a string", "str | None": "a string"}
        wanted = words.get(name) or kinds_in_words.get(kind, "a number")
        raise UsageError(f"{place}: '{value}' is not {wanted} (setting {name})") from error
