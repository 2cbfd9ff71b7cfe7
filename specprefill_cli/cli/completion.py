"""Words that the shell completes. The names stand here, because the registries behind them import torch."""

from __future__ import annotations

from collections.abc import Callable

# A test holds these to the registries.
MODES = ("auto", "full", "select", "draft-kv", "hybrid")
SCORERS = ("auto", "question", "heads", "paper", "lexical", "random")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "int8", "nf4", "fp8")
PROPOSERS = ("auto", "draft", "lookup")
KEEP = ("auto", "0.1", "0.2", "0.3", "0.5")


def one_of(*words: str) -> Callable[[str], list[str]]:
    """A completion from fixed words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def list_of(*words: str) -> Callable[[str], list[str]]:
    """A completion of the last word in a list with commas."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        used = before.split(",")
        return [before + comma + word for word in words if word.startswith(last) and word not in used]

    return complete


def pair_names(incomplete: str) -> list[str]:
    from specprefill_cli.models.pairs import PAIRS

    return [name for name in PAIRS if name.startswith(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    from dataclasses import fields

    from specprefill_cli.settings import Settings

    return [field.name for field in fields(Settings) if field.name.startswith(incomplete)]


def in_words(names: tuple[str, ...]) -> str:
    """Names for a help text: `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"
