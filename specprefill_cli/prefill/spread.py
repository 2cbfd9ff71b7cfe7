"""Whether the evidence is spread over a document: then a selection drops much of what the answer needs."""

from __future__ import annotations

import torch
from torch import Tensor

from specprefill_cli.prefill.positions import answer_room
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scores
from specprefill_cli.prefill.selection import Selection, chunk_scores, with_neighbours

# Fewer chunks are judged as so many: the neighbours of the best chunk are important because it is.
FEWEST_CHUNKS = 10
SPREAD = "the evidence is spread over the whole document; raise --keep"


def spread(scores: Tensor, kept: int) -> float | None:
    """How important the chunks that come next in rank are beside the `kept` best ones: 0 (not at all) to 1 (as much).

    scores: [chunks], not negative. The mean of the next `kept` ones over that of the best; None where a selection drops
    fewer chunks than it keeps.
    """
    kept = max(kept, FEWEST_CHUNKS)
    ordered = torch.sort(scores, descending=True).values
    if len(ordered) < 2 * kept:
        return None
    best = float(ordered[:kept].mean())
    return float(ordered[kept : 2 * kept].mean()) / best if best > 0 else None


def spread_warnings(request: PrefillRequest, scores: Scores, selection: Selection) -> tuple[str, ...]:
    """A warning where dropped chunks are nearly as important as kept ones, for scorers whose limit is known."""
    if scores.spread_limit is None or not len(selection.chunks):
        return ()
    ranked = with_neighbours(chunk_scores(scores.importance, request.chunk_size), scores.neighbours)
    share = spread(ranked, len(selection.chunks))
    if share is None or share <= scores.spread_limit:
        return ()
    fits = request.prompt.length <= answer_room(request)
    return (f"{SPREAD} or use --mode full" if fits else SPREAD,)
