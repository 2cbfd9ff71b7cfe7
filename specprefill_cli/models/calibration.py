"""Where calibrations are stored: in the package for the pairs `tiny` and `smollm2`, in the user's data folder for others."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprefill_cli.models import smollm2
from specprefill_cli.models.pairs import Pair
from specprefill_cli.models.quantization import SAMPLED, UNPACKED
from specprefill_cli.models.refs import Kind, ModelRef
from specprefill_cli.resources import BUNDLED_FOLDER, SMOLLM2_FOLDER

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

FOLDER_VARIABLE = "SPECPREFILL_CALIBRATION"


def calibration_folder(pair: Pair) -> Path:
    """The folder of what is calibrated for a pair: confidence, positions, draft KV. It need not exist."""
    if ModelRef(pair.draft).kind is Kind.BUNDLED:
        if ModelRef(pair.target).kind is Kind.BUNDLED:
            return BUNDLED_FOLDER
        if pair.target in (smollm2.TARGET, smollm2.BASE, smollm2.HUB_ID):
            return SMOLLM2_FOLDER
    return user_folder() / f"{slug(pair.draft)}--{slug(pair.target)}"


def draft_folder(draft: str) -> Path:
    """The folder of a draft's scoring heads, which serve it under any target. It need not exist."""
    return BUNDLED_FOLDER if ModelRef(draft).kind is Kind.BUNDLED else user_folder() / slug(draft)


def user_folder() -> Path:
    """$SPECPREFILL_CALIBRATION, or `calibration` in the platform's folder for application data."""
    import platformdirs

    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_data_dir("specprefill")) / "calibration"


def pair_options(pair: Pair) -> str:
    """The options that name a pair on the command line."""
    return f"--draft {pair.draft} --target {pair.target}" if pair.name == "custom" else f"--pair {pair.name}"


def weights_fingerprint(model: PreTrainedModel) -> str:
    """A hash of some values of every weight, rounded so that float32, bfloat16 and float16 give the same.

    Other weights may appear under the same folder or hub id.
    """
    import torch

    digest = hashlib.sha256()
    for name, parameter in sorted(getattr(model, UNPACKED, dict(model.named_parameters())).items()):
        flat = whole_weight(model, name, parameter).detach().flatten()
        sample = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].to(torch.bfloat16).to(torch.float16).float().cpu()
        digest.update(name.encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def whole_weight(model: PreTrainedModel, name: str, parameter: Tensor) -> Tensor:
    """A whole weight, even if it is divided among ranks (all of which must call this) or offloaded by accelerate."""
    if hasattr(parameter, "full_tensor"):
        return parameter.full_tensor()
    if parameter.is_meta:
        owner, _, own_name = name.rpartition(".")
        hook: Any = model.get_submodule(owner)._hf_hook
        return hook.weights_map[own_name]
    return parameter


def slug(name: str) -> str:
    """A hub id or path as a file name: other characters than letters, digits, dots and dashes become underscores."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_")
