"""Calibration files: scoring heads of a draft (arXiv 2404.15574), and values of `auto` for a target."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.files import BUNDLED_FOLDER, SMOLLM2_FOLDER
from specprefill_cli.models.loaded import LoadedModel, LoadedPair
from specprefill_cli.models.running.int8 import SAMPLED, SAMPLES
from specprefill_cli.models.sources import smollm2
from specprefill_cli.models.sources.pairs import HEADS_FILE, Pair, slug, user_folder
from specprefill_cli.models.sources.refs import Kind, ModelRef
from specprefill_cli.models.sources.tokenizers import fingerprint

# Version 2: maps of draft KV may read the target's embedding.
SCHEMA = 2
Content = TypeVar("Content")
FILE = "calibration.json"
REMEDY, HEADS_REMEDY = "specprefill calibrate, or delete it", "specprefill calibrate --heads QUESTIONS.jsonl"


def read_description(
    path: Path, content: str, remedy: str, parse: Callable[[dict[str, Any]], Content]
) -> Content | None:
    """Read a file with `parse`; None where there is none. Raises SpecprefillError with the remedy."""
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


def weights_fingerprint(model: PreTrainedModel) -> str:
    """A hash of some values of every weight, rounded so that float32, bfloat16 and float16 give the same."""
    digest = hashlib.sha256()
    for name, parameter in sorted(getattr(model, SAMPLES, dict(model.named_parameters())).items()):
        # A weight that is divided among ranks is gathered: all of them must call this.
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        flat = whole.detach().flatten()
        sample = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].to(torch.bfloat16).to(torch.float16).float().cpu()
        digest.update(name.encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Head:
    """An attention head and its weight in the importance."""

    layer: int
    head: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class ScoringHeads:
    """The scoring heads and the identity of a draft.

    lexical: weight of BM25, against 1 for the heads; default: whether they beat uncalibrated scorers
    auto_mass, auto_tokens: budget of `--keep auto` with these heads, see `AutoBudget`
    window: previous tokens that a document token must see for these heads to work as well; None: all of them
    evidence: figures of the search
    """

    heads: tuple[Head, ...]
    auto_mass: float
    default: bool
    weights: str
    tokenizer: str
    layers: int
    hidden_size: int
    evidence: Mapping[str, float | int]
    window: int | None = None
    lexical: float = 0.0
    auto_tokens: int | None = None


def model_identity(loaded: LoadedModel) -> dict[str, Any]:
    """The values that identify a model in calibrations."""
    text = loaded.model.config.get_text_config()
    return {
        "weights": weights_fingerprint(loaded.model),
        "tokenizer": fingerprint(loaded.tokenizer),
        "layers": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
    }


def load_heads(folder: Path, draft: LoadedModel) -> ScoringHeads | None:
    """The heads in a folder, or None. Raises SpecprefillError for a damaged file, or another draft's."""
    path = folder / HEADS_FILE

    def parse(fields: dict[str, Any]) -> ScoringHeads:
        heads = ScoringHeads(**{**fields, "heads": tuple(Head(**head) for head in fields["heads"])})
        check_identity(path, vars(heads), model_identity(draft), "draft", HEADS_REMEDY)
        return heads

    return read_description(path, "scoring heads", HEADS_REMEDY, parse)


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


def load_target_calibration(folder: Path, pair: LoadedPair) -> TargetCalibration | None:
    """The calibration in a folder; None where it has none for the weights. Raises SpecprefillError."""
    path, kind = folder / FILE, "a target's calibration"
    stored = read_description(path, kind, REMEDY, lambda fields: TargetCalibration(**fields))
    if stored is None or stored.target is None or not isinstance(pair.target, LoadedModel):
        return stored
    return stored if stored.target == weights_fingerprint(pair.target.model) else None


@dataclass
class CalibratedPair(LoadedPair):
    """A loaded pair with its calibration; mode_data: what modes store about it, by names that they choose."""

    scoring_heads: ScoringHeads | None = None
    target_calibration: TargetCalibration | None = None
    mode_data: dict[str, Any] = field(default_factory=dict)
