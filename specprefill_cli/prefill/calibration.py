"""What calibration stores about a pair: reading its files, and checking that they belong to the models at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.loading import LoadedPair

if TYPE_CHECKING:
    from specprefill_cli.prefill.scoring_heads import ScoringHeads
    from specprefill_cli.prefill.target_calibration import TargetCalibration

# Version 2: maps of draft KV may read the target's embedding.
SCHEMA = 2
Content = TypeVar("Content")


@dataclass
class CalibratedPair(LoadedPair):
    """A loaded pair with what calibration found out about it.

    scoring_heads: the draft's heads that point at answers; target_calibration: the target's own values of `auto`
    mode_data: what modes keep about the pair, by a name of their own
    """

    scoring_heads: ScoringHeads | None = None
    target_calibration: TargetCalibration | None = None
    mode_data: dict[str, Any] = field(default_factory=dict)


def with_calibration(pair: LoadedPair) -> CalibratedPair:
    """The pair, with room for its calibration."""
    return CalibratedPair(pair=pair.pair, target=pair.target, draft=pair.draft, ranks=pair.ranks)


def read_description(
    path: Path, content: str, remedy: str, parse: Callable[[dict[str, Any]], Content]
) -> Content | None:
    """Read a calibration file with `parse`; None where there is no file.

    content: what the file holds, for messages; remedy: the command that makes it

    Raises SpecprefillError for a damaged file.
    """
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if (version := values.pop("schema")) > SCHEMA:
            raise ValueError(f"version {version}; this specprefill reads versions up to {SCHEMA}")
        return parse(values)
    except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        raise SpecprefillError(f"{path}: not a file of {content} ({error}); recreate it with {remedy}") from error


def check_identity(
    path: Path, stored: Mapping[str, str | int], actual: Mapping[str, str | int], owner: str, remedy: str
) -> None:
    """Raises SpecprefillError for a calibration of another `owner` ("draft", "pair") than the one at hand."""
    for name, value in actual.items():
        if stored.get(name) != value:
            raise SpecprefillError(
                f"{path}: made for another {owner} ({name} '{stored.get(name)}', this one has '{value}'); "
                f"recreate it with {remedy}"
            )
