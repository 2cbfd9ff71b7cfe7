"""Where the target computes kept tokens: at their original positions, or with the gaps between them shortened."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import ORIGINAL

# Positions that shortened gaps take together, for each kept token: text in which most positions are missing reads badly.
GAP_SHARE = 1


@dataclass(frozen=True, kw_only=True)
class CompactPositions:
    """Kept tokens with their gaps shortened evenly; order and distances inside a span are the original ones.

    tokens: [K] indices in the prompt, ascending; positions: [K] where the target computes them, ascending
    end: position of the answer's first token; factor: what each gap was multiplied by, 0 to 1
    """

    tokens: Tensor
    positions: Tensor
    end: int
    factor: float


def shorten_gaps(kept: Tensor, prompt_tokens: int, room: int) -> CompactPositions:
    """Positions below `room` for kept tokens [K], ascending indices in a prompt; the original ones where these fit.

    Raises ValueError where there is not even room for the kept tokens without gaps.
    """
    count = len(kept)
    if count > room:
        raise ValueError(f"{count} kept tokens in {room} positions")
    dropped = prompt_tokens - count
    allowed = min(dropped, room - count)
    order = torch.arange(count)
    # Whole numbers: a rounded factor could move the last token out of the room.
    positions = order + (kept - order) * allowed // max(1, dropped)
    return CompactPositions(
        tokens=kept, positions=positions, end=count + allowed, factor=allowed / dropped if dropped else 1.0
    )


def answer_room(request: PrefillRequest) -> int:
    """Positions of the target's context that the longest answer leaves to the prompt."""
    return request.pair.target.context - request.max_new_tokens


def compact_positions(request: PrefillRequest, plan: Plan) -> CompactPositions | None:
    """The compact positions of a plan's kept tokens; None where they stay at the original ones."""
    if request.positions == ORIGINAL:
        return None
    kept = plan.kept_positions()
    return shorten_gaps(kept, plan.prompt_tokens, min(answer_room(request), len(kept) + GAP_SHARE * len(kept)))
