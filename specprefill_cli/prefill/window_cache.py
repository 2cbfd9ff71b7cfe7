"""Which windows of a document have their KV kept: a document larger than a cache must not evict its own windows."""

from __future__ import annotations

from collections.abc import Sequence

from specprefill_cli.models.cache import HEADROOM, layer_count
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.models.memory_estimate import cache_bytes
from specprefill_cli.prefill.prefix_cache import PrefixCache


def window_caches(
    prefixes: PrefixCache | None, draft: LoadedModel, lengths: Sequence[int], layers: int
) -> list[PrefixCache | None]:
    """The cache for each window: memory and disk for the first ones, then the disk alone, none beyond its limit too.

    lengths: tokens of each window's prompt; layers: how many of the draft's layers hold KV
    """
    if prefixes is None:
        return [None] * len(lengths)
    disk = PrefixCache(prefixes.store, capacity_bytes=0)
    disk_bytes = prefixes.store.capacity_bytes if prefixes.store is not None else 0
    caches: list[PrefixCache | None] = []
    used = 0
    for length in lengths:
        used += cache_bytes(draft.config, length + HEADROOM, draft.model.dtype) * layers // layer_count(draft.model)
        fits_disk = disk if used <= disk_bytes else None
        caches.append(prefixes if used <= prefixes.capacity_bytes else fits_disk)
    return caches


def write_now(prefixes: PrefixCache | None) -> None:
    """Write what only the disk keeps, so that no more than one window waits in memory; the rest waits for the answer."""
    if prefixes is not None and not prefixes.capacity_bytes:
        prefixes.write()
