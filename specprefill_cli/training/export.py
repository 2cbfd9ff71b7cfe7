"""Exports a checkpoint to the shipped folders: config.json, float16 safetensors, tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from specprefill_cli.training.network import LanguageModel
from specprefill_cli.training.recipe import ModelShape, PairShape
from specprefill_cli.training.tokenizer import BOS, EOS, PAD


def llama_config(shape: ModelShape, token_ids: dict[str, int]) -> dict:
    """config.json for transformers' LlamaForCausalLM."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "float16",
        "bos_token_id": token_ids[BOS],
        "eos_token_id": token_ids[EOS],
        "pad_token_id": token_ids[PAD],
    }


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
    token_ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
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
        config = json.dumps(llama_config(model_shape, token_ids), indent=2) + "\n"
        (folder / "config.json").write_text(config, encoding="utf-8")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tokenizer_folder / file, folder / file)
    shutil.copyfile(tokenizer_folder / "tokenizer.tiktoken", out / "tokenizer.tiktoken")
