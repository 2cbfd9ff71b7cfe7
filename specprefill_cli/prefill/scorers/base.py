"""What every scorer is given and gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from specprefill_cli.models.attention_plan import LocalWindow
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.prefix_cache import DocumentStates

if TYPE_CHECKING:
    from specprefill_cli.models.loading import LoadedPair
    from specprefill_cli.prompting import Prompt


@dataclass(frozen=True)
class ScoringRequest:
    """One prompt to score: in the target's tokens, and in the draft's (the same object where they share a tokenizer).

    document_text, question: the texts behind the tokens, for scorers that need no model
    keep_draft: whether the draft's cache will be wanted for decoding
    draft_window: how far back the draft sees while it reads the document, in tokens; None: to the start
    draft_reach: the draft layer whose input will be wanted, so that a scorer must not stop below it
    draft_states, target_states: what earlier questions left of the models' caches; None: start cold, leave nothing
    reused: what was not done again before scoring, in words
    """

    pair: LoadedPair
    prompt: Prompt
    draft_prompt: Prompt
    document_text: str
    question: str
    look_ahead: int
    chunk_size: int
    prefill_chunk: int
    seed: int
    clock: PhaseClock
    keep_draft: bool = False
    draft_window: int | None = None
    draft_reach: int = 0
    draft_states: DocumentStates | None = None
    target_states: DocumentStates | None = None
    reused: tuple[str, ...] = ()

    @property
    def local_reading(self) -> LocalWindow | None:
        """The draft's window as the adapter wants it: the tail sees everything."""
        if self.draft_window is None:
            return None
        return LocalWindow(self.draft_window, self.draft_prompt.document[1])


# Weight of its neighbours in a chunk's score, for all scorers but the published one and chance. On 90 training questions
# among 19 other contexts (earlier weights of the bundled pair), the answer's chunks were among the best 3 % in 88 % of the
# cases instead of 72 (`heads`), and in 81 instead of 67 (`lexical`); a weight of 1, or neighbours further away, found no
# more.
NEIGHBOURS = 0.5


@dataclass(frozen=True)
class Scores:
    """Importance [n] of the target's document tokens.

    auto_mass: share of its sum that `--keep auto` holds; None for the usual share
    neighbours: weight of the chunks beside it in a chunk's score
    draft_state: the draft's cache of exactly the prompt, where the scorer ran the draft and decoding wants it
    reused: what of earlier questions' work it stands on, in words
    """

    importance: Tensor
    auto_mass: float | None = None
    neighbours: float = 0.0
    draft_state: PrefillState | None = None
    reused: tuple[str, ...] = ()


class Scorer(Protocol):
    """A scorer: its registered name, whether it runs the draft, whether that looks ahead, and the scoring itself."""

    name: str
    uses_draft: bool
    looks_ahead: bool

    def score(self, request: ScoringRequest) -> Scores: ...
