"""Batches for training: row lengths by a curriculum, fixed shapes."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.training.network import ProbeTargets
from specprefill_cli.training.questions import QUESTION_TOKENS, Row
from specprefill_cli.training.rows import RowMaker


class Stage(NamedTuple):
    """A mixture of rows.

    start: progress of the run, from 0 to 1, at which it begins; lengths: weights by row length
    copy, text: ratios of these rows, the others are document rows; written: ratio of document rows with written questions
    """

    start: float
    lengths: dict[int, float]
    copy: float
    text: float
    written: float


# Short documents and copying come first. Without them the answer loss does not fall.
CURRICULUM = (
    Stage(0.00, {256: 1.0}, 0.40, 0.10, 0.00),
    Stage(0.04, {256: 1.0}, 0.15, 0.10, 0.10),
    Stage(0.10, {256: 0.4, 512: 0.6}, 0.05, 0.05, 0.40),
    Stage(0.45, {256: 0.15, 512: 0.55, 1024: 0.3}, 0.03, 0.04, 0.45),
    Stage(0.53, {512: 0.25, 1024: 0.4, 2048: 0.25, 4096: 0.1}, 0.02, 0.03, 0.50),
    Stage(0.75, {512: 0.1, 1024: 0.15, 2048: 0.3, 4096: 0.43, 8192: 0.02}, 0.01, 0.02, 0.60),
)
# Largest parts of a batch's tokens that count in the loss: answer tokens, and other text tokens.
ANSWER_RATIO = 1 / 7
TEXT_RATIO = 1 / 12
QUESTIONS_PER_ROW = 16
POINTERS_PER_ROW = 96


@dataclass(kw_only=True)
class Batch:
    """tokens, positions: [B, S]; answers, texts: flat indices into B*S of tokens that predict their successor."""

    tokens: Tensor
    positions: Tensor
    answers: Tensor
    texts: Tensor
    probes: ProbeTargets | None


def make_batch(maker: RowMaker, progress: float, tokens_per_batch: int) -> Batch:
    """A batch of the curriculum's mixture at `progress`; all its rows have the same length."""
    stage = [stage for stage in CURRICULUM if stage.start <= progress][-1]
    length = maker.rng.choices(list(stage.lengths), list(stage.lengths.values()))[0]
    rows = []
    for _ in range(max(1, tokens_per_batch // length)):
        draw = maker.rng.random()
        if draw < stage.copy:
            rows.append(maker.copy_row(length))
        elif draw < stage.copy + stage.text:
            rows.append(maker.text_row(length))
        else:
            rows.append(maker.document_row(length, stage.written))
    return collate(rows, length, maker)


def collate(rows: list[Row], length: int, maker: RowMaker) -> Batch:
    """Stack rows, and draw the answer and text tokens that count in the loss."""
    tokens = np.array([row.tokens for row in rows], dtype=np.int64)
    flat = tokens.reshape(-1)
    answers = np.array([number * length + index for number, row in enumerate(rows) for index in row.answers], np.int64)
    generator = np.random.default_rng(maker.rng.randrange(2**32))
    most_answers = int(flat.size * ANSWER_RATIO)
    answers = answers if answers.size <= most_answers else generator.choice(answers, most_answers, replace=False)
    candidates = np.nonzero((flat != maker.pad) & (np.roll(flat, -1) != maker.pad))[0]
    candidates = candidates[candidates % length != length - 1]
    candidates = np.setdiff1d(candidates, answers, assume_unique=True)
    texts = generator.choice(candidates, min(int(flat.size * TEXT_RATIO), candidates.size), replace=False)
    return Batch(
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(np.stack([row.positions for row in rows])),
        answers=torch.from_numpy(answers),
        texts=torch.from_numpy(texts),
        probes=probe_targets(rows, maker),
    )


def probe_targets(rows: list[Row], maker: RowMaker) -> ProbeTargets:
    """The rows' regions and pointers as padded tensors; a random sample where there are too many."""
    questions = torch.full((len(rows), QUESTIONS_PER_ROW, QUESTION_TOKENS), -1)
    bounds = torch.zeros(len(rows), QUESTIONS_PER_ROW, 2, dtype=torch.long)
    queries = torch.full((len(rows), POINTERS_PER_ROW), -1)
    targets = torch.full((len(rows), POINTERS_PER_ROW), -1)
    for number, row in enumerate(rows):
        regions = maker.rng.sample(row.regions, min(QUESTIONS_PER_ROW, len(row.regions)))
        for index, (tokens, start, end) in enumerate(regions):
            questions[number, index, : len(tokens)] = torch.tensor(tokens)
            bounds[number, index] = torch.tensor([start, end])
        pointers = maker.rng.sample(row.pointers, min(POINTERS_PER_ROW, len(row.pointers)))
        if pointers:
            queries[number, : len(pointers)], targets[number, : len(pointers)] = torch.tensor(pointers).unbind(1)
    return ProbeTargets(
        region_queries=questions, region_bounds=bounds, pointer_queries=queries, pointer_targets=targets
    )
