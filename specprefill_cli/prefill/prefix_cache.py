"""Work that questions about one document share: its tokens, and a model's cache of the prompt's head and document.

Causal attention makes it exact: keys and values of head and document do not depend on what follows them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.models.adapter import rotation_depends_on_length
from specprefill_cli.models.cache import PrefillState, new_state, rollback, state_bytes
from specprefill_cli.models.tokenizers import encode_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specprefill_cli.models.loading import LoadedModel
    from specprefill_cli.prompting import Prompt

# Bytes of states of one model that are kept in memory; the latest one is kept whatever its size.
MOST_BYTES = 2**30
DRAFT_STATE, TARGET_STATE, TOKENS = "draft document KV", "target document KV", "document tokens"


@dataclass
class KeptState:
    """A cache whose first `tokens` slots hold a prompt's head and document in its lower `layers` layers."""

    state: PrefillState
    tokens: int
    layers: int


class StateStore(Protocol):
    """Where states outlive the process; `window` is the one that the document was read with."""

    def load(self, loaded: LoadedModel, tokens: Tensor, layers: int, window: int | None) -> KeptState | None: ...

    def save(self, loaded: LoadedModel, tokens: Tensor, kept: KeptState, window: int | None) -> None: ...


class DocumentStates:
    """The latest states of one model, by the token ids of head and document.

    A state that was opened belongs to one answer at a time: the next question about the same document takes back what
    the answer before it appended. By its name other ranks find what they keep beside it.
    """

    def __init__(self, store: StateStore | None = None, most_bytes: int = MOST_BYTES) -> None:
        self.store = store
        self.unwritten: list[Callable[[], None]] = []
        self.most_bytes = most_bytes
        self.kept: OrderedDict[str, KeptState] = OrderedDict()
        self.name = uuid.uuid4().hex

    def open(self, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None) -> PrefillState | None:
        """The state of exactly the prompt's head and document in at least `layers` layers; None where there is none.

        window: how far back the model saw while it read them
        """
        tokens = shared_tokens(prompt)
        name = state_name(loaded, tokens, window)
        found = self.kept.get(name)
        if (found is None or found.layers < layers) and self.store is not None:
            found = self.store.load(loaded, tokens, layers, window)
            if found is not None:
                self.remember(name, found)
        if found is None or found.layers < layers:
            self.make_room(len(tokens))
            return None
        self.kept.move_to_end(name)
        rollback(found.state, found.tokens)
        return found.state

    def keep(self, loaded: LoadedModel, prompt: Prompt, state: PrefillState, layers: int, window: int | None) -> None:
        """Keep a state that holds head and document, whatever stands behind them, in its lower `layers` layers."""
        tokens = shared_tokens(prompt)
        kept = KeptState(state, len(tokens), layers)
        self.remember(state_name(loaded, tokens, window), kept)
        if self.store is not None:
            # Nobody waits for the disk before the first token.
            self.unwritten.append(partial(self.store.save, loaded, tokens, kept, window))

    def write(self) -> None:
        """Put on disk what was kept since the last time."""
        while self.unwritten:
            self.unwritten.pop()()

    def remember(self, name: str, kept: KeptState) -> None:
        self.kept[name] = kept
        self.kept.move_to_end(name)
        while len(self.kept) > 1 and self.bytes > self.most_bytes:
            self.kept.popitem(last=False)

    def make_room(self, tokens: int) -> None:
        """Drop the oldest states before a new one is computed, so that no more than a cold start's memory is needed."""
        each = max((state_bytes(one.state) / one.state.length for one in self.kept.values()), default=0.0)
        while self.kept and self.bytes + each * tokens > self.most_bytes:
            self.kept.popitem(last=False)

    @property
    def bytes(self) -> int:
        return sum(state_bytes(one.state) for one in self.kept.values())


def shared_tokens(prompt: Prompt) -> Tensor:
    """The ids of head and document: what every question about the document begins with."""
    return prompt.tokens[: prompt.document[1]]


def token_hash(tokens: Tensor) -> str:
    return hashlib.sha256(tokens.to(torch.int64).numpy().tobytes()).hexdigest()


def state_name(loaded: LoadedModel, tokens: Tensor, window: int | None) -> str:
    return f"{loaded.name} {loaded.dtype} {window} {token_hash(tokens)}"


def open_state(
    states: DocumentStates | None, loaded: LoadedModel, prompt: Prompt, layers: int, window: int | None = None
) -> tuple[PrefillState, Callable[[], None]]:
    """A state to prefill the prompt into, from token `state.length` on; and what to call when that is done.

    layers: how many layers, from the lowest, the prefill will fill; window: how far back the document's tokens will see
    """
    if rotation_depends_on_length(loaded.config):
        # A longer question could turn the document's keys otherwise.
        states = None
    found = states.open(loaded, prompt, layers, window) if states is not None else None
    if found is not None:
        return found, nothing_to_keep
    state = new_state(prompt.length)
    return state, partial(states.keep, loaded, prompt, state, layers, window) if states is not None else nothing_to_keep


def nothing_to_keep() -> None:
    """The state is kept already, or nothing is."""


class EncodedDocuments:
    """Token ids and offsets of the latest documents' texts."""

    def __init__(self, most: int = 8) -> None:
        self.most = most
        self.encoded: OrderedDict[tuple[PreTrainedTokenizerBase, str], tuple[list[int], np.ndarray]] = OrderedDict()

    def knows(self, tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
        return (tokenizer, text) in self.encoded

    def encode(self, tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[list[int], np.ndarray]:
        """What `encode_text` gives."""
        key = (tokenizer, text)
        if key not in self.encoded:
            self.encoded[key] = encode_text(tokenizer, text)
        self.encoded.move_to_end(key)
        if len(self.encoded) > self.most:
            self.encoded.popitem(last=False)
        return self.encoded[key]


@dataclass
class SharedWork:
    """What a session keeps from one question for the next ones, where its caller wants that."""

    documents: EncodedDocuments = field(default_factory=EncodedDocuments)
    draft: DocumentStates = field(default_factory=DocumentStates)
    target: DocumentStates = field(default_factory=DocumentStates)

    def write(self) -> None:
        """Put on disk what is meant to outlive the session, where it has a folder for that."""
        for states in (self.draft, self.target):
            states.write()
