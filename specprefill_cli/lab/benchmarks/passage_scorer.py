"""What retrieval tools do, as a scorer to compare with: passages of 100 words, ranked by the encoder's cosine."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.models.encoder import load_encoder
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scorer, Scores

WORDS, STRIDE = 100, 50
KEPT_DOCUMENTS = 2


class PassageScorer(Scorer):
    """A token is as important as the best passage that holds it, so that whole passages fill the budget."""

    name = "passages"

    def score(self, request: PrefillRequest) -> Scores:
        offsets, text = request.prompt.offsets, request.document_text
        with request.clock.phase("scoring"):
            device = request.pair.target.device
            ranges, vectors = passage_vectors(text, device)
            cosines = (vectors @ load_encoder(device).text_vector(request.question)).numpy()
            best = np.full(len(text) + 1, -1.0)
            for (start, end), cosine in zip(ranges, cosines, strict=True):
                best[start:end] = np.maximum(best[start:end], cosine)
            # Importance is not negative.
            return Scores(importance=torch.from_numpy(1 + best[offsets[:, 0]]).float())


@lru_cache(KEPT_DOCUMENTS)
def passage_vectors(text: str, device: str) -> tuple[list[tuple[int, int]], Tensor]:
    """Character ranges of a text's passages, and their unit vectors [n, width]."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    starts = range(0, max(1, len(words) - WORDS + STRIDE), STRIDE)
    ranges = [(words[first][0], words[min(first + WORDS, len(words)) - 1][1]) for first in starts]
    encoder = load_encoder(device)
    return ranges, torch.stack([encoder.text_vector(text[start:end]) for start, end in ranges])
