"""Positions of training rows: plain, shifted, with skips, or those of a document of which little was kept."""

from __future__ import annotations

import random

import numpy as np

CHUNK = 32
MOST_SHIFT = 1_000
# Of the thinned documents, those whose dropped text is as long as the text that was made.
PLAIN_GAPS_SHARE = 0.3


def skipped_positions(length: int, head: int, context: int, rng: random.Random) -> np.ndarray:
    """Positions [length] below `context`: plain, or behind the first `head` tokens with random skips of whole chunks."""
    positions = np.arange(length)
    free = context - length
    if rng.random() < 0.45 or free <= CHUNK:
        return positions
    for _ in range(rng.randint(1, 8)):
        skip = CHUNK * rng.randint(0, int(free * rng.random() ** 2) // CHUNK)
        positions = positions + skip * (np.arange(length) >= rng.randint(head, length))
        free -= skip
    return positions


def thinned_positions(places: np.ndarray, length: int, head: int, context: int, rng: random.Random) -> np.ndarray:
    """Positions [length] below `context` of a row that keeps the document tokens at `places`, with a tail behind it."""
    tail = np.arange(length - head - len(places))
    last = int(places[-1]) if len(places) else head
    places, stretch = stretched(places, context - 1 - (last + 1 + MOST_SHIFT + len(tail)), rng)
    first_tail = last + 1 + stretch + rng.randint(0, MOST_SHIFT)
    positions = np.concatenate([np.arange(head), places, first_tail + tail])
    shift = rng.randint(0, max(0, context - 1 - int(positions[-1]))) if rng.random() < 0.3 else 0
    return positions + shift * (np.arange(length) >= head)


def stretched(places: np.ndarray, free: int, rng: random.Random) -> tuple[np.ndarray, int]:
    """Places of kept tokens moved apart where text was dropped, and by how much the document's end moves.

    Dropped text is never read: the document may be as long as `free` positions allow, and little of it kept.
    """
    if rng.random() < PLAIN_GAPS_SHARE or free < CHUNK or not len(places):
        return places, 0
    gaps = np.concatenate([[0], 1 + np.flatnonzero(np.diff(places) > 1)])
    most = int(free * rng.random() ** 2) // CHUNK
    moves = CHUNK * np.array(sorted(rng.randint(0, most) for _ in gaps))
    return places + moves[np.searchsorted(gaps, np.arange(len(places)), side="right") - 1], CHUNK * most
