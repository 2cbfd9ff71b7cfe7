"""Scorer `lexical`: BM25 of the question over the document's chunks; needs no draft."""

from __future__ import annotations

import re

import numpy as np
import torch

from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest

WORD = re.compile(r"\w+")


class LexicalScorer:
    """Okapi BM25 (Robertson and Zaragoza 2009) with k1 = 1.2 and b = 0.75, over chunks."""

    name = "lexical"
    needs_draft = False
    looks_ahead = False

    def score(self, request: ScoringRequest) -> Scores:
        with request.clock.phase("scoring"):
            offsets, size = request.prompt.offsets, request.chunk_size
            chunks = [
                request.document_text[offsets[first, 0] : offsets[min(first + size, len(offsets)) - 1, 1]]
                for first in range(0, len(offsets), size)
            ]
            scores = bm25(words(request.question), [words(chunk) for chunk in chunks])
            importance = torch.from_numpy(scores).float().repeat_interleave(size)[: len(offsets)]
        return Scores(importance)


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def bm25(query: list[str], chunks: list[list[str]], k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    """BM25 score [n] of every chunk for the query's words."""
    lengths = np.array([len(chunk) for chunk in chunks], dtype=float)
    norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9)) if len(chunks) else lengths
    scores = np.zeros(len(chunks))
    for word in sorted(set(query)):
        frequency = np.array([chunk.count(word) for chunk in chunks], dtype=float)
        containing = np.count_nonzero(frequency)
        idf = np.log1p((len(chunks) - containing + 0.5) / (containing + 0.5))
        scores += idf * frequency * (k1 + 1) / (frequency + norm)
    return scores
