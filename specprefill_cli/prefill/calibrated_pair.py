"""A loaded pair with its calibration, and the target's part of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specprefill_cli.models.loaded import LoadedModel, LoadedPair
from specprefill_cli.prefill.calibration import read_description, weights_fingerprint
from specprefill_cli.prefill.scoring_heads import ScoringHeads
from specprefill_cli.record import COMPACT, ORIGINAL

FILE = "calibration.json"
REMEDY = "specprefill calibrate, or delete it"


@dataclass(frozen=True, kw_only=True)
class TargetCalibration:
    """Values of `auto` for a target; None: the values for every target.

    target: fingerprint of the weights on which it was fitted; None: it holds for all weights of the pair
    positions: `compact`, or `original` while these fit the context
    auto_mass, auto_tokens: budget of `--keep auto`, instead of the scoring heads' budget
    evidence: figures of the calibration
    """

    target: str | None = None
    positions: str | None = None
    auto_mass: float | None = None
    auto_tokens: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.positions not in (None, ORIGINAL, COMPACT):
            raise ValueError(f"positions '{self.positions}': not {ORIGINAL} or {COMPACT}")


def load_target_calibration(folder: Path, pair: LoadedPair) -> TargetCalibration | None:
    """The calibration in a folder; None where there is none for the target's weights. An outline is not checked.

    Raises SpecprefillError when the file is damaged.
    """
    stored = read_description(
        folder / FILE, "a target's calibration", REMEDY, lambda fields: TargetCalibration(**fields)
    )
    if stored is None or stored.target is None or not isinstance(pair.target, LoadedModel):
        return stored
    return stored if stored.target == weights_fingerprint(pair.target.model) else None


@dataclass
class CalibratedPair(LoadedPair):
    """A loaded pair with its calibration.

    scoring_heads: the draft's heads that point at answers; target_calibration: the target's own values of `auto`
    mode_data: what modes store about the pair, by a name that the mode chooses
    """

    scoring_heads: ScoringHeads | None = None
    target_calibration: TargetCalibration | None = None
    mode_data: dict[str, Any] = field(default_factory=dict)
