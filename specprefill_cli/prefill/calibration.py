"""Calibration files of a pair: their folders, reading them, and checking that they belong to the loaded models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.running.int8 import SAMPLED, UNPACKED
from specprefill_cli.models.sources import smollm2
from specprefill_cli.models.sources.pairs import Pair, slug, user_folder
from specprefill_cli.models.sources.refs import Kind, ModelRef
from specprefill_cli.resources import BUNDLED_FOLDER, SMOLLM2_FOLDER

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


# Version 2: maps of draft KV may read the target's embedding.
SCHEMA = 2
Content = TypeVar("Content")
FILE = "calibration.json"
REMEDY = "specprefill calibrate, or delete it"


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
        fields = json.loads(path.read_text(encoding="utf-8"))
        if (version := fields.pop("schema")) > SCHEMA:
            raise ValueError(f"version {version}; this specprefill reads versions up to {SCHEMA}")
        return parse(fields)
    except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        raise SpecprefillError(f"{path}: not a file of {content} ({error}); recreate it with {remedy}") from error


def check_identity(
    path: Path, stored: Mapping[str, str | int], actual: Mapping[str, str | int], owner: str, remedy: str
) -> None:
    """Raises SpecprefillError for a calibration of another `owner` ("draft", "pair")."""
    for name, value in actual.items():
        if stored.get(name) != value:
            raise SpecprefillError(
                f"{path}: made for another {owner} ({name} '{stored.get(name)}', this one has '{value}'); "
                f"recreate it with {remedy}"
            )


def calibration_folder(pair: Pair) -> Path:
    """The folder of a pair's calibrations: confidence, positions, draft KV. It need not exist."""
    if ModelRef(pair.draft).kind is Kind.BUNDLED:
        if ModelRef(pair.target).kind is Kind.BUNDLED:
            return BUNDLED_FOLDER
        if pair.target in (smollm2.TARGET, smollm2.BASE, smollm2.HUB_ID):
            return SMOLLM2_FOLDER
    return user_folder() / f"{slug(pair.draft)}--{slug(pair.target)}"


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
        flat = gather_weight(model, name, parameter).detach().flatten()
        sample = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].to(torch.bfloat16).to(torch.float16).float().cpu()
        digest.update(name.encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def gather_weight(model: PreTrainedModel, name: str, parameter: Tensor) -> Tensor:
    """A whole weight, even if it is divided among ranks (all of which must call this) or offloaded by accelerate."""
    if hasattr(parameter, "full_tensor"):
        return parameter.full_tensor()
    if parameter.is_meta:
        module, _, weight = name.rpartition(".")
        hook: Any = model.get_submodule(module)._hf_hook
        return hook.weights_map[weight]
    return parameter
