"""Caches with other contents: mixtures of the target's own and mapped KV, and the controls of draft KV."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specprefill_cli.draft_kv.checkpoints import SlotKv, copy_slots
from specprefill_cli.draft_kv.gate import ACCEPT, chunk_tokens
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.models.running.cache import KvCacheState, new_state
from specprefill_cli.prefill.request import PrefillRequest


def other_document(items: Sequence[Item], number: int) -> Item | None:
    """The next question, cyclically, about another text of at least the same length, else that about the longest other text.

    None if all questions are about the same text.
    """
    text = items[number].collection.text
    others = [item for item in (*items[number + 1 :], *items[:number]) if item.collection.text != text]
    long_enough = (item for item in others if len(item.collection.text) >= len(text))
    return next(long_enough, max(others, key=lambda item: len(item.collection.text), default=None))


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


def zero_kv(kv: SlotKv) -> SlotKv:
    """Replace all keys and values of a copy by zeros."""
    return SlotKv(kv.slots, tuple((torch.zeros_like(keys), torch.zeros_like(values)) for keys, values in kv.layers))


def keep_slots(kv: SlotKv, kept: Tensor) -> SlotKv:
    """A copy reduced to slots [K], ascending."""
    return SlotKv(kv.slots[kept], tuple((keys[:, kept], values[:, kept]) for keys, values in kv.layers))


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


def exchange_layers(kv: SlotKv, other_kv: SlotKv, exchanged: range) -> SlotKv:
    """Replace some layers of a copy by those of another copy of the same slots."""
    layers = enumerate(zip(kv.layers, other_kv.layers, strict=True))
    return SlotKv(kv.slots, tuple(theirs if number in exchanged else ours for number, (ours, theirs) in layers))
