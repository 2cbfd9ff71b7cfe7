"""The interface of modes, and their result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specprefill_cli.models.running.cache import KvCacheState
from specprefill_cli.prefill.fates import CompactPositions, Plan
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import GateVerdict


@dataclass(frozen=True, kw_only=True)
class PrefillResult:
    """The target after prefill.

    logits: [V] of the last prompt token; importance: [n] of the document's tokens, where they were scored
    draft_state: the draft's cache of the whole prompt, where the draft ran and decoding needs it
    draft_window: previous tokens that a document token saw in the draft; None: all of them, or no draft ran
    compact: where the target computed kept tokens; None: at their original positions
    reused: cached work of earlier questions that it used, in words; cached_tokens: tokens whose target KV was cached
    gate: whether the risk that remains in accepted draft KV was small enough; None without draft KV
    """

    logits: Tensor
    state: KvCacheState
    plan: Plan
    importance: Tensor | None = None
    draft_state: KvCacheState | None = None
    draft_window: int | None = None
    compact: CompactPositions | None = None
    reused: tuple[str, ...] = ()
    cached_tokens: int = 0
    warnings: tuple[str, ...] = ()
    gate: GateVerdict | None = None

    @property
    def answer_position(self) -> int:
        """Position of the answer's first token."""
        return self.plan.prompt_tokens if self.compact is None else self.compact.end

    @property
    def seen_tokens(self) -> Tensor:
        """Indices in the prompt, ascending, of the tokens in the target's cache."""
        return self.state.positions if self.compact is None else self.compact.tokens


class Mode(ABC):
    """A way to prefill a prompt, registered by `name` in `prefill/registry.py`.

    uses_draft: whether it scores the document, and so may run the draft; uses_keep: whether `--keep` matters
    fallback_scorer: choice of `--scorer auto` where the draft has no calibrated heads
    any_length: whether it takes prompts longer than the target's context
    automatic: whether `--mode auto` may take it, where `cost` promises a gain over `full`
    """

    name: ClassVar[str]
    uses_draft: ClassVar[bool] = False
    uses_keep: ClassVar[bool] = False
    fallback_scorer: ClassVar[str] = "lexical"
    any_length: ClassVar[bool] = False
    automatic: ClassVar[bool] = False

    @abstractmethod
    def prefill(self, request: PrefillRequest) -> PrefillResult:
        """Prefill the target. Raises SpecprefillError where the pair does not allow this mode."""

    def cost(self, request: PrefillRequest) -> float | None:
        """Expected FLOPs of the prefill, with the fixed costs of passes and without cached tokens; None: unknown."""
        return None

    def obstacle(self, request: PrefillRequest) -> str | None:
        """Why `--mode auto` cannot take this mode for a prompt, or None."""
        return None

    def new_cache_tokens(self, request: PrefillRequest) -> int:
        """Count the prompt tokens that the target's cache will hold and no earlier question left there."""
        return request.prompt.length
