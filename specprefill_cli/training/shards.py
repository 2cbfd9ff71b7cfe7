"""The corpus as token shards: files of 16-bit ids, and rows of them for language modelling."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.training.batches import Batch, Stream
from specprefill_cli.training.positions import skipped_positions
from specprefill_cli.training.tokenizer import BOS, EOS, token_id

# 2^24 ids of two bytes: a shard of 32 MiB.
SHARD_TOKENS = 1 << 24
TEXTS_PER_CALL = 2_000
ROW_TOKENS = 512
# Part of the tokens that count in the loss. Logits are the largest cost of a small model on a CPU.
LOSS_RATIO = 0.25


def write_shards(texts: Iterable[str], tokenizer: Tokenizer, folder: Path, shard_tokens: int = SHARD_TOKENS) -> dict:
    """Tokenise passages, each followed by the end token, into `folder/NNN.bin`. Returns the counts, and writes them.

    Exact duplicates of a passage are dropped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.bin"):
        old.unlink()
    end = token_id(tokenizer, EOS)
    counts = {"passages": 0, "repeated": 0, "characters": 0, "tokens": 0, "shards": 0}
    pending: list[np.ndarray] = []
    seen: set[int] = set()
    stream = iter(texts)
    while block := list(islice(stream, TEXTS_PER_CALL)):
        new_texts = [text for text in dict.fromkeys(block) if hash(text) not in seen]
        seen.update(map(hash, new_texts))
        counts["repeated"] += len(block) - len(new_texts)
        counts["passages"] += len(new_texts)
        counts["characters"] += sum(map(len, new_texts))
        encodings = tokenizer.encode_batch(new_texts, add_special_tokens=False)
        pending += [np.array([*encoding.ids, end], dtype=np.uint16) for encoding in encodings]
        if sum(map(len, pending)) >= shard_tokens:
            write_shard(pending, folder, counts)
    if pending:
        write_shard(pending, folder, counts)
    (folder / "counts.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return counts


def write_shard(pending: list[np.ndarray], folder: Path, counts: dict[str, int]) -> None:
    """Write the pending tokens to the next shard."""
    tokens = np.concatenate(pending)
    tokens.tofile(folder / f"{counts['shards']:03d}.bin")
    counts["tokens"] += len(tokens)
    counts["shards"] += 1
    pending.clear()


class ShardStream(Stream):
    """Batches of text rows drawn at random places of the shards, some with skips in their positions.

    Raises SpecprefillError for a folder without shards.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, tokens_per_batch: int, context: int, seed: int) -> None:
        super().__init__(seed)
        self.files = sorted(folder.glob("*.bin"))
        if not self.files:
            raise SpecprefillError(f"{folder}: holds no shards; make them with the step `corpus`")
        self.begin = token_id(tokenizer, BOS)
        self.rows = max(1, tokens_per_batch // ROW_TOKENS)
        self.context = context

    def batches(self, worker: int) -> Iterator[Batch]:
        generator = np.random.default_rng([self.seed, worker])
        position_rng = random.Random(self.seed * 1_000 + worker)
        shards = [np.memmap(file, dtype=np.uint16, mode="r") for file in self.files]
        while True:
            yield self.batch(shards, generator, position_rng)

    def batch(self, shards: Sequence[np.ndarray], generator: np.random.Generator, position_rng: random.Random) -> Batch:
        sizes = np.array([len(shard) for shard in shards], dtype=float)
        tokens = np.full((self.rows, ROW_TOKENS), self.begin, dtype=np.int64)
        for row in tokens:
            shard = shards[generator.choice(len(shards), p=sizes / sizes.sum())]
            piece = shard[generator.integers(max(1, len(shard) - ROW_TOKENS)) :][: ROW_TOKENS - 1]
            row[1 : 1 + len(piece)] = piece
        predicting = np.arange(tokens.size).reshape(tokens.shape)[:, :-1].reshape(-1)
        texts = generator.choice(predicting, max(1, int(LOSS_RATIO * predicting.size)), replace=False)
        positions = [skipped_positions(ROW_TOKENS, 1, self.context, position_rng) for _ in tokens]
        return Batch(
            tokens=torch.from_numpy(tokens),
            positions=torch.from_numpy(np.stack(positions)),
            answers=torch.empty(0, dtype=torch.long),
            texts=torch.from_numpy(np.sort(texts)),
            probes=None,
        )
