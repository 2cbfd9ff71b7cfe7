"""Positions of training rows: plain, with skips, or of a document with few kept chunks."""

import random

import numpy as np

CHUNK = 32
MAX_GAP_BEFORE_SUFFIX = 1_000
# Part of thinned documents with gaps as long as the dropped text; the others have longer gaps.
PLAIN_GAPS_RATIO = 0.3


def skipped_positions(length: int, prefix: int, context: int, rng: random.Random) -> np.ndarray:
    """Positions [length] below `context`: plain, or after the first `prefix` tokens with random skips of whole chunks."""
    positions = np.arange(length)
    free = context - length
    if rng.random() < 0.45 or free <= CHUNK:
        return positions
    for _ in range(rng.randint(1, 8)):
        skip = CHUNK * rng.randint(0, int(free * rng.random() ** 2) // CHUNK)
        positions = positions + skip * (np.arange(length) >= rng.randint(prefix, length))
        free -= skip
    return positions


def thinned_positions(kept: np.ndarray, length: int, prefix: int, context: int, rng: random.Random) -> np.ndarray:
    """Positions [length] below `context` of a row of prefix, kept document tokens and suffix.

    kept: positions [K] of the kept document tokens
    """
    suffix = np.arange(length - prefix - len(kept))
    last = int(kept[-1]) if len(kept) else prefix
    kept, growth = widen_gaps(kept, context - 1 - (last + 1 + MAX_GAP_BEFORE_SUFFIX + len(suffix)), rng)
    suffix_start = last + 1 + growth + rng.randint(0, MAX_GAP_BEFORE_SUFFIX)
    positions = np.concatenate([np.arange(prefix), kept, suffix_start + suffix])
    shift = rng.randint(0, max(0, context - 1 - int(positions[-1]))) if rng.random() < 0.3 else 0
    return positions + shift * (np.arange(length) >= prefix)


def widen_gaps(kept: np.ndarray, free: int, rng: random.Random) -> tuple[np.ndarray, int]:
    """Widen the gaps between kept positions [K]. Returns the positions, and the growth of the document.

    A row has no dropped tokens, so it can imitate a long document at the cost of its kept tokens.
    """
    if rng.random() < PLAIN_GAPS_RATIO or free < CHUNK or not len(kept):
        return kept, 0
    gaps = np.concatenate([[0], 1 + np.flatnonzero(np.diff(kept) > 1)])
    max_chunks = int(free * rng.random() ** 2) // CHUNK
    moves = CHUNK * np.array(sorted(rng.randint(0, max_chunks) for _ in gaps))
    return kept + moves[np.searchsorted(gaps, np.arange(len(kept)), side="right") - 1], CHUNK * max_chunks
