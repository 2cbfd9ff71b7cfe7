"""From token importance to selected chunks and spans."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.documents.sentences import sentences_around
from specprefill_cli.prefill.fates import Plan, fate_spans
from specprefill_cli.prefill.importance import OUTLINE_KEEP, outline_importance
from specprefill_cli.prefill.intent import is_about_everything
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import AutoBudget, Scores
from specprefill_cli.record import Fate

# Most tokens that complete a sentence of a chunk.
LONGEST_REST = 48
# Tokens that `--keep auto` is assumed to keep: for a target with a budget of its own (the median of 90 questions), and for others
# (about that of 278); and the share at most.
CALIBRATED_TOKENS, ASSUMED_TOKENS, ASSUMED_KEEP = 96, 240, 0.36
# Share of the target's context that `--keep auto` fills at most with a document beyond it.
AUTO_CONTEXT_SHARE = 0.25
# Fewer chunks are judged as this many: the best chunk makes its neighbours important.
FEWEST_CHUNKS = 10
# Maps a chunk's document tokens [start, end) to the range that is kept for it.
Widen = Callable[[int, int], tuple[int, int]]
NO_IMPORTANCE = "every passage of the documents scored 0; kept the first ones: try another --scorer, or --mode full"
OUTLINE = "a question about the whole document: kept headings and first sentences; --mode full reads it all"
SPREAD = "the evidence is spread over the whole document; raise --keep"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected chunks as a plan and as indices [k], and warnings."""

    plan: Plan
    chunks: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    warnings: tuple[str, ...] = ()


def chunk_scores(importance: Tensor, chunk_size: int) -> Tensor:
    """Mean importance of every chunk: [n] -> [ceil(n / chunk_size)]; the last chunk averages its own tokens only."""
    return F.avg_pool1d(importance.double()[None], chunk_size, ceil_mode=True)[0]


def add_neighbours(scores: Tensor, weight: float) -> Tensor:
    """Each chunk's score [n] plus `weight` times those of its two neighbours."""
    padded = F.pad(scores, (1, 1))
    return scores + weight * (padded[:-2] + padded[2:])


def rank_chunks(scores: Tensor) -> Tensor:
    """Chunk indices from the most to the least important; equal scores in document order."""
    return torch.sort(scores, descending=True, stable=True).indices


def chunk_budget(keep: float, prompt_tokens: int, document_tokens: int, chunk_size: int) -> int:
    """How many chunks a keep ratio of the prompt allows; the document gets half of it, and a chunk."""
    room = max(keep * prompt_tokens - (prompt_tokens - document_tokens), keep * document_tokens / 2)
    # The small constant keeps 0.1 * 30 in binary floating point from rounding up to a fourth chunk.
    return max(1, min(math.ceil(room / chunk_size - 1e-9), math.ceil(document_tokens / chunk_size)))


def chunks_for_mass(scores: Tensor, share: float, best: int | None = None) -> int:
    """Size of the smallest set of chunks that holds `share` of the summed scores of the `best` chunks, or of all."""
    ordered = scores[rank_chunks(scores)[:best]].cumsum(0)
    return min(int((ordered < share * ordered[-1]).sum()) + 1, len(ordered))


