"""Exports a checkpoint to the shipped folders: config.json, float16 safetensors, tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from specprefill_cli.training.network import LanguageModel, llama_config
from specprefill_cli.training.recipe import PairShape
from specprefill_cli.training.tokenizer import BOS, EOS, PAD


def export_pair(
    checkpoint: Path,
    tokenizer_folder: Path,
    shape: PairShape,
    out: Path,
    average: Path | None = None,
    weight: float = 0.5,
) -> None:
    """Write `out/target` and `out/draft`, and the tiktoken ranks to `out`.

    average: folder of the exported pair that the run started from, to write the mean of the two pairs' weights
        (model soup, arXiv 2203.05482); weight: of the run's pair in the mean
    """
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["models"]
    tokenizer = json.loads((tokenizer_folder / "tokenizer.json").read_text(encoding="utf-8"))
    numbers = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    token_ids = {"bos_token_id": numbers[BOS], "eos_token_id": numbers[EOS], "pad_token_id": numbers[PAD]}
    for name, model_shape in shape.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        weights = {key: state[f"{name}.{key}"].float() for key in LanguageModel(model_shape).state_dict()}
        if average is not None:
            others = load_file(average / name / "model.safetensors")
            weights = {key: torch.lerp(others[key].float(), value, weight) for key, value in weights.items()}
        weights = {key: value.to(torch.float16).contiguous() for key, value in weights.items()}
        # `save_file` would create a file that other users cannot read.
        (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
        config = llama_config(model_shape, architectures=["LlamaForCausalLM"], dtype="float16", **token_ids)
        config.save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer_folder / file, folder / file)
    shutil.copyfile(tokenizer_folder / "tokenizer.tiktoken", out / "tokenizer.tiktoken")
