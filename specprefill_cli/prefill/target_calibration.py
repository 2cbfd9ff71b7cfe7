"""What calibration found for a target behind its draft: how `auto` places kept tokens, and how much it keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specprefill_cli.models.calibration import weights_fingerprint
from specprefill_cli.models.loading import LoadedModel, LoadedPair
from specprefill_cli.prefill.calibration import read_description
from specprefill_cli.prefill.positions import COMPACT, ORIGINAL

FILE = "calibration.json"
REMEDY = "specprefill calibrate, or delete it"


@dataclass(frozen=True, kw_only=True)
class TargetCalibration:
    """Values of `auto` for one target; None: those that hold for every target.

    target: fingerprint of the weights that it was found on; None: it holds for all weights of the pair
    positions: `compact`, or `original` while these fit the context
    auto_mass, auto_tokens: what `--keep auto` keeps, in place of the scoring heads' own
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
        folder / FILE, "a target's calibration", REMEDY, lambda values: TargetCalibration(**values)
    )
    if stored is None or stored.target is None or not isinstance(pair.target, LoadedModel):
        return stored
    return stored if stored.target == weights_fingerprint(pair.target.model) else None
