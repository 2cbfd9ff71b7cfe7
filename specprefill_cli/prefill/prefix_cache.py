"""Work that questions about one document share: its tokens, and each model's KV of prefix and document.

Attention is causal, so keys and values of prefix and document do not depend on what follows them: reuse is exact.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.models.cache import PrefillState, new_state, rollback, state_bytes
from specprefill_cli.models.loading import LoadedModel
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.prefill.lru import LruCache
from specprefill_cli.prompting import Prompt

# Memory for one model's prefixes.
DEFAULT_BYTES = 2**30
# Documents whose tokens are kept.
KEPT_ENCODINGS = 8
DRAFT_PREFIX, TARGET_PREFIX, TOKENS = "draft document KV", "target document KV", "document tokens"


@dataclass(kw_only=True)
class CachedPrefix:
    """A cache whose first `tokens` slots hold a prompt's prefix and document in its lowest `layers` layers."""

    state: PrefillState
    tokens: int
    layers: int


class PrefixStore(Protocol):
    """Where prefixes outlive the process; `window` is the one with which the document was read."""

    def load(self, loaded: LoadedModel, tokens: Tensor, layers: int, window: int | None) -> CachedPrefix | None: ...

    def save(self, loaded: LoadedModel, tokens: Tensor, prefix: CachedPrefix, window: int | None) -> None: ...


class PrefixCache:
    """The latest prefixes of one model, by the token ids of prefix and document.

    A prefix serves one answer at a time: the next question about the same document rolls back what the answer before
    it appended. Other ranks find by `name` what they keep beside this one.
    """

    def __init__(self, store: PrefixStore | None = None, capacity_bytes: int = DEFAULT_BYTES) -> None:
        self.store = store
        self.pending_writes: list[Callable[[], None]] = []
        self.prefixes: LruCache[str, CachedPrefix] = LruCache(capacity_bytes, lambda prefix: state_bytes(prefix.state))
        self.name = uuid.uuid4().hex

    def open(self, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None) -> PrefillState | None:
        """The state of exactly the prompt's prefix and document in at least `layers` layers, or None.

        window: tokens that the model saw back while it read them
        """
        tokens = shared_tokens(prompt)
        key = prefix_key(loaded, tokens, window)
        prefix = self.prefixes.get(key)
        if (prefix is None or prefix.layers < layers) and self.store is not None:
            prefix = self.store.load(loaded, tokens, layers, window)
            if prefix is not None:
                self.prefixes.put(key, prefix)
        if prefix is None or prefix.layers < layers:
            self.make_room(len(tokens))
            return None
        rollback(prefix.state, prefix.tokens)
        return prefix.state

    def keep(self, loaded: LoadedModel, prompt: Prompt, state: PrefillState, layers: int, window: int | None) -> None:
        """Keep a state that holds prefix and document, whatever stands behind them, in its lowest `layers` layers."""
        tokens = shared_tokens(prompt)
        prefix = CachedPrefix(state=state, tokens=len(tokens), layers=layers)
        self.prefixes.put(prefix_key(loaded, tokens, window), prefix)
        if self.store is not None:
            # Written after the answer, so that the first token does not wait for the disk.
            self.pending_writes.append(partial(self.store.save, loaded, tokens, prefix, window))

    def write(self) -> None:
        """Store on disk what was kept since the last call."""
        while self.pending_writes:
            self.pending_writes.pop()()

    def make_room(self, tokens: int) -> None:
        """Evict before a new prefix is computed, so that no more than a cold start's memory is needed."""
        states = [prefix.state for prefix in self.prefixes.entries.values()]
        token_bytes = max((state_bytes(state) / state.length for state in states), default=0.0)
        self.prefixes.make_room(token_bytes * tokens)


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
    if rotation_depends_on_length(loaded.config):
        # The document's keys depend on the length of the whole prompt, and so on the question.
        prefixes = None
    cached = prefixes.open(loaded, prompt, layers, window) if prefixes is not None else None
    if cached is not None:
        return cached, keep_nothing
    state = new_state(prompt.length)
    return state, partial(
        prefixes.keep, loaded, prompt, state, layers, window
    ) if prefixes is not None else keep_nothing


def keep_nothing() -> None:
    """Stands in where the state is kept already, or nothing is."""


class EncodedDocuments:
    """Token ids and offsets of the latest documents' texts."""

    def __init__(self) -> None:
        self.encoded: LruCache[tuple[PreTrainedTokenizerBase, str], tuple[list[int], np.ndarray]] = LruCache(
            KEPT_ENCODINGS
        )

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
        """What `encode_text` returns, computed once for a text."""
        encoding = self.encoded.get((tokenizer, text))
        if encoding is None:
            encoding = encode_text(tokenizer, text)
            self.encoded.put((tokenizer, text), encoding)
        return encoding

    def __contains__(self, key: tuple[PreTrainedTokenizerBase, str]) -> bool:
        return key in self.encoded


@dataclass
class DocumentCache:
    """What a session keeps from one question for the next ones about the same documents."""

    encodings: EncodedDocuments = field(default_factory=EncodedDocuments)
    draft: PrefixCache = field(default_factory=PrefixCache)
    target: PrefixCache = field(default_factory=PrefixCache)

    def write(self) -> None:
        """Store on disk what is meant to outlive the session."""
        for prefixes in (self.draft, self.target):
            prefixes.write()
