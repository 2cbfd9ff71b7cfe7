"""Work that questions about the same document share: its tokens, and each model's KV of prefix and document.

Attention is causal, so keys and values of prefix and document do not depend on what follows them: reuse is exact.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.byte_cache import ByteCache
from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.models.attention_plan import SINKS
from specprefill_cli.models.cache import PrefillState, branch, layer_tensors, new_state, restore_state, state_bytes
from specprefill_cli.models.loading import LoadedModel, LoadedPair, ModelOutline
from specprefill_cli.models.memory_plan import MemoryPlan, token_bytes
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.prefill.calibration import weights_fingerprint
from specprefill_cli.prompting import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specprefill_cli.prefill.disk_cache import DiskCache

EMBEDDINGS = "embeddings"
# Memory for a model's prefixes where no session decides it.
DEFAULT_BYTES = 2**30
# Bytes for the embeddings and the tokens of documents, and of a token: its id is a Python number in a list.
EMBEDDING_BYTES, ENCODING_BYTES, ID_BYTES = 2**26, 2**28, 40
DRAFT_PREFIX, TARGET_PREFIX, TOKENS = "draft document KV", "target document KV", "document tokens"


class PrefixCache:
    """A model's states of the latest prompts' prefixes and documents, by the token ids of these; also in a store on disk.

    Any number of answers may share a state at the same time: each appends to its branch. A model's caches on several
    ranks have the same `name`.
    """

    def __init__(
        self, store: DiskCache | None = None, capacity_bytes: int = DEFAULT_BYTES, name: str | None = None
    ) -> None:
        self.store = store
        self.capacity_bytes = capacity_bytes
        self.prefixes: ByteCache[PrefillState] = ByteCache(capacity_bytes, state_bytes)
        self.embeddings: ByteCache[Tensor] = ByteCache(EMBEDDING_BYTES, lambda vectors: vectors.nbytes)
        self.name = name or uuid.uuid4().hex
        self.revision = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Another rank gets an empty cache of the same limit: all must forget the same documents.
        return PrefixCache, (None, self.capacity_bytes, self.name)

    @property
    def limit_bytes(self) -> int:
        """Bytes that states may take in memory, and on disk where there is a store."""
        return self.capacity_bytes if self.store is None else min(self.capacity_bytes, self.store.capacity_bytes)

    def key(self, loaded: LoadedModel, prompt: Prompt, window: int | None) -> str:
        """The key of a prefix: every question about a document begins with the same tokens."""
        if self.store is not None and not self.revision:
            # Between two runs, a name may come to mean another model.
            identity = (loaded.fingerprint, loaded.model.config.to_json_string(), weights_fingerprint(loaded.model))
            self.revision = hashlib.sha256("\n".join(identity).encode()).hexdigest()
        tokens = prompt.tokens[: prompt.document[1]].to(torch.int64)
        digest = hashlib.sha256(tokens.numpy().tobytes()).hexdigest()
        return f"{loaded.name} {self.revision} {loaded.dtype} {window} {SINKS} {digest}"

    def load(self, key: str, model: PreTrainedModel) -> PrefillState | None:
        """The state of a prefix, from memory or else from disk."""
        state = self.prefixes.find(key)
        stored = self.store.load(key) if state is None and self.store is not None else None
        if stored is not None:
            layer_kv = [(stored[f"{number}.keys"], stored[f"{number}.values"]) for number in range(len(stored) // 2)]
            state = restore_state(model, layer_kv)
            self.prefixes.keep(key, state)
        return state

    def keep(self, key: str, state: PrefillState) -> None:
        """Keep the state of a prefix in memory, and later on disk."""
        self.prefixes.keep(key, state)
        if self.store is not None:
            tensors: dict[str, Tensor] = {}
            for number, (keys, values) in enumerate(layer_tensors(state, state.length, len(state.layers))):
                tensors |= {f"{number}.keys": keys, f"{number}.values": values}
            self.store.save_later(key, tensors)

    def vectors(self, identity: str, compute: Callable[[], Tensor]) -> Tensor:
        """A document's embeddings, a hundredth of its KV in size: kept from an earlier question, or computed."""

        def load_or_compute() -> Tensor:
            stored = self.store.load(identity) if self.store is not None else None
            if stored is None:
                stored = {EMBEDDINGS: compute()}
                if self.store is not None:
                    self.store.save_later(identity, stored)
            return stored[EMBEDDINGS]

        return self.embeddings.find_or(identity, load_or_compute)

    def has_vectors(self, identity: str) -> bool:
        """Whether `vectors` would find a document's embeddings, in memory or on disk."""
        return identity in self.embeddings or (self.store is not None and self.store.holds(identity))


