"""The plan of fates: what happens to each span of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class Fate(StrEnum):
    """What becomes of a span: computed by the target, taken from the draft, or left out."""

    RECOMPUTE = "recompute"
    ACCEPT = "accept"
    DROP = "drop"


@dataclass(frozen=True)
class Span:
    """Prompt tokens [start, end) with one fate; `risk` is None where no risk was estimated."""

    start: int
    end: int
    fate: Fate
    risk: float | None = None

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Plan:
    """Fates of the document's spans, in order and without holes; head and tail are always computed.

    prompt_tokens: length M of the whole prompt; document: token range [start, end) in it
    checkpoints: tokens of accepted or dropped spans that the target computes all the same
    """

    prompt_tokens: int
    document: tuple[int, int]
    spans: tuple[Span, ...]
    checkpoints: int = 0

    @property
    def kept_tokens(self) -> int:
        """Prompt tokens that the target computes, head and tail included."""
        start, end = self.document
        outside = self.prompt_tokens - (end - start)
        return outside + self.checkpoints + sum(span.length for span in self.spans if span.fate is Fate.RECOMPUTE)

    @property
    def kept_ratio(self) -> float:
        return self.kept_tokens / self.prompt_tokens

    def kept_positions(self) -> Tensor:
        """Positions, ascending, of head, tail and all recomputed spans: without checkpoints in other spans."""
        kept = torch.ones(self.prompt_tokens, dtype=torch.bool)
        for span in self.spans:
            if span.fate is not Fate.RECOMPUTE:
                kept[span.start : span.end] = False
        return kept.nonzero()[:, 0]


def full_plan(prompt_tokens: int, document: tuple[int, int]) -> Plan:
    """The plan in which the target computes everything."""
    spans = (Span(*document, Fate.RECOMPUTE),) if document[1] > document[0] else ()
    return Plan(prompt_tokens, document, spans)
