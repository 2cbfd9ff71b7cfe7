"""From token importance to selected chunks: chunk means, budgets, ranks and spans; and a warning of spread evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.documents.sentences import sentence_ranges
from specprefill_cli.errors import UsageError
from specprefill_cli.prefill.fates import Plan, Span
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import AutoBudget, Scores
from specprefill_cli.record import Fate

# Tokens of a sentence that a chunk is widened by at most, and characters around a chunk in which its sentences are looked for.
LONGEST_REST, SENTENCE_REACH = 48, 400
# What `--keep auto` is assumed to keep before scoring: three in four questions about short documents keep less.
ASSUMED_KEEP = 0.25
# Share of the target's context that `--keep auto` fills at most with a document beyond it.
AUTO_CONTEXT_SHARE = 0.25
# Fewer chunks are judged as so many: the neighbours of the best chunk are important because it is.
FEWEST_CHUNKS = 10
SPREAD = "the evidence is spread over the whole document; raise --keep"


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected chunks as a plan and as indices [k], and a warning where the keep ratio could not be held."""

    plan: Plan
    chunks: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    warnings: tuple[str, ...] = ()


def chunk_scores(importance: Tensor, chunk_size: int) -> Tensor:
    """Mean importance of every chunk: [n] -> [ceil(n / chunk_size)]; the last chunk averages its own tokens only."""
    chunk_size = min(chunk_size, len(importance))
    padding = -len(importance) % chunk_size
    sums = F.pad(importance.double(), (0, padding)).view(-1, chunk_size).sum(1)
    sizes = torch.full_like(sums, chunk_size)
    sizes[-1] = chunk_size - padding
    return sums / sizes


def with_neighbours(scores: Tensor, weight: float) -> Tensor:
    """Each chunk's score [n] plus `weight` times those of its two neighbours."""
    padded = F.pad(scores, (1, 1))
    return scores + weight * (padded[:-2] + padded[2:])


def rank(scores: Tensor) -> Tensor:
    """Chunk indices from the most to the least important; equal scores in document order."""
    return torch.sort(scores, descending=True, stable=True).indices


def chunk_budget(keep: float, prompt_tokens: int, document_tokens: int, chunk_size: int) -> int:
    """How many chunks a keep ratio allows: prefix and suffix count in the budget, but do not starve the document.

    It gets at least `document_floor` tokens, and one chunk. Raises UsageError when `keep` is not in (0, 1].
    """
    if not 0 < keep <= 1:
        raise UsageError(f"keep ratio {keep}: must be above 0 and at most 1, or 'auto'")
    room = max(keep * prompt_tokens - (prompt_tokens - document_tokens), document_floor(keep, document_tokens))
    # The small constant keeps 0.1 * 30 in binary floating point from rounding up to a fourth chunk.
    return max(1, min(math.ceil(room / chunk_size - 1e-9), math.ceil(document_tokens / chunk_size)))


def document_floor(keep: float, document_tokens: int) -> float:
    """Document tokens that are kept however long question and instruction are: half of the keep ratio."""
    return keep * document_tokens / 2


def chunks_for_mass(scores: Tensor, share: float, most: int | None = None) -> int:
    """Size of the smallest set of chunks that holds `share` of the summed scores of the `most` best ones, or of all."""
    ordered = scores[rank(scores)[:most]].cumsum(0)
    return min(int((ordered < share * ordered[-1]).sum()) + 1, len(ordered))


