"""Failures of a device: which ones end everything, and a second attempt where it lacked memory."""

from __future__ import annotations

import re

import torch

from specprefill_cli.prefill.pass_size import SMALLEST
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.settings import AUTO, Settings


def is_device_failure(error: BaseException) -> bool:
    """Whether an accelerator raised an error that all further work on it will raise too: any but a lack of memory."""
    kind, text = type(error).__name__, str(error)
    failed = kind == "AcceleratorError" or (isinstance(error, RuntimeError) and re.search(r"\b(CUDA|HIP) error", text))
    return bool(failed) and "out of memory" not in text.lower()


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
