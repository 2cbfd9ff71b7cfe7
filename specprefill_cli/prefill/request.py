"""The interface of modes: a question in tokens with every setting of its prefill resolved, and what a mode makes of it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.documents.document import Collection
from specprefill_cli.models.loaded import LoadedModel
from specprefill_cli.models.running.attention_plan import LocalWindow
from specprefill_cli.models.running.cache import KvCacheState
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.fates import CompactPositions, Plan
from specprefill_cli.prefill.prefix_cache import PrefixCache
from specprefill_cli.prompting import Prompt
from specprefill_cli.record import ORIGINAL, PHASES, GateVerdict
from specprefill_cli.settings import Settings


@dataclass
class PhaseClock:
    """Seconds by phase, which add up to the TTFT; wait: synchronises the devices."""

    wait: Callable[[], None] = lambda: None
    seconds: dict[str, float] = field(default_factory=dict)
    started: float | None = None
    ended: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.started is None:
            self.wait()
            self.started = self.ended = time.perf_counter()
        start = self.ended
        try:
            yield
        finally:
            self.wait()
            self.ended = time.perf_counter()
            self.seconds[name] = self.seconds.get(name, 0.0) + self.ended - start

    def resume(self) -> None:
        """Exclude the time since the last phase ended: the question waited for others."""
        if self.started is not None:
            waited = time.perf_counter() - self.ended
            self.started += waited
            self.ended += waited

    @property
    def draft_ran(self) -> bool:
        """Whether the draft read the prompt, or its end behind a cached document."""
        return "draft_prefill" in self.seconds

    @property
    def ttft(self) -> float:
        return self.ended - self.started if self.started is not None else 0.0

    def phases(self) -> dict[str, float]:
        """Seconds of every phase in order; 0 for a phase that the mode does not have."""
        return {name: self.seconds.get(name, 0.0) for name in PHASES}


@dataclass(frozen=True, kw_only=True)
class EncodedQuestion:
    """A question and its documents as text and as tokens of draft and target.

    draft_prompt: the target's own prompt where the draft has the same tokenizer or does not run
    clock: of the TTFT; reused: work of earlier questions that tokenisation reused, in words
    """

    collection: Collection
    question: str
    prompt: Prompt
    draft_prompt: Prompt
    clock: PhaseClock
    reused: tuple[str, ...] = ()

    @property
    def document_tokens(self) -> int:
        start, end = self.prompt.document
        return end - start


@dataclass(frozen=True, kw_only=True)
class PrefillRequest(EncodedQuestion):
    """A question to prefill, with the settings as given, and as fields those that are resolved.

    draft_gap: positions left free between document and suffix of the draft's prompt, where that is a part
    last_draft_layer: layer up to which the draft must run for any scorer, because the mode reads its input
    draft_prefixes, target_prefixes: caches of earlier questions about the same document; None: start cold
    """

    pair: CalibratedPair
    scorer: str
    keep: float | None
    look_ahead: int
    chunk_size: int
    prefill_chunk: int
    draft_window: int | None
    settings: Settings
    positions: str = ORIGINAL
    max_new_tokens: int = 0
    draft_gap: int = 0
    last_draft_layer: int = 0
    draft_prefixes: PrefixCache | None = None
    target_prefixes: PrefixCache | None = None

    @property
    def target(self) -> LoadedModel:
        """The target. Raises SpecprefillError where its weights are not loaded."""
        return self.pair.loaded_target

    @property
    def draft(self) -> LoadedModel:
        """The draft. Raises SpecprefillError where none is loaded."""
        return self.pair.loaded_draft

    @property
    def chunk_starts(self) -> np.ndarray:
        """The character of the document's text at which each chunk begins: [chunks]."""
        return self.prompt.offsets[:: self.chunk_size, 0]

    def of_tokens(self, values: np.ndarray) -> Tensor:
        """Values of chunks [chunks] as values of their tokens: [n], float32."""
        return torch.from_numpy(values).float().repeat_interleave(self.chunk_size)[: len(self.prompt.offsets)]

    @property
    def prompt_room(self) -> int:
        """Positions of the target's context that the longest answer leaves to the prompt."""
        return self.pair.target.context - self.max_new_tokens

    @property
    def draft_reach(self) -> int:
        """Positions from the first to the last token of the draft's prompt."""
        return self.draft_prompt.length + self.draft_gap

    @property
    def local_window(self) -> LocalWindow | None:
        """The draft's window as the adapter takes it: tokens after the document see everything."""
        if self.draft_window is None:
            return None
        return LocalWindow(self.draft_window, self.draft_prompt.document[1])

    def without_caches(self) -> "PrefillRequest":
        return replace(self, draft_prefixes=None, target_prefixes=None)

    def portable(self) -> "PrefillRequest":
        """The request for another rank: it fills in its pair and clock, and gets an empty cache."""
        return replace(self, pair=None, clock=None, draft_prefixes=None)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class PrefillResult:
    """The target after prefill.

    logits: [V] of the last prompt token; importance: [n] of the document's tokens, where they were scored
    draft_window: previous tokens that a document token saw in the draft; None: all of them, or no draft ran
    compact: where the target computed kept tokens; None: at their original positions
    reused: cached work of earlier questions that it used, in words; cached_tokens: tokens whose target KV was cached
    gate: whether the risk that remains in accepted draft KV was small enough; None without draft KV
    """

    logits: Tensor
    state: KvCacheState
    plan: Plan
    importance: Tensor | None = None
    draft_window: int | None = None
    compact: CompactPositions | None = None
    reused: tuple[str, ...] = ()
    cached_tokens: int = 0
    warnings: tuple[str, ...] = ()
    gate: GateVerdict | None = None

    @property
    def answer_position(self) -> int:
        """Position of the answer's first token: after the whole prompt, whatever was dropped, unless gaps are shortened."""
        return self.plan.prompt_tokens if self.compact is None else self.compact.end

    @property
    def seen_tokens(self) -> Tensor:
        """Indices in the prompt, ascending, of the tokens in the target's cache."""
        return self.state.positions if self.compact is None else self.compact.tokens


class Mode(ABC):
    """A way to prefill a prompt, registered by `name` in `prefill/registry.py`.

    uses_draft: whether it scores the document, and so may run the draft; uses_keep: whether `--keep` matters
    fallback_scorer: choice of `--scorer auto` where the draft has no calibrated heads
    """

    name: ClassVar[str]
    uses_draft: ClassVar[bool] = False
    uses_keep: ClassVar[bool] = False
    fallback_scorer: ClassVar[str] = "lexical"

    @abstractmethod
    def prefill(self, request: PrefillRequest) -> PrefillResult:
        """Prefill the target. Raises SpecprefillError where the pair does not allow this mode."""

    def cost(self, request: PrefillRequest) -> float:
        """Expected FLOPs of the prefill, with the fixed costs of passes and without cached tokens; 0: unknown."""
        return 0.0

    def new_cache_tokens(self, request: PrefillRequest) -> int:
        """Count the prompt tokens that the target's cache will hold and no earlier question left there."""
        return request.prompt.length
