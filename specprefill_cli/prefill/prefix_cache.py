"""Work that questions about one document share: its tokens, and each model's KV of prefix and document.

Attention is causal, so keys and values of prefix and document do not depend on what follows them: reuse is exact.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.byte_cache import ByteCache
from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.models.cache import PrefillState, branch, new_state, state_bytes
from specprefill_cli.models.loading import LoadedModel, LoadedPair
from specprefill_cli.models.memory_plan import MemoryPlan, token_bytes
from specprefill_cli.models.outline import ModelOutline
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.prompting import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specprefill_cli.prefill.disk_cache import DiskCache

# Memory for one model's prefixes where no session decides it.
DEFAULT_BYTES = 2**30
# Memory for the embeddings and the tokens of documents, and what a token takes: an id, as Python's number in a list.
EMBEDDING_BYTES, ENCODING_BYTES, ID_BYTES = 2**26, 2**28, 40
DRAFT_PREFIX, TARGET_PREFIX, TOKENS = "draft document KV", "target document KV", "document tokens"


@dataclass(kw_only=True)
class CachedPrefix:
    """A cache whose first `tokens` slots hold a prompt's prefix and document in its lowest `layers` layers."""

    state: PrefillState
    tokens: int
    layers: int


class PrefixCache:
    """The latest prefixes of one model, by the token ids of prefix and document.

    Any number of answers may share a prefix at the same time: each appends to a branch of its own. Other ranks find by
    `name` what they keep beside this one.
    """

    def __init__(
        self, store: DiskCache | None = None, capacity_bytes: int = DEFAULT_BYTES, name: str | None = None
    ) -> None:
        self.store = store
        self.capacity_bytes = capacity_bytes
        self.pending_writes: list[Callable[[], None]] = []
        self.prefixes: ByteCache[CachedPrefix] = ByteCache(capacity_bytes, lambda prefix: state_bytes(prefix.state))
        self.embeddings: ByteCache[Tensor] = ByteCache(EMBEDDING_BYTES, lambda vectors: vectors.nbytes)
        self.name = name or uuid.uuid4().hex

    def __reduce__(self) -> tuple[Any, ...]:
        # Another rank gets an empty cache of the same limit: all must forget the same documents.
        return PrefixCache, (None, self.capacity_bytes, self.name)

    def open(self, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None) -> PrefillState | None:
        """A state of its own of exactly the prompt's prefix and document in at least `layers` layers, or None.

        window: tokens that the model saw back while it read them
        """
        tokens = shared_tokens(prompt)
        key = prefix_key(loaded, tokens, window)
        prefix = self.prefixes.get(key)
        if (prefix is None or prefix.layers < layers) and self.store is not None:
            prefix = self.store.load(loaded, tokens, layers, window)
        if prefix is None or prefix.layers < layers:
            self.make_room(len(tokens))
            return None
        self.prefixes.keep(key, prefix)
        return branch(prefix.state, prefix.tokens)

    def holds(self, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None) -> bool:
        """Whether `open` would find a state, in memory or on disk."""
        tokens = shared_tokens(prompt)
        prefix = self.prefixes.get(prefix_key(loaded, tokens, window))
        if prefix is not None and prefix.layers >= layers:
            return True
        return self.store is not None and self.store.holds(loaded, tokens, layers, window)

    def keep(self, loaded: LoadedModel, prompt: Prompt, state: PrefillState, layers: int, window: int | None) -> None:
        """Keep a state that holds prefix and document, whatever stands behind them, in its lowest `layers` layers."""
        tokens = shared_tokens(prompt)
        prefix = CachedPrefix(state=branch(state, len(tokens)), tokens=len(tokens), layers=layers)
        self.prefixes.keep(prefix_key(loaded, tokens, window), prefix)
        if self.store is not None:
            # Written after the answer, so that the first token does not wait for the disk.
            self.pending_writes.append(partial(self.store.save, loaded, tokens, prefix, window))

    def vectors(self, identity: str, compute: Callable[[], Tensor]) -> Tensor:
        """A document's embeddings, of a hundredth of its KV's size: those kept for its last question, or computed."""
        return self.embeddings.find_or(identity, lambda: self.stored_vectors(identity, compute))

    def stored_vectors(self, identity: str, compute: Callable[[], Tensor]) -> Tensor:
        """A document's embeddings from disk; computed ones are written there."""
        known = self.store.load_vectors(identity) if self.store is not None else None
        if known is None:
            known = compute()
            if self.store is not None:
                self.pending_writes.append(partial(self.store.save_vectors, identity, known))
        return known

    def has_vectors(self, identity: str) -> bool:
        """Whether `vectors` would find a document's embeddings, in memory or on disk."""
        return identity in self.embeddings or (self.store is not None and self.store.has_vectors(identity))

    def write(self) -> None:
        """Store on disk what was kept since the last call."""
        while self.pending_writes:
            self.pending_writes.pop()()

    def make_room(self, tokens: int) -> None:
        """Evict before a new prefix is computed, so that no more than a cold start's memory is needed."""
        states = [prefix.state for prefix in self.prefixes.values()]
        largest = max((state_bytes(state) / state.length for state in states), default=0.0)
        self.prefixes.evict(self.capacity_bytes - largest * tokens)


