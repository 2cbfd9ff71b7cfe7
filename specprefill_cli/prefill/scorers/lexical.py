"""Scorer `lexical`: BM25 of the question over passages of the document; needs no draft."""

from __future__ import annotations

import re

import numpy as np
import torch

from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest

WORD = re.compile(r"\w+")
PASSAGE_TOKENS = 32


class LexicalScorer:
    """Okapi BM25 (Robertson and Zaragoza 2009) with k1 = 1.2 and b = 0.75; a passage is 32 document tokens."""

    name = "lexical"
    needs_draft = False

    def score(self, request: ScoringRequest) -> Scores:
        with request.clock.phase("scoring"):
            offsets = request.prompt.offsets
            passages = [
                request.document_text[offsets[first, 0] : offsets[min(first + PASSAGE_TOKENS, len(offsets)) - 1, 1]]
                for first in range(0, len(offsets), PASSAGE_TOKENS)
            ]
            scores = bm25(words(request.question), [words(passage) for passage in passages])
            importance = torch.from_numpy(scores).float().repeat_interleave(PASSAGE_TOKENS)[: len(offsets)]
        return Scores(importance)


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def bm25(query: list[str], passages: list[list[str]], k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    """BM25 score [n] of every passage for the query's words."""
    lengths = np.array([len(passage) for passage in passages], dtype=float)
    norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1e-9)) if len(passages) else lengths
    scores = np.zeros(len(passages))
    for word in sorted(set(query)):
        frequency = np.array([passage.count(word) for passage in passages], dtype=float)
        containing = np.count_nonzero(frequency)
        idf = np.log1p((len(passages) - containing + 0.5) / (containing + 0.5))
        scores += idf * frequency * (k1 + 1) / (frequency + norm)
    return scores
