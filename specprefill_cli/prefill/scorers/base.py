"""The interface of scorers, their result, and the scorers without a model: `lexical` and the control `random`."""

import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specprefill_cli.prefill.bm25 import word_scores
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.request import PrefillRequest

# Weight of a chunk's two neighbours in its rank: an answer may straddle chunks, and its sentence often does.
NEIGHBOURS = 0.5


@dataclass(frozen=True, kw_only=True)
class AutoBudget:
    """The budget of `--keep auto`: the fewest chunks that hold a share of the importance's mass.

    share: of the mass of the best chunks with `tokens` document tokens together, or of all chunks (None):
        unimportant text grows with the document, the evidence for an answer does not
    """

    share: float = 0.6
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Importance [n] of the target's document tokens.

    neighbours: weight of a chunk's two neighbours in its rank
    whole_sentences: whether a kept chunk brings the rest of the sentences that it cuts, within the same budget of tokens
    spread_limit: `spread_ratio` of chunks above which the evidence is spread over the document; None where it is unknown
    reused: cached work of earlier questions that it used, in words
    warnings: what the user should know about the choice
    """

    importance: Tensor
    auto_budget: AutoBudget = AutoBudget()
    neighbours: float = 0.0
    whole_sentences: bool = False
    spread_limit: float | None = None
    reused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Scorer(ABC):
    """A way to score document tokens, registered by `name` in `prefill/registry.py`.

    uses_draft: whether it runs the draft; looks_ahead: whether `look_ahead` matters
    any_length: whether it scores prompts longer than the draft's context, where it runs the draft
    """

    name: ClassVar[str]
    uses_draft: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = False
    any_length: ClassVar[bool] = False

    @abstractmethod
    def score(self, request: PrefillRequest) -> Scores:
        """Score the document's tokens. Raises SpecprefillError where the pair does not allow this scorer."""

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        """FLOPs of the draft; with_overhead: add the fixed cost of its passes."""
        return 0.0

    def window(self, pair: CalibratedPair, setting: str | int) -> int | None:
        """Previous tokens that a document token sees in the draft, for a setting of `draft_window`; None: all of them."""
        return setting if isinstance(setting, int) else None

    def obstacle(self, request: PrefillRequest) -> str | None:
        """Why this scorer cannot score a prompt, or None."""
        return None


class LexicalScorer(Scorer):
    """Okapi BM25 with k1 = 1.2 and b = 0.75, over chunks."""

    name = "lexical"

    def score(self, request: PrefillRequest) -> Scores:
        with request.clock.phase("scoring"):
            return Scores(importance=lexical_importance(request), neighbours=NEIGHBOURS)


def lexical_importance(request: PrefillRequest) -> Tensor:
    """BM25 of each document token's chunk, in the target's tokens: [n], float32."""
    starts = request.chunk_starts
    if not len(starts):
        return torch.zeros(0)
    return request.of_tokens(word_scores(request.question, request.collection.text, starts))


class RandomScorer(Scorer):
    """Uniform scores, a score for each chunk, from the request's seed: the control that every other scorer must beat."""

    name = "random"

    def score(self, request: PrefillRequest) -> Scores:
        with request.clock.phase("scoring"):
            # Questions about the same document do not all get the same chunks.
            seed = request.settings.seed ^ zlib.crc32(request.question.encode("utf-8", "replace"))
            chunks = torch.rand(len(request.chunk_starts), generator=torch.Generator().manual_seed(seed))
            return Scores(importance=request.of_tokens(chunks.numpy()))
