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
from specprefill_cli.models.attention_plan import SINKS
from specprefill_cli.models.cache import PrefillState, branch, layer_tensors, new_state, restore_state, state_bytes
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


class PrefixCache:
    """The latest states of one model that hold a prompt's prefix and document, by the token ids of these.

    Any number of answers may share a state at the same time: each appends to a branch of its own. Other ranks find by
    `name` what they keep beside this one.
    """

    def __init__(
        self, store: DiskCache | None = None, capacity_bytes: int = DEFAULT_BYTES, name: str | None = None
    ) -> None:
        self.store = store
        self.capacity_bytes = capacity_bytes
        self.pending_writes: list[Callable[[], None]] = []
        self.prefixes: ByteCache[PrefillState] = ByteCache(capacity_bytes, state_bytes)
        self.embeddings: ByteCache[Tensor] = ByteCache(EMBEDDING_BYTES, lambda vectors: vectors.nbytes)
        self.name = name or uuid.uuid4().hex

    def __reduce__(self) -> tuple[Any, ...]:
        # Another rank gets an empty cache of the same limit: all must forget the same documents.
        return PrefixCache, (None, self.capacity_bytes, self.name)

    def open(self, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None) -> PrefillState | None:
        """A state of its own of exactly the prompt's prefix and document in at least `layers` layers, or None.

        window: tokens that the model saw back while it read them
        """
        key, tokens = prefix_key(loaded, prompt, window), prompt.document[1]
        state = self.prefixes.get(key)
        if (state is None or filled_layers(state) < layers) and self.store is not None:
            stored = self.store.load(stored_key(self.store, loaded, key, layers))
            if stored is not None:
                pairs = [(stored[f"{number}.keys"], stored[f"{number}.values"]) for number in range(layers)]
                state = restore_state(loaded.model, pairs)
        if state is None or filled_layers(state) < layers:
            self.make_room(tokens)
            return None
        self.prefixes.keep(key, state)
        return branch(state, tokens)

    def holds(self, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None) -> bool:
        """Whether `open` would find a state, in memory or on disk."""
        key = prefix_key(loaded, prompt, window)
        state = self.prefixes.get(key)
        if state is not None and filled_layers(state) >= layers:
            return True
        return self.store is not None and self.store.holds(stored_key(self.store, loaded, key, layers))

    def keep(self, loaded: LoadedModel, prompt: Prompt, state: PrefillState, layers: int, window: int | None) -> None:
        """Keep a state that holds prefix and document, whatever stands behind them, in its lowest `layers` layers."""
        key, tokens = prefix_key(loaded, prompt, window), prompt.document[1]
        own = branch(state, tokens)
        self.prefixes.keep(key, own)

        def write(store: DiskCache) -> None:
            tensors: dict[str, Tensor] = {}
            for number, (keys, values) in enumerate(layer_tensors(own, tokens, layers)):
                tensors |= {f"{number}.keys": keys, f"{number}.values": values}
            store.save(stored_key(store, loaded, key, layers), tensors)

        if self.store is not None:
            # Written after the answer, so that the first token does not wait for the disk.
            self.pending_writes.append(partial(write, self.store))

    def vectors(self, identity: str, compute: Callable[[], Tensor]) -> Tensor:
        """A document's embeddings, of a hundredth of its KV's size: those kept for its last question, or computed."""
        return self.embeddings.find_or(identity, lambda: self.stored_vectors(identity, compute))

    def stored_vectors(self, identity: str, compute: Callable[[], Tensor]) -> Tensor:
        """A document's embeddings from disk; computed ones are written there."""
        if self.store is None:
            return compute()
        stored = self.store.load(identity)
        if stored is None:
            stored = {"embeddings": compute()}
            self.pending_writes.append(partial(self.store.save, identity, stored))
        return stored["embeddings"]

    def has_vectors(self, identity: str) -> bool:
        """Whether `vectors` would find a document's embeddings, in memory or on disk."""
        return identity in self.embeddings or (self.store is not None and self.store.holds(identity))

    def write(self) -> None:
        """Store on disk what was kept since the last call."""
        while self.pending_writes:
            self.pending_writes.pop()()

    def make_room(self, tokens: int) -> None:
        """Evict before a new prefix is computed, so that no more than a cold start's memory is needed."""
        largest = max((state_bytes(state) / state.length for state in self.prefixes.values()), default=0.0)
        self.prefixes.evict(self.capacity_bytes - largest * tokens)


def prefix_key(loaded: LoadedModel, prompt: Prompt, window: int | None) -> str:
    """What tells the states of prefixes in memory apart: every question about a document begins with the same tokens."""
    tokens = prompt.tokens[: prompt.document[1]].to(torch.int64)
    return f"{loaded.name} {loaded.dtype} {window} {hashlib.sha256(tokens.numpy().tobytes()).hexdigest()}"


def stored_key(store: DiskCache, loaded: LoadedModel, key: str, layers: int) -> str:
    """What tells states on disk apart, where models and sizes change from run to run."""
    return f"{key} {store.revision(loaded)} {SINKS} {layers}"


def filled_layers(state: PrefillState) -> int:
    """How many layers, from the lowest, hold keys and values."""
    return sum(layer.is_initialized for layer in state.layers)


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

    encodings: token ids and offsets by tokenizer and text; encoding: held while a text is tokenised
    """

    draft: PrefixCache = field(default_factory=PrefixCache)
    target: PrefixCache = field(default_factory=PrefixCache)
    encoding: Lock = field(default_factory=Lock, repr=False)
    encodings: ByteCache[tuple[list[int], np.ndarray]] = field(
        default_factory=lambda: ByteCache(ENCODING_BYTES, lambda kept: ID_BYTES * len(kept[0]) + kept[1].nbytes)
    )

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
        """`encode_text`, or what it returned for the same text before."""
        return self.encodings.find_or((tokenizer, text), lambda: encode_text(tokenizer, text))

    @property
    def encodings_reused(self) -> int:
        """How often `encode` was asked for the tokens of a text that it knew."""
        return self.encodings.hits

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
