"""Where calibrations of a pair lie: shipped with the package for `tiny`, in the user's data folder for the others."""

from __future__ import annotations

import os
import re
from pathlib import Path

from specprefill_cli.models.pairs import BUNDLED, Pair

FOLDER_VARIABLE = "SPECPREFILL_CALIBRATION"


def calibration_folder(pair: Pair) -> Path:
    """The folder of a pair's calibration files; it need not exist."""
    if pair.draft.startswith(BUNDLED) and pair.target.startswith(BUNDLED):
        return Path(__file__).resolve().parent.parent / "bundled" / "tiny"
    return user_folder() / f"{slug(pair.draft)}--{slug(pair.target)}"


def user_folder() -> Path:
    """$SPECPREFILL_CALIBRATION, or `calibration` in the platform's folder for application data."""
    import platformdirs

    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_data_dir("specprefill")) / "calibration"


def slug(name: str) -> str:
    """A hub id or path as a file name: what is no letter, digit, dot or dash becomes an underscore."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_")