def shared_tokens(prompt: Prompt) -> Tensor:
    """The ids of prefix and document: every question about the document begins with them."""
    return prompt.tokens[: prompt.document[1]]


def token_hash(tokens: Tensor) -> str:
    """SHA-256 of token ids [n]."""
    return hashlib.sha256(tokens.to(torch.int64).numpy().tobytes()).hexdigest()


def prefix_key(loaded: LoadedModel, tokens: Tensor, window: int | None) -> str:
    """What tells prefixes in memory apart."""
    return f"{loaded.name} {loaded.dtype} {window} {token_hash(tokens)}"


def open_prefix(
    prefixes: PrefixCache | None, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None = None
) -> tuple[PrefillState, Callable[[], None]]:
    """A state to prefill the prompt into from token `state.length` on, and a function that keeps it afterwards.

    layers: layers, from the lowest, that the prefill will fill; window: tokens that the document's tokens see back
    """
    # Where the rotation depends on the length of the whole prompt, the document's keys depend on the question.
    if prefixes is None or rotation_depends_on_length(loaded.config):
        return new_state(prompt.length), lambda: None
    cached = prefixes.open(loaded, prompt, layers, window)
    if cached is not None:
        return cached, lambda: None
    state = new_state(prompt.length)
    return state, partial(prefixes.keep, loaded, prompt, state, layers, window)


def cached_tokens(
    prefixes: PrefixCache | None,
    loaded: LoadedModel | ModelOutline,
    prompt: Prompt,
    layers: int,
    window: int | None = None,
) -> int:
    """Tokens whose keys and values `open_prefix` would find: those of prefix and document, or none."""
    if prefixes is None or not isinstance(loaded, LoadedModel) or rotation_depends_on_length(loaded.config):
        return 0
    return prompt.document[1] if prefixes.holds(loaded, prompt, layers, window) else 0


@dataclass
class DocumentCache:
    """What a session keeps from one question for the next ones about the same documents.

    encoding: held while a text is tokenised
    """

    draft: PrefixCache = field(default_factory=PrefixCache)
    target: PrefixCache = field(default_factory=PrefixCache)
    encoding: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        self.encodings: ByteCache[tuple[list[int], np.ndarray]] = ByteCache(
            ENCODING_BYTES, lambda encoding: ID_BYTES * len(encoding[0]) + encoding[1].nbytes
        )

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
        """`encode_text`, or what it returned for the same text before."""
        store = self.draft.store
        encode = encode_text if store is None else store.encode
        return self.encodings.find_or((tokenizer, text), lambda: encode(tokenizer, text))

    @property
    def encodings_reused(self) -> int:
        """How often `encode` was asked for the tokens of a text that it knew."""
        store = self.draft.store
        return self.encodings.hits + (store.texts_found if store is not None else 0)

    def write(self) -> None:
        """Store on disk what is meant to outlive the session."""
        for prefixes in (self.draft, self.target):
            prefixes.write()


def document_cache(setting: str | float, pair: LoadedPair, store: DiskCache | None = None) -> DocumentCache:
    """A cache in the memory that `--memory-cache` allows, divided so that both models have room for the same documents.

    With several ranks the limit is each rank's. store: keeps the draft's KV for later runs, where this process has all of it
    """
    if store is not None and pair.draft_ranks.size > 1:
        store.warn(f"{store.folder}: not used, because {pair.draft_ranks.size} ranks share the draft and its KV")
        store = None
    total = MemoryPlan(pair).kv_bytes(setting)
    draft, target = token_bytes(pair.draft), token_bytes(pair.target)
    of_draft = total * draft // max(1, draft + target)
    return DocumentCache(
        draft=PrefixCache(store, capacity_bytes=of_draft), target=PrefixCache(capacity_bytes=total - of_draft)
    )
