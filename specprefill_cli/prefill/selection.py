"""From token importance to kept chunks: chunk means, budgets, the share of mass, spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.errors import UsageError
from specprefill_cli.prefill.fates import Fate, Plan, Span

if TYPE_CHECKING:
    from specprefill_cli.prefill.scorers.base import Scores
    from specprefill_cli.prompting import Prompt

# Chunks larger than usual are said to be too coarse where they keep this many times what was asked for.
USUAL_CHUNK, COARSE = 32, 1.25
# Share of the importance mass that `--keep auto` holds.
AUTO_MASS = 0.6


@dataclass(frozen=True)
class Selection:
    """The chosen chunks as a plan and as indices, and a warning when the budget was bent."""

    plan: Plan
    warning: str | None = None
    chunks: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))


def chunk_scores(importance: Tensor, chunk_size: int) -> Tensor:
    """Mean importance of every chunk: [n] -> [ceil(n / chunk_size)]; the last chunk averages its own tokens only."""
    chunk_size = min(chunk_size, len(importance))
    padding = -len(importance) % chunk_size
    sums = F.pad(importance.double(), (0, padding)).view(-1, chunk_size).sum(1)
    sizes = torch.full_like(sums, chunk_size)
    sizes[-1] = chunk_size - padding
    return sums / sizes


def with_neighbours(scores: Tensor, weight: float) -> Tensor:
    """Each chunk's score [n] and `weight` of its two neighbours': an answer may straddle chunks, and its sentence does."""
    beside = F.pad(scores, (1, 1))
    return scores + weight * (beside[:-2] + beside[2:])


def rank(scores: Tensor) -> Tensor:
    """Chunk indices from the most to the least important; equal scores in document order."""
    return torch.sort(scores, descending=True, stable=True).indices


def chunk_budget(keep: float, prompt_tokens: int, document_tokens: int, chunk_size: int) -> int:
    """How many chunks a keep ratio allows: head and tail count in the budget, and one chunk is always kept.

    Raises UsageError when `keep` is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise UsageError(f"keep ratio {keep}: must be above 0 and at most 1, or 'auto'")
    room = keep * prompt_tokens - (prompt_tokens - document_tokens)
    # A hair is taken off so that 0.1 * 30 in binary floating point does not round up to a fourth chunk.
    return max(1, min(math.ceil(room / chunk_size - 1e-9), math.ceil(document_tokens / chunk_size)))


def chunks_for_mass(scores: Tensor, share: float) -> int:
    """Size of the smallest set of chunks that holds `share` of the summed scores."""
    ordered = scores[rank(scores)].cumsum(0)
    return min(int((ordered < share * ordered[-1]).sum()) + 1, len(scores))


def select(
    importance: Tensor,
    keep: float | None,
    chunk_size: int,
    prompt_tokens: int,
    document: tuple[int, int],
    auto_mass: float | None = None,
    neighbours: float = 0.0,
) -> Selection:
    """Keep the most important chunks of a document.

    importance: [n] scores of the document's tokens; keep: ratio of all prompt tokens, or None for the smallest set that
    holds `auto_mass` of the scores' sum (AUTO_MASS where it is None)
    neighbours: weight of the chunks beside it in a chunk's score
    """
    start, end = document
    if end == start:
        return Selection(Plan(prompt_tokens, document, ()))
    scores = with_neighbours(chunk_scores(importance, chunk_size), neighbours)
    if keep is None:
        count = chunks_for_mass(scores, AUTO_MASS if auto_mass is None else auto_mass)
    else:
        count = chunk_budget(keep, prompt_tokens, end - start, chunk_size)
    chosen = torch.zeros(len(scores), dtype=torch.bool)
    chosen[rank(scores)[:count]] = True
    plan = Plan(prompt_tokens, document, spans_of(chosen, chunk_size, document))
    warning = None
    if not importance.any():
        warning = "every passage of the documents scored 0; kept the first ones: try another --scorer, or --mode full"
    elif keep is not None and plan.kept_ratio > keep + chunk_size / prompt_tokens:
        warning = (
            f"keep {keep:g} could not be held: question and instruction alone are "
            f"{(prompt_tokens - (end - start)) / prompt_tokens:.2f} of the prompt; kept {plan.kept_ratio:.2f}"
        )
    elif keep is not None and plan.kept_ratio > COARSE * keep and chunk_size > USUAL_CHUNK:
        warning = (
            f"keep {keep:g} could not be held: chunks of {chunk_size:,} tokens are too coarse; kept {plan.kept_ratio:.2f}: "
            "use a smaller --chunk-size"
        )
    return Selection(plan, warning, chosen.nonzero()[:, 0])


def select_scored(scores: Scores, prompt: Prompt, keep: float | None, chunk_size: int) -> Selection:
    """`select` with all that a scorer says, for a prompt in the target's tokens."""
    return select(
        scores.importance, keep, chunk_size, prompt.length, prompt.document, scores.auto_mass, scores.neighbours
    )


def spans_of(chosen: Tensor, chunk_size: int, document: tuple[int, int]) -> tuple[Span, ...]:
    """Maximal runs of chosen (recompute) and other (drop) chunks [chunks] as spans of prompt tokens."""
    return spans_of_fates(chosen.long(), (Fate.DROP, Fate.RECOMPUTE), None, chunk_size, document)


def spans_of_fates(
    fates: Tensor, names: Sequence[Fate], risks: Tensor | None, chunk_size: int, document: tuple[int, int]
) -> tuple[Span, ...]:
    """Maximal runs of chunks with one fate as spans of prompt tokens; a span's risk is the sum of its chunks'.

    fates: [chunks] indices into names; risks: [chunks] or None
    """
    start, end = document
    values, counts = torch.unique_consecutive(fates, return_counts=True)
    edges = [0, *counts.cumsum(0).tolist()]
    return tuple(
        Span(
            start + low * chunk_size,
            min(start + high * chunk_size, end),
            names[value],
            None if risks is None else float(risks[low:high].sum()),
        )
        for value, low, high in zip(values.tolist(), edges, edges[1:], strict=False)
    )
