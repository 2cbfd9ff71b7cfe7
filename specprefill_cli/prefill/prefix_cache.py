"""Work that questions about the same document share: its tokens, and each model's KV of prefix and document.

Attention is causal, so keys and values of prefix and document do not depend on what follows them: reuse is exact.
"""

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from specprefill_cli.caches import ByteCache
from specprefill_cli.models.encoder import DocumentVectors
from specprefill_cli.models.loaded import LoadedModel, LoadedPair, ModelOutline
from specprefill_cli.models.machine.memory_plan import kv_bytes, token_bytes
from specprefill_cli.models.running.adapter import rotation_depends_on_length
from specprefill_cli.models.running.cache import KvCacheState, fork_prefix, new_state, state_bytes
from specprefill_cli.models.sources.tokenizers import encode_text
from specprefill_cli.prompting import Prompt

# Memory for a model's prefixes where no session decides it.
DEFAULT_BYTES = 2**30
# Bytes for the embeddings and the tokens of documents, and of a token: its id is a Python number in a list.
EMBEDDING_BYTES, ENCODING_BYTES, ID_BYTES = 2**28, 2**28, 40
DRAFT_PREFIX, TARGET_PREFIX, TOKENS = "draft document KV", "target document KV", "document tokens"


class PrefixCache:
    """A model's states of the latest prefixes and documents, by token ids, and documents' embeddings.

    Any number of answers may share a state: each appends to its branch. name: the same on all ranks
    """

    def __init__(self, capacity_bytes: int = DEFAULT_BYTES, name: str | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.prefixes: ByteCache[KvCacheState] = ByteCache(capacity_bytes, state_bytes)
        self.embeddings: ByteCache[DocumentVectors] = ByteCache(EMBEDDING_BYTES, lambda vectors: vectors.nbytes)
        self.name = name or uuid.uuid4().hex

    def __reduce__(self) -> tuple[Any, ...]:
        # Another rank gets an empty cache of the same limit: all must forget the same documents.
        return PrefixCache, (self.capacity_bytes, self.name)


def prefix_key(prompt: Prompt, window: int | None) -> tuple[int | None, str]:
    """The key of a prefix: every question about a document begins with the same tokens."""
    tokens = prompt.tokens[: prompt.document[1]].to(torch.int64)
    return window, hashlib.sha256(tokens.numpy().tobytes()).hexdigest()


def count_layers(state: KvCacheState) -> int:
    """How many layers, from the lowest, hold keys and values."""
    return sum(layer.is_initialized for layer in state.layers)


def open_prefix(
    prefixes: PrefixCache | None, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None = None
) -> tuple[KvCacheState, Callable[[], None]]:
    """A state to prefill the prompt into from token `state.length` on, and a function that keeps it afterwards.

    layers: layers, from the lowest, that the prefill will fill; window: previous tokens that a document token sees
    """
    # Where the rotation depends on the length of the prompt, the document's keys depend on the question.
    if prefixes is None or rotation_depends_on_length(loaded.config):
        return new_state(prompt.length), lambda: None
    key, tokens = prefix_key(prompt, window), prompt.document[1]
    cached = prefixes.prefixes.find(key)
    if cached is not None and count_layers(cached) >= layers:
        return fork_prefix(cached, tokens), lambda: None
    # Evict before a new prefix is computed, so that no more than a cold start's memory is needed.
    largest = max((state_bytes(state) / state.length for state in prefixes.prefixes.values()), default=0.0)
    prefixes.prefixes.evict(prefixes.capacity_bytes - largest * tokens)
    state = new_state(prompt.length)
    return state, lambda: prefixes.prefixes.store(key, fork_prefix(state, tokens))


def cached_tokens(
    prefixes: PrefixCache | None,
    loaded: LoadedModel | ModelOutline,
    prompt: Prompt,
    layers: int,
    window: int | None = None,
) -> int:
    """Tokens that `open_prefix` would find cached: those of prefix and document, or none."""
    if prefixes is None or rotation_depends_on_length(loaded.config):
        return 0
    state = prefixes.prefixes.get(prefix_key(prompt, window))
    return prompt.document[1] if state is not None and count_layers(state) >= layers else 0


@dataclass
class DocumentCache:
    """Work that a session keeps for the next questions about the same documents.

    encodings: token ids and offsets by tokenizer and text; encoding: locks of the texts that are being tokenised
    """

    draft: PrefixCache = field(default_factory=PrefixCache)
    target: PrefixCache = field(default_factory=PrefixCache)
    encoding: WeakValueDictionary[str, Lock] = field(default_factory=WeakValueDictionary, repr=False)
    encodings: ByteCache[tuple[list[int], np.ndarray]] = field(
        default_factory=lambda: ByteCache(ENCODING_BYTES, lambda kept: ID_BYTES * len(kept[0]) + kept[1].nbytes)
    )

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
        """`encode_text`, or its earlier result for the same text."""
        return self.encodings.find_or((tokenizer, text), lambda: encode_text(tokenizer, text))


def document_cache(setting: str | float, pair: LoadedPair) -> DocumentCache:
    """A cache in the memory that `--memory-cache` allows each rank, for the same documents in both models."""
    total = kv_bytes(pair, setting)
    draft, target = token_bytes(pair.draft), token_bytes(pair.target)
    draft_bytes = total * draft // max(1, draft + target)
    return DocumentCache(draft=PrefixCache(draft_bytes), target=PrefixCache(total - draft_bytes))