def count_layers(state: PrefillState) -> int:
    """How many layers, from the lowest, hold keys and values."""
    return sum(layer.is_initialized for layer in state.layers)


def open_prefix(
    prefixes: PrefixCache | None, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None = None
) -> tuple[PrefillState, Callable[[], None]]:
    """A state to prefill the prompt into from token `state.length` on, and a function that keeps it afterwards.

    layers: layers, from the lowest, that the prefill will fill; window: previous tokens that a document token sees
    """
    # Where the rotation depends on the length of the prompt, the document's keys depend on the question.
    if prefixes is None or rotation_depends_on_length(loaded.config):
        return new_state(prompt.length), lambda: None
    key, tokens = prefixes.key(loaded, prompt, window), prompt.document[1]
    cached = prefixes.load(key, loaded.model)
    if cached is not None and count_layers(cached) >= layers:
        return branch(cached, tokens), lambda: None
    # Evict before a new prefix is computed, so that no more than a cold start's memory is needed.
    largest = max((state_bytes(state) / state.length for state in prefixes.prefixes.values()), default=0.0)
    prefixes.prefixes.evict(prefixes.capacity_bytes - largest * tokens)
    state = new_state(prompt.length)
    return state, lambda: prefixes.keep(key, branch(state, tokens))


def cached_tokens(
    prefixes: PrefixCache | None,
    loaded: LoadedModel | ModelOutline,
    prompt: Prompt,
    layers: int,
    window: int | None = None,
) -> int:
    """Tokens that `open_prefix` is expected to find cached: those of prefix and document, or none.

    Only `open_prefix` sees how many layers a file on disk holds.
    """
    if prefixes is None or not isinstance(loaded, LoadedModel) or rotation_depends_on_length(loaded.config):
        return 0
    key = prefixes.key(loaded, prompt, window)
    state = prefixes.prefixes.get(key)
    if state is None:
        cached = prefixes.store is not None and prefixes.store.holds(key)
    else:
        cached = count_layers(state) >= layers
    return prompt.document[1] if cached else 0


@dataclass
class DocumentCache:
    """Work that a session keeps for the next questions about the same documents.

    encodings: token ids and offsets by tokenizer and text; encoding: held while a text is tokenised
    """

    draft: PrefixCache = field(default_factory=PrefixCache)
    target: PrefixCache = field(default_factory=PrefixCache)
    encoding: Lock = field(default_factory=Lock, repr=False)
    encodings: ByteCache[tuple[list[int], np.ndarray]] = field(
        default_factory=lambda: ByteCache(ENCODING_BYTES, lambda kept: ID_BYTES * len(kept[0]) + kept[1].nbytes)
    )

    def has_tokens(self, tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
        """Whether a text was tokenised before."""
        return (tokenizer, text) in self.encodings

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
        """`encode_text`, or its earlier result for the same text."""
        return self.encodings.find_or((tokenizer, text), lambda: encode_text(tokenizer, text))

    def write(self) -> None:
        """Store the new entries on disk."""
        for prefixes in (self.draft, self.target):
            if prefixes.store is not None:
                prefixes.store.write()


def document_cache(setting: str | float, pair: LoadedPair, store: DiskCache | None = None) -> DocumentCache:
    """A cache in the memory that `--memory-cache` allows, divided so that draft and target have room for the same documents.

    With several ranks the limit holds for each. store: keeps the draft's KV for later runs, where this process has all of it
    """
    if store is not None and pair.draft_ranks.size > 1:
        store.warn(f"{store.folder}: not used, because {pair.draft_ranks.size} ranks share the draft and its KV")
        store = None
    total = MemoryPlan(pair).kv_bytes(setting)
    draft, target = token_bytes(pair.draft), token_bytes(pair.target)
    draft_bytes = total * draft // max(1, draft + target)
    return DocumentCache(
        draft=PrefixCache(store, capacity_bytes=draft_bytes), target=PrefixCache(capacity_bytes=total - draft_bytes)
    )
