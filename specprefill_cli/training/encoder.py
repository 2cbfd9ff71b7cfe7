"""Packs the bundled encoder from a folder of all-MiniLM-L6-v2, as the hub or a package gives it."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.encoder import GROUP, LAYERS, SCALE, WORDS
from specprefill_cli.models.encoder_files import TOKENIZER, WEIGHTS

# The smallest scale, for rows of zeros.
SMALLEST = 1e-6
SOURCE_WEIGHTS = "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Our names of a layer's parts, and BERT's.
PARTS = {
    "attended": "attention.output.dense",
    "norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "last_norm": "output.LayerNorm",
}
QUERY_KEY_VALUE = tuple(f"attention.self.{part}" for part in ("query", "key", "value"))


def convert(source: Path, out: Path) -> None:
    """Write the encoder's weights and tokenizer. Raises SpecprefillError for unknown weights."""
    path = source / SOURCE_WEIGHTS
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SpecprefillError(f"{path}: other weights than those of all-MiniLM-L6-v2 (SHA-256 {SHA256})")
    out.mkdir(parents=True, exist_ok=True)
    save_file(packed(rename_weights(load_file(path))), out / WEIGHTS)
    tokenizer = json.loads((source / TOKENIZER).read_text(encoding="utf-8"))
    # A document is tokenised whole, whatever its length.
    tokenizer |= {"truncation": None, "padding": None}
    (out / TOKENIZER).write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they ship: vectors in float16, matrices in int8 with a scale for each row, the table of words in 4 bits."""
    shipped = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            shipped[name] = tensor.half()
        elif name == WORDS:
            shipped[name], shipped[f"{name}{SCALE}"] = nibbles(tensor)
        else:
            scale = tensor.float().abs().amax(1, keepdim=True).clamp(min=SMALLEST) / 127
            shipped[name], shipped[f"{name}{SCALE}"] = (tensor.float() / scale).round().to(torch.int8), scale
    return shipped


def nibbles(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [rows, columns] as pairs of 4-bit numbers [rows, columns / 2], and a scale for each `GROUP` columns."""
    groups = tensor.float().unflatten(1, (-1, GROUP))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) / 7
    numbers = ((groups / scale).round() + 8).to(torch.uint8).flatten(1)
    return numbers[:, ::2] * 16 + numbers[:, 1::2], scale.half()


def rename_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """BERT's weights by our names: queries, keys and values stacked; the vector of the only text type joins the positions."""
    renamed = {
        "words": tensors["embeddings.word_embeddings.weight"],
        "positions": tensors["embeddings.position_embeddings.weight"]
        + tensors["embeddings.token_type_embeddings.weight"][0],
        "norm": tensors["embeddings.LayerNorm.weight"],
        "norm.bias": tensors["embeddings.LayerNorm.bias"],
    }
    for number in range(LAYERS):
        layer, source = f"layers.{number}.", f"encoder.layer.{number}."
        for suffix, kind in (("", "weight"), (".bias", "bias")):
            renamed[f"{layer}qkv{suffix}"] = torch.cat([tensors[f"{source}{part}.{kind}"] for part in QUERY_KEY_VALUE])
            renamed |= {f"{layer}{name}{suffix}": tensors[f"{source}{part}.{kind}"] for name, part in PARTS.items()}
    return renamed
