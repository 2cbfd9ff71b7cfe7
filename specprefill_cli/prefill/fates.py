"""Fates of document spans, the plan of a prompt's fates, and the positions of kept tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specprefill_cli.record import Fate

# Positions of all shortened gaps together, per kept token: text in which most positions are missing reads badly.
GAP_SHARE = 1


@dataclass(frozen=True)
class Span:
    """Prompt tokens [start, end) with the same fate; risk: None where it was not estimated."""

    start: int
    end: int
    fate: Fate
    risk: float | None = None


@dataclass(frozen=True)
class Plan:
    """Fates of the document's spans, in order and without gaps; prefix and suffix are always computed.

    prompt_tokens: length M of the whole prompt; document: token range [start, end) in it
    checkpoints: tokens of accepted or dropped spans that the target computes anyway
    """

    prompt_tokens: int
    document: tuple[int, int]
    spans: tuple[Span, ...]
    checkpoints: int = 0

    @property
    def kept_tokens(self) -> int:
        """Prompt tokens that the target computes, prefix and suffix included."""
        return len(self.kept_positions()) + self.checkpoints

    @property
    def kept_ratio(self) -> float:
        return self.kept_tokens / self.prompt_tokens

    def kept_positions(self) -> Tensor:
        """Positions, ascending, of prefix, suffix and recomputed spans, without checkpoint tokens of other spans."""
        kept = torch.ones(self.prompt_tokens, dtype=torch.bool)
        for span in self.spans:
            if span.fate is not Fate.RECOMPUTE:
                kept[span.start : span.end] = False
        return kept.nonzero()[:, 0]


def full_plan(prompt_tokens: int, document: tuple[int, int]) -> Plan:
    """The plan in which the target computes everything."""
    spans = (Span(*document, Fate.RECOMPUTE),) if document[1] > document[0] else ()
    return Plan(prompt_tokens, document, spans)


@dataclass(frozen=True, kw_only=True)
class CompactPositions:
    """Kept tokens with their gaps shortened evenly; order and distances inside a span stay as they are.

    tokens: [K] indices in the prompt, ascending; positions: [K] where the target computes them, ascending
    end: position of the answer's first token; factor: of each gap, 0 to 1
    """

    tokens: Tensor
    positions: Tensor
    end: int
    factor: float


def shorten_gaps(kept: Tensor, prompt_tokens: int, room: int) -> CompactPositions:
    """Positions below `room` for kept tokens [K <= room]; the original ones where these fit."""
    count = len(kept)
    dropped = prompt_tokens - count
    allowed = min(dropped, room - count)
    order = torch.arange(count)
    # Whole numbers: a rounded factor could move the last token out of the room.
    positions = order + (kept - order) * allowed // max(1, dropped)
    factor = allowed / dropped if dropped else 1.0
    return CompactPositions(tokens=kept, positions=positions, end=count + allowed, factor=factor)


def fate_spans(
    fates: Tensor, names: Sequence[Fate], risks: Tensor | None, chunk_size: int, document: tuple[int, int]
) -> tuple[Span, ...]:
    """Runs of chunks with one fate, [chunks] indices into names, as spans of tokens; risks: [chunks], added up."""
    start, end = document
    run_fates, counts = torch.unique_consecutive(fates, return_counts=True)
    edges = [0, *counts.cumsum(0).tolist()]
    spans = []
    for fate, low, high in zip(run_fates.tolist(), edges, edges[1:], strict=False):
        risk = None if risks is None else float(risks[low:high].sum())
        spans.append(Span(start + low * chunk_size, min(start + high * chunk_size, end), names[fate], risk))
    return tuple(spans)