def select(
    importance: Tensor,
    *,
    keep: float | None,
    chunk_size: int,
    prompt_tokens: int,
    document: tuple[int, int],
    auto_budget: AutoBudget | None = None,
    neighbours: float = 0.0,
    limit: int | None = None,
    widen: Widen | None = None,
) -> Selection:
    """Keep the most important chunks of a document.

    importance: [n] scores of the document's tokens; keep: share of all prompt tokens, or None for `auto_budget`
    neighbours: weight of a chunk's two neighbours in its rank; limit: document tokens kept at most
    """
    start, end = document
    if end == start:
        return Selection(plan=Plan(prompt_tokens, document, ()))
    scores = add_neighbours(chunk_scores(importance, chunk_size), neighbours)
    if keep is None:
        budget = auto_budget or AutoBudget()
        best = None if budget.tokens is None else math.ceil(budget.tokens / chunk_size)
        count = chunks_for_mass(scores, budget.share, best)
    else:
        count = chunk_budget(keep, prompt_tokens, end - start, chunk_size)
    if limit is not None:
        count = min(count, max(1, limit // chunk_size))
    kept, chunks = keep_chunks(rank_chunks(scores), count * chunk_size, end - start, chunk_size, widen)
    plan = Plan(prompt_tokens, document, fate_spans(kept.long(), (Fate.DROP, Fate.RECOMPUTE), None, 1, document))
    return Selection(plan=plan, chunks=chunks, warnings=() if importance.any() else (NO_IMPORTANCE,))


def keep_chunks(
    ranked: Tensor, budget: int, tokens: int, chunk_size: int, widen: Widen | None = None
) -> tuple[Tensor, Tensor]:
    """Which tokens are kept, and for which chunks [k]: by rank, widened where that fits the budget."""
    kept, kept_chunks, room = torch.zeros(tokens, dtype=torch.bool), [], budget
    for chunk in ranked.tolist():
        bounds = chunk * chunk_size, min((chunk + 1) * chunk_size, tokens)
        for low, high in (widen(*bounds), bounds) if widen else (bounds,):
            added = high - low - int(kept[low:high].sum())
            if added <= room:
                kept[low:high] = True
                break
        else:
            break
        room -= added
        kept_chunks.append(chunk)
    return kept, torch.tensor(sorted(kept_chunks), dtype=torch.long)


def complete_sentences(text: str, offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The range of document tokens [start, end), with the rest of the sentences that its ends cut.

    An end stays where more than `LONGEST_REST` tokens are missing. offsets: [n, 2] characters of the document's tokens in `text`
    """
    low, high = int(offsets[start, 0]), int(offsets[end - 1, 1])
    # Tokens begin or end with the blank between sentences.
    chunk = text[low:high]
    low, high = low + len(chunk) - len(chunk.lstrip()), high - (len(chunk) - len(chunk.rstrip()))
    first, last = sentences_around(text, low, high)
    # Several tokens may hold a character together; a chunk of blanks stays as it is.
    begin = min(start, int(np.searchsorted(offsets[:, 1], first, side="right")))
    stop = max(end, int(np.searchsorted(offsets[:, 0], last)))
    return begin if start - begin <= LONGEST_REST else start, stop if stop - end <= LONGEST_REST else end


def select_scored(request: PrefillRequest, scores: Scores, capped: bool = True) -> Selection:
    """`select` with a scorer's result, in the target's tokens. capped: no more than its context has room for."""
    keep, room, prompt, text = request.keep, request.prompt_room, request.prompt, request.collection.text
    limit = room - (prompt.length - request.document_tokens) if capped and prompt.length > room else None
    if limit is not None and keep is None:
        limit = min(limit, int(AUTO_CONTEXT_SHARE * room))
    importance, share, warnings = scores.importance, keep, scores.warnings
    if keep is None and is_about_everything(request.question):
        importance, share = outline_importance(importance, text, prompt.offsets), OUTLINE_KEEP
        warnings = (OUTLINE, *warnings)
    selection = select(
        importance,
        keep=share,
        chunk_size=request.chunk_size,
        prompt_tokens=prompt.length,
        document=prompt.document,
        auto_budget=scores.auto_budget,
        neighbours=scores.neighbours,
        limit=limit,
        widen=partial(complete_sentences, text, prompt.offsets) if scores.whole_sentences else None,
    )
    kept, fixed = selection.plan.kept_tokens, prompt.length - request.document_tokens
    if keep is not None and keep * prompt.length < fixed and kept > keep * prompt.length + request.chunk_size:
        taken = f"{fixed:,} of {prompt.length:,} tokens"
        warnings += (f"keep {keep:g}: question and instruction alone take {taken}; {kept:,} are kept",)
    if limit is not None and keep is not None and keep * prompt.length > room:
        target = request.pair.target
        warnings += (
            f"keep {keep:g} of {prompt.length:,} tokens does not fit {target.name}'s context of {target.context:,} with "
            f"{request.max_new_tokens:,} tokens of answer; {kept:,} are kept",
        )
    if is_spread(scores, len(selection.chunks), request.chunk_size):
        warnings += (f"{SPREAD} or use --mode full" if prompt.length <= room else SPREAD,)
    return replace(selection, warnings=selection.warnings + warnings)


def expected_tokens(request: PrefillRequest) -> int:
    """Tokens that a selection will keep; with `--keep auto`, known only after scoring, an assumption."""
    keep = OUTLINE_KEEP if request.keep is None and is_about_everything(request.question) else request.keep
    if keep is not None:
        return tokens_at(keep, request)
    calibration = request.pair.target_calibration
    assumed = ASSUMED_TOKENS if calibration is None or calibration.auto_mass is None else CALIBRATED_TOKENS
    return min(tokens_at(ASSUMED_KEEP, request), request.prompt.length - request.document_tokens + assumed)


def tokens_at(keep: float, request: PrefillRequest) -> int:
    """Tokens that a selection keeps at a keep ratio, to within a chunk."""
    tokens, document_tokens = request.prompt.length, request.document_tokens
    kept = chunk_budget(keep, tokens, document_tokens, request.chunk_size) * request.chunk_size
    return min(tokens, tokens - document_tokens + kept, request.prompt_room)


def spread_ratio(scores: Tensor, kept: int) -> float:
    """Mean score of the next `kept` chunks in rank over that of the best; 0 if fewer are dropped."""
    kept = max(kept, FEWEST_CHUNKS)
    ordered = torch.sort(scores, descending=True).values
    best = float(ordered[:kept].mean())
    return float(ordered[kept : 2 * kept].mean()) / best if best > 0 and len(ordered) >= 2 * kept else 0.0


def is_spread(scores: Scores, kept: int, chunk_size: int) -> bool:
    """Whether dropped chunks are nearly as important as the `kept` ones, for scorers with a known limit."""
    if scores.spread_limit is None or not kept:
        return False
    ranked = add_neighbours(chunk_scores(scores.importance, chunk_size), scores.neighbours)
    return spread_ratio(ranked, kept) > scores.spread_limit
