"""Writes calibration files; the product reads them (`prefill/calibration.py`, `draft_kv/projection.py`)."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save

from specprefill_cli.draft_kv.projection import DESCRIPTION, NAME, WEIGHTS, KvCalibration
from specprefill_cli.files import write_whole
from specprefill_cli.models.sources.pairs import HEADS_FILE
from specprefill_cli.prefill.calibration import SCHEMA, ScoringHeads


def save_heads(heads: ScoringHeads, folder: Path) -> Path:
    """Write the description of scoring heads. Raises SpecprefillError if that fails."""
    return write_description(folder / HEADS_FILE, asdict(heads))


def save_maps(calibration: KvCalibration, folder: Path) -> Path:
    """Write the weights (float16), then the description that refers to them; each file is written atomically.

    Raises SpecprefillError if that fails.
    """
    kv_map = calibration.kv_map
    tensors = {f"{NAME}.{layer}": weight.half().contiguous() for layer, weight in kv_map.weights.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, save(tensors))
    stored = {
        "embedding": kv_map.embedding,
        "fits": [asdict(fit) for fit in kv_map.fits],
        "gate": asdict(kv_map.gate) if kv_map.gate is not None else None,
    }
    identity = dict(calibration.identity)
    description = {"identity": identity, "rows": calibration.rows, "window": kv_map.window, "maps": {NAME: stored}}
    return write_description(folder / DESCRIPTION, description)


def write_description(path: Path, values: Mapping[str, Any]) -> Path:
    """Write a calibration file. Raises SpecprefillError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"schema": SCHEMA, **values}, indent=1) + "\n")
    return path
