"""Batches for training: row lengths by a curriculum, fixed shapes, made in worker processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from specprefill_cli.training.network import ProbeTargets
from specprefill_cli.training.rows import QUESTION_TOKENS, Row, RowMaker

# Progress of the run (0 to 1) at which each mixture starts: share of rows by length, share of copy rows, of text
# rows, and of rows made of real questions. Short documents and copying first: without them the answer loss stays flat.
CURRICULUM = (
    (0.00, {256: 1.0}, 0.40, 0.10, 0.00),
    (0.04, {256: 1.0}, 0.15, 0.10, 0.10),
    (0.10, {256: 0.4, 512: 0.6}, 0.05, 0.05, 0.40),
    (0.45, {256: 0.15, 512: 0.55, 1024: 0.3}, 0.03, 0.04, 0.45),
    (0.53, {512: 0.25, 1024: 0.4, 2048: 0.25, 4096: 0.1}, 0.02, 0.03, 0.50),
    (0.75, {512: 0.1, 1024: 0.15, 2048: 0.3, 4096: 0.43, 8192: 0.02}, 0.01, 0.02, 0.60),
)


# Most tokens that count in the loss, as shares of a batch: those of answers, and others of the text.
ANSWER_SHARE = 1 / 7
TEXT_SHARE = 1 / 4


@dataclass
class Batch:
    """tokens, positions: [B, S]; answers, texts: flat indices into B*S of tokens that predict their successor."""

    tokens: Tensor
    positions: Tensor
    answers: Tensor
    texts: Tensor
    probes: ProbeTargets | None

    def to(self, device: torch.device | str) -> Batch:
        moved = (
            tensor.to(device, non_blocking=True) for tensor in (self.tokens, self.positions, self.answers, self.texts)
        )
        return Batch(*moved, self.probes.to(device) if self.probes else None)


class BatchStream(IterableDataset):
    """Endless batches; `progress` is shared with the training process, which moves it from 0 to 1."""

    def __init__(self, maker: Callable[[int], RowMaker], tokens_per_batch: int, seed: int) -> None:
        self.maker = maker
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self.progress = multiprocessing.get_context("spawn").Value("d", 0.0)

    def __iter__(self) -> Iterator[Batch]:
        info = torch.utils.data.get_worker_info()
        torch.set_num_threads(1)
        maker = self.maker(self.seed * 1_000 + (info.id if info else 0))
        while True:
            yield make_batch(maker, self.progress.value, self.tokens_per_batch)


def make_batch(maker: RowMaker, progress: float, tokens_per_batch: int) -> Batch:
    """One batch of the curriculum's mixture at `progress`; all its rows have one length."""
    _, lengths, copies, plain, real = [stage for stage in CURRICULUM if stage[0] <= progress][-1]
    length = maker.rng.choices(list(lengths), list(lengths.values()))[0]
    rows = []
    for _ in range(max(1, tokens_per_batch // length)):
        draw = maker.rng.random()
        if draw < copies:
            rows.append(maker.copy_row(length))
        elif draw < copies + plain:
            rows.append(maker.text_row(length))
        else:
            rows.append(maker.document_row(length, real))
    return collate(rows, length, maker)


def collate(rows: list[Row], length: int, maker: RowMaker) -> Batch:
    """Stack rows; into the loss go at most ANSWER_SHARE of all tokens as answers, and TEXT_SHARE drawn from the text."""
    tokens = np.array([row.tokens for row in rows], dtype=np.int64)
    flat = tokens.reshape(-1)
    answers = np.array(
        [number * length + place for number, row in enumerate(rows) for place in row.answers], dtype=np.int64
    )
    generator = np.random.default_rng(maker.rng.randrange(2**32))
    budget = int(flat.size * ANSWER_SHARE)
    text_budget = int(flat.size * TEXT_SHARE)
    answers = answers if answers.size <= budget else generator.choice(answers, budget, replace=False)
    candidates = np.nonzero((flat != maker.pad) & (np.roll(flat, -1) != maker.pad))[0]
    candidates = candidates[candidates % length != length - 1]
    candidates = np.setdiff1d(candidates, answers, assume_unique=True)
    texts = generator.choice(candidates, min(text_budget, candidates.size), replace=False)
    return Batch(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(np.stack([row.positions for row in rows])),
        answers=torch.from_numpy(answers),
        texts=torch.from_numpy(texts),
        probes=probe_targets(rows, maker),
    )


def probe_targets(rows: list[Row], maker: RowMaker, most_questions: int = 16, most_pointers: int = 96) -> ProbeTargets:
    questions = torch.full((len(rows), most_questions, QUESTION_TOKENS), -1)
    bounds = torch.zeros(len(rows), most_questions, 2, dtype=torch.long)
    queries = torch.full((len(rows), most_pointers), -1)
    targets = torch.full((len(rows), most_pointers), -1)
    for number, row in enumerate(rows):
        regions = maker.rng.sample(row.regions, min(most_questions, len(row.regions)))
        for place, (indices, low, high) in enumerate(regions):
            questions[number, place, : len(indices)] = torch.tensor(indices)
            bounds[number, place] = torch.tensor([low, high])
        pointers = maker.rng.sample(row.pointers, min(most_pointers, len(row.pointers)))
        if pointers:
            queries[number, : len(pointers)], targets[number, : len(pointers)] = torch.tensor(pointers).unbind(1)
    return ProbeTargets(questions, bounds, queries, targets)
