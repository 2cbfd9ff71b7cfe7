"""How much memory the KV of documents may take between questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.models.adapter import free_memory
from specprefill_cli.models.loading import LoadedModel, LoadedPair
from specprefill_cli.models.memory_estimate import cache_bytes
from specprefill_cli.prefill.prefix_cache import DocumentCache, PrefixCache
from specprefill_cli.settings import AUTO

if TYPE_CHECKING:
    from specprefill_cli.prefill.disk_cache import DiskCache

GIBIBYTE = 2**30
# What `auto` takes of the free memory: the rest is for the next prompt. Main memory is for other programs, too.
SHARE, MOST_IN_MAIN_MEMORY = 0.25, 2 * GIBIBYTE


def document_cache(setting: str | float, pair: LoadedPair, store: DiskCache | None = None) -> DocumentCache:
    """A cache in the memory that `--memory-cache` allows, divided so that both models have room for the same documents.

    With several ranks the limit is each rank's. store: keeps the draft's KV for later runs, where this process has all of it
    """
    if store is not None and pair.draft_ranks.size > 1:
        store.warn(f"{store.folder}: not used, because {pair.draft_ranks.size} ranks share the draft and its KV")
        store = None
    total = memory_limit(setting, pair)
    draft, target = token_bytes(pair.draft), token_bytes(pair.target)
    of_draft = total * draft // max(1, draft + target)
    return DocumentCache(
        draft=PrefixCache(store, capacity_bytes=of_draft), target=PrefixCache(capacity_bytes=total - of_draft)
    )


def memory_limit(setting: str | float, pair: LoadedPair) -> int:
    """Bytes of KV that `--memory-cache` allows."""
    return automatic_bytes(pair) if setting == AUTO else int(float(setting) * GIBIBYTE)


def automatic_bytes(pair: LoadedPair) -> int:
    """The limit of `auto`, from the memory that is free beside the loaded models.

    The target's KV is spread evenly over its devices, so that the fullest one decides.
    """
    free = min(map(free_memory, pair.devices), default=0)
    limit = int(SHARE * free * len(pair.target.devices))
    on_gpus = all(device.type == "cuda" for device in pair.devices)
    return limit if on_gpus else min(limit, MOST_IN_MAIN_MEMORY)


def token_bytes(loaded: object) -> int:
    """Bytes of one token's keys and values; 0 for a model that is not loaded."""
    return cache_bytes(loaded.config, 1, loaded.model.dtype) if isinstance(loaded, LoadedModel) else 0
