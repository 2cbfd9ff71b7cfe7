"""Questions about the whole document, such as summaries and counts: how they are known, and what is kept for them."""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.documents.sentences import sentences_of

# Fewer questions than with "all" or "every", which mostly ask for one fact.
ABOUT_EVERYTHING = re.compile(
    r"^\W*(?:please )?(?:list|count|enumerate|outline)\b"
    r"|\b(?:summar(?:y of|i[sz]\w+)|tl;?dr|overview|gist|takeaways?|(?:key|main) (?:points?|ideas?|facts?|topics?)"
    r"|list (?:all|every)|altogether|how many\b.{1,60}\b(?:are|is) (?:there|listed|named|mentioned)"
    r"|what (?:is|does|are) (?:this|it|these|the (?:text|documents?|report|article|file|paper|letter))"
    r" ?\w* (?:about|cover|discuss))\b",
    re.IGNORECASE,
)
# `--mode auto` reads the whole prompt for such a question up to this many tokens.
WHOLE_TOKENS = 4_096
# Share of a longer prompt that `--keep auto` keeps for it.
OUTLINE_KEEP = 0.3
PARAGRAPH_BREAK = re.compile(r"\n\s*\n|\n(?=#)")


def is_about_everything(question: str) -> bool:
    """Whether a question needs the whole document, by its English words."""
    return ABOUT_EVERYTHING.search(question) is not None


def outline_importance(importance: Tensor, text: str, offsets: np.ndarray) -> Tensor:
    """Importance [n] with the first sentence of every paragraph, and every heading, above all other tokens.

    offsets: [n, 2] character range of each document token in `text`
    """
    if not len(importance):
        return importance
    starts = np.array([0, *(match.end() for match in PARAGRAPH_BREAK.finditer(text))])
    sentences = sentences_of(text)
    first = np.unique(np.searchsorted(sentences[:, 0], starts).clip(max=max(0, len(sentences) - 1)))
    opens = np.zeros(len(text) + 1, dtype=bool)
    for begin, end in sentences[first].tolist():
        opens[begin:end] = True
    leading = torch.from_numpy(opens[offsets[:, 0]])
    return importance + leading * importance.max()
