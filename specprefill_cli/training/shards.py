"""The corpus as token shards: files of 16-bit ids, read in rows for language modelling without tokenising again."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.training.batches import Batch
from specprefill_cli.training.tokenizer import BOS, EOS

# 2^24 ids of two bytes: a shard of 32 MiB.
SHARD_TOKENS = 1 << 24
ENCODED_AT_ONCE = 2_000


def write_shards(texts: Iterable[str], tokenizer: Tokenizer, folder: Path, shard_tokens: int = SHARD_TOKENS) -> dict:
    """Tokenise passages, each followed by the end token, into `folder/NNN.bin`; returns and writes what was counted.

    A passage that was seen before, byte for byte, is left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.bin"):
        old.unlink()
    end = tokenizer.token_to_id(EOS)
    counts = {"passages": 0, "repeated": 0, "characters": 0, "tokens": 0, "shards": 0}
    pending: list[np.ndarray] = []
    seen: set[int] = set()
    stream = iter(texts)
    while block := list(islice(stream, ENCODED_AT_ONCE)):
        fresh = [text for text in dict.fromkeys(block) if hash(text) not in seen]
        seen.update(map(hash, fresh))
        counts["repeated"] += len(block) - len(fresh)
        counts["passages"] += len(fresh)
        counts["characters"] += sum(map(len, fresh))
        for encoding in tokenizer.encode_batch(fresh, add_special_tokens=False):
            pending.append(np.array([*encoding.ids, end], dtype=np.uint16))
        if sum(map(len, pending)) >= shard_tokens:
            pending = flush(pending, folder, counts)
    flush(pending, folder, counts)
    (folder / "counts.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return counts


def flush(pending: list[np.ndarray], folder: Path, counts: dict) -> list[np.ndarray]:
    """Write the collected tokens as the next shard."""
    if pending:
        tokens = np.concatenate(pending)
        tokens.tofile(folder / f"{counts['shards']:03d}.bin")
        counts["tokens"] += len(tokens)
        counts["shards"] += 1
    return []


class ShardStream(IterableDataset):
    """Endless batches of text rows drawn at random places of the shards, some with skips in their positions.

    text_share: share of the tokens whose successor counts in the loss (a whole vocabulary of logits for each is the
    largest cost of a small model on a CPU)

    Raises SpecprefillError for a folder without shards.
    """

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, tokens_per_batch: int, length: int, context: int, text_share: float,
        seed: int,
    ) -> None:  # fmt: skip
        self.files = sorted(folder.glob("*.bin"))
        if not self.files:
            raise SpecprefillError(f"{folder}: holds no shards; make them with the step `corpus`")
        self.begin = tokenizer.token_to_id(BOS)
        self.tokens_per_batch = tokens_per_batch
        self.length = length
        self.context = context
        self.text_share = text_share
        self.seed = seed
        self.progress = multiprocessing.get_context("spawn").Value("d", 0.0)

    def __iter__(self) -> Iterator[Batch]:
        info = torch.utils.data.get_worker_info()
        generator = np.random.default_rng([self.seed, info.id if info else 0])
        shards = [np.memmap(file, dtype=np.uint16, mode="r") for file in self.files]
        sizes = np.array([len(shard) for shard in shards], dtype=float)
        while True:
            yield self.batch(shards, sizes / sizes.sum(), generator)

    def batch(self, shards: list[np.ndarray], shares: np.ndarray, generator: np.random.Generator) -> Batch:
        rows = max(1, self.tokens_per_batch // self.length)
        tokens = np.full((rows, self.length), self.begin, dtype=np.int64)
        for row in tokens:
            shard = shards[generator.choice(len(shards), p=shares)]
            piece = shard[generator.integers(max(1, len(shard) - self.length)) :][: self.length - 1]
            row[1 : 1 + len(piece)] = piece
        predicting = np.arange(rows * self.length).reshape(rows, self.length)[:, :-1].reshape(-1)
        texts = generator.choice(predicting, max(1, int(self.text_share * predicting.size)), replace=False)
        return Batch(
            tokens=torch.from_numpy(tokens),
            positions=torch.from_numpy(skipped_positions(rows, self.length, self.context, generator)),
            answers=torch.empty(0, dtype=torch.long),
            texts=torch.from_numpy(np.sort(texts)),
            probes=None,
        )


def skipped_positions(rows: int, length: int, context: int, generator: np.random.Generator) -> np.ndarray:
    """Positions [rows, length] below `context`; in half of the rows a few skips make gaps and far positions familiar."""
    steps = np.ones((rows, length), dtype=np.int64)
    steps[:, 0] = 0
    free = context - length
    for row in steps:
        if free > 0 and generator.random() < 0.5:
            places = generator.integers(1, length, size=generator.integers(1, 5))
            cuts = np.sort(generator.integers(0, int(free * generator.random() ** 2) + 1, size=len(places)))
            np.add.at(row, places, np.diff(cuts, prepend=0))
    return steps.cumsum(1)