def own_tokens(start: int, end: int) -> tuple[int, int]:
    """The range of tokens that is kept for a chunk's where no sentences are completed."""
    return start, end


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
    widen: Callable[[int, int], tuple[int, int]] = own_tokens,
) -> Selection:
    """Keep the most important chunks of a document.

    importance: [n] scores of the document's tokens; keep: share of all prompt tokens, or None for `auto_budget`
    neighbours: weight of a chunk's two neighbours in its rank; limit: document tokens kept at most
    widen: the range of tokens [start, end) that is kept for a chunk's
    """
    start, end = document
    if end == start:
        return Selection(plan=Plan(prompt_tokens, document, ()))
    scores = with_neighbours(chunk_scores(importance, chunk_size), neighbours)
    if keep is None:
        budget = auto_budget or AutoBudget()
        most = None if budget.tokens is None else math.ceil(budget.tokens / chunk_size)
        count = chunks_for_mass(scores, budget.share, most)
    else:
        count = chunk_budget(keep, prompt_tokens, end - start, chunk_size)
    if limit is not None:
        count = min(count, max(1, limit // chunk_size))
    kept, chunks = widened_tokens(rank(scores), count * chunk_size, end - start, chunk_size, widen)
    spans = fate_spans(kept.long(), (Fate.DROP, Fate.RECOMPUTE), None, 1, document)
    plan = Plan(prompt_tokens, document, spans)
    warning = selection_warning(plan, importance, keep)
    return Selection(plan=plan, chunks=chunks, warnings=(warning,) if warning else ())


def widened_tokens(
    ranked: Tensor, budget: int, tokens: int, chunk_size: int, widen: Callable[[int, int], tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Which document tokens [tokens] are kept (bool), and the chunks [k] that they are kept for, in document order.

    Chunks are taken in order of rank, each widened where that fits the budget of tokens, until the next one does not fit.
    """
    kept, taken, room = torch.zeros(tokens, dtype=torch.bool), [], budget
    for chunk in ranked.tolist():
        own = chunk * chunk_size, min((chunk + 1) * chunk_size, tokens)
        for low, high in (widen(*own), own):
            added = high - low - int(kept[low:high].sum())
            if added <= room:
                kept[low:high] = True
                break
        else:
            break
        room -= added
        taken.append(chunk)
    return kept, torch.tensor(sorted(taken), dtype=torch.long)


def whole_sentences(text: str, offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The range of document tokens [start, end), with the rest of the sentences that its two ends cut.

    An end stays where more than `LONGEST_REST` tokens are missing. offsets: [n, 2] characters of the document's tokens in `text`
    """
    low, high = int(offsets[start, 0]), int(offsets[end - 1, 1])
    # Tokens begin or end with the blank between sentences.
    own = text[low:high]
    low, high = low + len(own) - len(own.lstrip()), high - (len(own) - len(own.rstrip()))
    sentences = list(sentence_ranges(text, max(0, low - SENTENCE_REACH), min(len(text), high + SENTENCE_REACH)))
    first = max((begin for begin, _ in sentences if begin <= low), default=low)
    last = min((stop for _, stop in sentences if stop >= high), default=high)
    begin = int(np.searchsorted(offsets[:, 0], first, side="right")) - 1
    stop = int(np.searchsorted(offsets[:, 0], last))
    return begin if start - begin <= LONGEST_REST else start, stop if stop - end <= LONGEST_REST else end


def selection_warning(plan: Plan, importance: Tensor, keep: float | None) -> str | None:
    """Why a selection is not what was asked for, or None."""
    if not importance.any():
        return "every passage of the documents scored 0; kept the first ones: try another --scorer, or --mode full"
    if keep is None:
        return None
    start, end = plan.document
    outside = plan.prompt_tokens - (end - start)
    starved = keep * plan.prompt_tokens - outside < document_floor(keep, end - start)
    if starved and plan.kept_ratio > keep:
        kept = plan.kept_tokens - outside
        return (
            f"keep {keep:g} could not be held: question and instruction alone are {outside / plan.prompt_tokens:.2f} of "
            f"the prompt; kept {plan.kept_ratio:.2f}, {kept:,} of {end - start:,} document tokens"
        )
    return None


def select_scored(request: PrefillRequest, scores: Scores, capped: bool = True) -> Selection:
    """`select` with all that a scorer returned, for a prompt in the target's tokens.

    capped: keep no more than the target's context has room for
    """
    room, length = request.answer_room, request.prompt.length
    limit = room - (length - request.document_tokens) if capped and length > room else None
    if limit is not None and request.keep is None:
        limit = min(limit, int(AUTO_CONTEXT_SHARE * room))
    selection = select(
        scores.importance,
        keep=request.keep,
        chunk_size=request.chunk_size,
        prompt_tokens=request.prompt.length,
        document=request.prompt.document,
        auto_budget=scores.auto_budget,
        neighbours=scores.neighbours,
        limit=limit,
        widen=partial(whole_sentences, request.document_text, request.prompt.offsets)
        if scores.whole_sentences
        else own_tokens,
    )
    if limit is None or request.keep is None or request.keep * length <= room:
        return selection
    return replace(selection, warnings=(*selection.warnings, cap_warning(request, selection.plan)))


def cap_warning(request: PrefillRequest, plan: Plan) -> str:
    """What a keep ratio asked for, and what the target's context has room for."""
    target = request.pair.target
    return (
        f"keep {request.keep:g} of {plan.prompt_tokens:,} tokens does not fit {target.name}'s context of {target.context:,} "
        f"with {request.max_new_tokens:,} tokens of answer; kept {plan.kept_tokens:,}, {plan.kept_ratio:.3f}"
    )


def expected_tokens(request: PrefillRequest) -> int:
    """Tokens that a selection will keep; with `--keep auto`, known only after scoring, a quarter is assumed."""
    return tokens_at(ASSUMED_KEEP if request.keep is None else request.keep, request)


def tokens_at(keep: float, request: PrefillRequest) -> int:
    """Tokens that a selection keeps at a keep ratio, up to the size of a chunk."""
    tokens, document_tokens = request.prompt.length, request.document_tokens
    document = max(request.chunk_size, int(document_floor(keep, document_tokens)))
    return min(tokens, max(int(keep * tokens), tokens - document_tokens + document), request.answer_room)


def fate_spans(
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
    fits = request.prompt.length <= request.answer_room
    return (f"{SPREAD} or use --mode full" if fits else SPREAD,)
