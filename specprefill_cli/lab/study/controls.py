"""Controls of draft KV: the same cache with other contents, and the same budget spent differently.

Each control prefills like a mode, so that it can be timed and can answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specprefill_cli.answering.session import Session
from specprefill_cli.draft_kv.checkpoints import SlotKv, copy_slots
from specprefill_cli.draft_kv.gate import ACCEPT, chunk_tokens, plan_from_fates, risk_limit
from specprefill_cli.draft_kv.mapped_cache import MappedPrompt, map_prompt, repair, score_and_map
from specprefill_cli.draft_kv.modes import DraftKvMode, Fates, recompute_chunks
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.cache import KvCacheState, new_state
from specprefill_cli.prefill.fates import Plan, Span
from specprefill_cli.prefill.mode import PrefillResult
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scores
from specprefill_cli.prefill.scorers.lexical import question_seed
from specprefill_cli.record import Fate
from specprefill_cli.settings import Settings

# Makes other contents from the copy of a whole cache and the document's range of slots.
Contents = Callable[[SlotKv, tuple[int, int]], SlotKv]


def replace_all(contents: Contents, request: PrefillRequest) -> PrefillResult:
    """Map all KV except the suffix's, then replace it by other contents: no checkpoint tokens, nothing recomputed."""
    scores, state = score_and_map(request, find_map(request, DraftKvMode.name))
    with request.clock.phase("mapping"):
        state = cache_of(contents(copy_cache(state), request.prompt.document))
    return prefill_suffix(request, scores, state)


def map_only(request: PrefillRequest) -> PrefillResult:
    """Map all KV except the suffix's: no checkpoint tokens, nothing recomputed."""
    return prefill_suffix(request, *score_and_map(request, find_map(request, DraftKvMode.name)))


def replace_accepted(contents: Contents, request: PrefillRequest) -> PrefillResult:
    """Draft KV with other contents in the accepted slots; the recomputed tokens stay the same."""
    mapped, fates = map_and_choose(request)
    with request.clock.phase("mapping"):
        kv = copy_cache(mapped.state)
        other_kv = contents(kv, request.prompt.document)
        state = cache_of(
            exchange_slots(kv, other_kv, accepted_slots(request, fates.chunks, mapped.inspection.computed))
        )
    return recompute_chunks(request, replace(mapped, state=state), fates.chunks)


def recompute_random(request: PrefillRequest) -> PrefillResult:
    """Draft KV that spends its budget on random chunks instead of the riskiest."""
    mapped, fates = map_and_choose(request)
    with request.clock.phase("selection"):
        shuffled = shuffle_fates(request, fates.chunks)
    return recompute_chunks(request, mapped, shuffled)


def drop_rest(request: PrefillRequest) -> PrefillResult:
    """Prefill only the tokens that draft KV computes (recomputed chunks and checkpoint tokens); drop all others."""
    mapped, fates = map_and_choose(request)
    with request.clock.phase("selection"):
        plan = plan_from_fates(request, fates.chunks, mapped.risks, mapped.inspection.computed)
        spans = tuple(span if span.fate is Fate.RECOMPUTE else replace(span, fate=Fate.DROP) for span in plan.spans)
        positions = torch.unique(torch.cat([plan.kept_positions(), mapped.inspection.computed]))
    with request.clock.phase("target_prefill"):
        logits, state = prefill(
            request.target.model, request.prompt.tokens[positions], positions, request.prefill_chunk
        )
    plan = replace(plan, spans=spans)
    return PrefillResult(logits=logits, state=state, plan=plan, importance=mapped.scores.importance)


def map_and_choose(request: PrefillRequest) -> tuple[MappedPrompt, Fates]:
    """Map a prompt and choose the fates of mode `draft-kv`."""
    mode, kv_map = DraftKvMode(), find_map(request, DraftKvMode.name)
    mapped = map_prompt(request, kv_map)
    with request.clock.phase("selection"):
        return mapped, mode.choose_fates(request, mapped, risk_limit(request.settings.accept_risk, kv_map.gate))


