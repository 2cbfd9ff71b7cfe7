"""Controls of draft KV: the same cache with other contents, and the same budget spent otherwise.

Each control prefills as a mode does, with the product's own parts, so that it can be timed and can answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specprefill_cli.models.adapter import prefill
from specprefill_cli.models.cache import PrefillState, rollback
from specprefill_cli.models.raw_kv import state_of
from specprefill_cli.prefill.checkpoints import SlotKv, copy_slots
from specprefill_cli.prefill.fates import Fate, Plan, Span
from specprefill_cli.prefill.mapped_cache import repair
from specprefill_cli.prefill.modes.base import PrefillResult
from specprefill_cli.prefill.modes.draft_kv import check_and_choose, find_map, recomputed, score_and_map
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.projection import KvMap
from specprefill_cli.prefill.recompute_policy import int_fate, plan_of, tokens_of
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scores
from specprefill_cli.prefill.scorers.random import seed_of

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session
    from specprefill_cli.lab.evaluation.datasets import Item
    from specprefill_cli.settings import Settings


def mapped_only(request: PrefillRequest, settings: Settings) -> PrefillResult:
    """All KV but the tail's is mapped: no checkpoints, nothing recomputed."""
    scores, state = score_and_map(request, settings, find_map(request, settings))
    return tail_alone(request, scores, state)


def zero_kv(request: PrefillRequest, settings: Settings) -> PrefillResult:
    """As mapped only, but every key and value is zero."""
    scores, state = score_and_map(request, settings, find_map(request, settings))
    with request.clock.phase("mapping"):
        state = fresh(zeroed(everything_of(state)))
    return tail_alone(request, scores, state)


def wrong_document(other: PrefillState, request: PrefillRequest, settings: Settings) -> PrefillResult:
    """As mapped only, but the document's KV is that of another document."""
    scores, state = score_and_map(request, settings, find_map(request, settings))
    with request.clock.phase("mapping"):
        state = fresh(spliced(everything_of(state), other, request.prompt.document))
    return tail_alone(request, scores, state)


def accepted_replaced(other: PrefillState | None, request: PrefillRequest, settings: Settings) -> PrefillResult:
    """Draft KV with another document's KV, or zeros, in place of what it accepts.

    The chunks are chosen and the checkpoints computed before: nothing differs but the contents of accepted slots.
    """
    checked, fates = check_and_choose(request, settings)
    with request.clock.phase("mapping"):
        held = everything_of(checked.state)
        contents = zeroed(held) if other is None else spliced(held, other, request.prompt.document)
        state = fresh(exchanged(held, contents, accepted_slots(request, fates, checked.seen.computed)))
    return recomputed(request, replace(checked, state=state), fates)


def random_recomputed(request: PrefillRequest, settings: Settings) -> PrefillResult:
    """Draft KV whose budget is spent on chunks drawn at random in place of the riskiest."""
    checked, fates = check_and_choose(request, settings)
    with request.clock.phase("selection"):
        fates = fates[random_order(len(fates), seed_of(request))]
    return recomputed(request, checked, fates)


def rest_dropped(request: PrefillRequest, settings: Settings) -> PrefillResult:
    """The tokens that draft KV computes (recomputed chunks and checkpoints) are prefilled, and all others dropped."""
    checked, fates = check_and_choose(request, settings)
    prompt = request.prompt
    with request.clock.phase("selection"):
        plan = plan_of(request, fates, checked.risks, checked.seen.computed)
        spans = tuple(span if span.fate is Fate.RECOMPUTE else replace(span, fate=Fate.DROP) for span in plan.spans)
        positions = torch.unique(torch.cat([plan.kept_positions(), checked.seen.computed]))
    with request.clock.phase("target_prefill"):
        logits, state = prefill(request.pair.target.model, prompt.tokens[positions], positions, request.prefill_chunk)
    return PrefillResult(logits, state, replace(plan, spans=spans), checked.scores.importance)


