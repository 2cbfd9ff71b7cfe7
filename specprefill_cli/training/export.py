"""Exports a checkpoint as the shipped draft's folder: config.json, float16 safetensors, tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from specprefill_cli.resources import BUNDLED_FOLDER
from specprefill_cli.training.network import new_model
from specprefill_cli.training.recipe import ModelShape


def export_draft(
    checkpoint: Path, shape: ModelShape, out: Path, average: Path | None = None, weight: float = 0.5
) -> None:
    """Write the folder `out`, which transformers loads.

    average: folder of the exported draft that the run started from, to write the mean of the two drafts' weights
        (model soup, arXiv 2203.05482); weight: of the run's draft in the mean
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = torch.load(checkpoint, map_location="cpu", weights_only=True)["parameters"]
    if average is not None:
        others = load_file(average / "model.safetensors")
        weights = {key: torch.lerp(others[key].float(), value, weight) for key, value in weights.items()}
    weights = {key: value.to(torch.float16).contiguous() for key, value in weights.items()}
    # `save_file` would create a file that other users cannot read.
    (out / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    new_model(shape).model.config.save_pretrained(out)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(BUNDLED_FOLDER / "target" / file, out / file)
