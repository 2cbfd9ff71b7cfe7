"""A second attempt at a question for which the device lacked memory."""

from __future__ import annotations

import torch

from specprefill_cli.prefill.pass_size import SMALLEST
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.settings import AUTO, Settings


def free_memory(*caches: DocumentCache | None) -> None:
    """Drop what was kept of earlier documents, and give the device back what is unused."""
    for cache in filter(None, caches):
        cache.draft.evict(0)
        cache.target.evict(0)
    torch.cuda.empty_cache()


def with_short_passes(settings: Settings) -> Settings:
    """The settings with the shortest passes that prefill takes, or shorter ones where these were asked for."""
    tokens = SMALLEST if settings.prefill_chunk == AUTO else min(SMALLEST, int(settings.prefill_chunk))
    return settings.varied(prefill_chunk=tokens)