def with_map(kv_map: KvMap, request: PrefillRequest, settings: Settings) -> PrefillResult:
    """Draft KV with one map of the pair's, whether or not it is the best of its kind."""
    calibration = replace(request.pair.kv_calibration, maps={kv_map.name: kv_map})
    pair = replace(request.pair, calibration=calibration)
    settings = replace(settings, exact_layers=kv_map.exact_layers)
    return MODES["draft-kv"].prefill(replace(request, pair=pair), settings)


def tail_alone(request: PrefillRequest, scores: Scores, state: PrefillState) -> PrefillResult:
    """The tail computed on a cache that is taken as it is."""
    with request.clock.phase("target_prefill"):
        logits = repair(request, state, torch.arange(0))
    prompt = request.prompt
    plan = Plan(prompt.length, prompt.document, (Span(*prompt.document, Fate.ACCEPT),))
    return PrefillResult(logits, state, plan, scores.importance, neighbours=scores.neighbours)


def other_document(items: Sequence[Item], number: int) -> Item | None:
    """The next question, in a circle, that is asked about another text of at least this length, or else the longest.

    None where all ask about the same text.
    """
    text = items[number].collection.text
    circle = [items[(number + step) % len(items)] for step in range(1, len(items))]
    others = [item for item in circle if item.collection.text != text]
    long_enough = (item for item in others if len(item.collection.text) >= len(text))
    return next(long_enough, max(others, key=lambda item: len(item.collection.text), default=None))


def mapped_kv(session: Session, item: Item, settings: Settings) -> PrefillState:
    """The mapped cache of a question's head and document, as it is before anything is computed by the target."""
    request = session.request(item.collection, item.question, settings)
    state = score_and_map(request, settings, find_map(request, settings))[1]
    rollback(state, request.prompt.document[1])
    return state


def random_order(count: int, seed: int) -> Tensor:
    """The numbers below `count`, shuffled by the seed."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def accepted_slots(request: PrefillRequest, fates: Tensor, computed: Tensor) -> Tensor:
    """Prompt tokens, ascending, whose mapped KV stays: in accepted chunks [chunks], and not computed as checkpoints [C]."""
    slots = tokens_of(fates == int_fate(Fate.ACCEPT), request.chunk_size, request.prompt.document)
    return slots[~torch.isin(slots, computed)]


def exchanged(held: SlotKv, other: SlotKv, slots: Tensor) -> SlotKv:
    """The copy of a whole cache with what another such copy holds in some slots [C]."""
    layers = tuple(
        tuple(own.index_copy(1, slots, foreign[:, slots]) for own, foreign in zip(mine, theirs, strict=True))
        for mine, theirs in zip(held.layers, other.layers, strict=True)
    )
    return SlotKv(held.slots, layers)


def everything_of(state: PrefillState) -> SlotKv:
    return copy_slots(state, torch.arange(state.length))


def at(held: SlotKv, slots: Tensor) -> SlotKv:
    """The part of a copy that lies in slots [C] of it."""
    return SlotKv(slots, tuple((keys[:, slots], values[:, slots]) for keys, values in held.layers))


def fresh(held: SlotKv) -> PrefillState:
    """A cache of its own with what was copied."""
    return state_of([(keys.clone(), values.clone()) for keys, values in held.layers], held.slots)


def zeroed(held: SlotKv) -> SlotKv:
    return SlotKv(held.slots, tuple((torch.zeros_like(keys), torch.zeros_like(values)) for keys, values in held.layers))


def spliced(held: SlotKv, wrong: PrefillState, document: tuple[int, int]) -> SlotKv:
    """The copy with another document's keys and values in the document's slots, from its first again where it is shorter.

    wrong: a cache of the same head and the other document
    """
    start, end = document
    slots = torch.arange(start, end)
    places = start + (slots - start) % (wrong.length - start)
    layers = []
    for (keys, values), other in zip(held.layers, wrong.cache.layers, strict=True):
        keys, values = keys.clone(), values.clone()
        keys[:, slots] = other.keys[0][:, places]
        values[:, slots] = other.values[0][:, places]
        layers.append((keys, values))
    return SlotKv(held.slots, tuple(layers))