def prefill_suffix(request: PrefillRequest, scores: Scores, state: KvCacheState) -> PrefillResult:
    """Compute the suffix on a cache whose document is wholly accepted."""
    with request.clock.phase("target_prefill"):
        logits = repair(request, state, torch.arange(0))
    prompt = request.prompt
    plan = Plan(prompt.length, prompt.document, (Span(*prompt.document, Fate.ACCEPT),))
    return PrefillResult(logits=logits, state=state, plan=plan, importance=scores.importance)


def other_document(items: Sequence[Item], number: int) -> Item | None:
    """The next question, cyclically, about another text of at least the same length, else that about the longest other text.

    None if all questions are about the same text.
    """
    text = items[number].collection.text
    others = [item for item in (*items[number + 1 :], *items[:number]) if item.collection.text != text]
    long_enough = (item for item in others if len(item.collection.text) >= len(text))
    return next(long_enough, max(others, key=lambda item: len(item.collection.text), default=None))


def mapped_kv(session: Session, item: Item, settings: Settings) -> SlotKv:
    """The mapped KV of a question's prefix and document, before the target computes anything."""
    request = session.request(item.collection, item.question, settings)
    _, state = score_and_map(request, find_map(request, DraftKvMode.name))
    return copy_slots(state, torch.arange(request.prompt.document[1]))


def shuffle_fates(request: PrefillRequest, fates: Tensor) -> Tensor:
    """Shuffle fates [chunks] with a seed from the question."""
    generator = torch.Generator().manual_seed(question_seed(request))
    return fates[torch.randperm(len(fates), generator=generator)]


def accepted_slots(request: PrefillRequest, fates: Tensor, computed: Tensor) -> Tensor:
    """Ascending slots whose mapped KV stays: in accepted chunks (fates [chunks]) and not among the computed slots [C]."""
    slots = chunk_tokens(fates == ACCEPT, request.chunk_size, request.prompt.document)
    return slots[~torch.isin(slots, computed)]


def copy_cache(state: KvCacheState) -> SlotKv:
    """Copy a whole cache."""
    return copy_slots(state, torch.arange(state.length))


def cache_of(kv: SlotKv) -> KvCacheState:
    """Make a new cache from a copy."""
    state = new_state(len(kv.slots))
    for number, (keys, values) in enumerate(kv.layers):
        state.cache.update(keys[None], values[None], number)
    state.positions = kv.slots.clone()
    return state


def zero_kv(kv: SlotKv, _document: tuple[int, int]) -> SlotKv:
    """Replace all keys and values of a copy by zeros."""
    return SlotKv(kv.slots, tuple((torch.zeros_like(keys), torch.zeros_like(values)) for keys, values in kv.layers))


def splice_document(wrong: SlotKv, kv: SlotKv, document: tuple[int, int]) -> SlotKv:
    """Put another document's KV in the document's slots of a copy, repeated if it is shorter.

    wrong: a copy of a cache with the same prefix and the other document
    """
    start, end = document
    slots = torch.arange(start, end)
    return exchange_slots(kv, wrong, slots, start + (slots - start) % (len(wrong.slots) - start))


def exchange_slots(kv: SlotKv, other_kv: SlotKv, slots: Tensor, sources: Tensor | None = None) -> SlotKv:
    """Replace some slots [C] of a whole cache's copy by those of another copy; sources: the other's slots [C], None: the same."""
    sources = slots if sources is None else sources
    layers = zip(kv.layers, other_kv.layers, strict=True)
    return SlotKv(
        kv.slots,
        tuple(
            (keys.index_copy(1, slots, new_keys[:, sources]), values.index_copy(1, slots, new_values[:, sources]))
            for (keys, values), (new_keys, new_values) in layers
        ),
    )
