"""Scorers `question` and `paper`, and their base: the attention of a few queries in a single run of the draft."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.models.running.adapter import prefill, run, window_layers
from specprefill_cli.models.running.cache import KvCacheState, layer_count
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.importance import attention_importance, transfer, usable_layers
from specprefill_cli.prefill.prefix_cache import DRAFT_PREFIX, cached_tokens, open_prefix
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, AutoBudget, Scorer, Scores
from specprefill_cli.prompting import Prompt
from specprefill_cli.settings import AUTO

# The draft window where none is calibrated: without it, attention would be most of the work in long documents.
DEFAULT_WINDOW = 4_096


class AttentionScorer(Scorer):
    """The attention of a few queries scores; neighbours, spread_limit: as in `Scores`."""

    uses_draft = True
    looks_ahead = True
    neighbours = 0.0
    spread_limit: float | None = None

    @abstractmethod
    def query_tokens(self, prompt: Prompt) -> Tensor:
        """Return the indices [Q], ascending, of the tokens in the suffix that query the document."""

    def decoded_queries(self, look_ahead: int) -> int:
        """How many look-ahead tokens add a query; fewer do where the draft ends its answer first."""
        return look_ahead if self.looks_ahead else 0

    def layers(self, request: PrefillRequest) -> Sequence[int]:
        """Return the draft layers, ascending, that score. Raises SpecprefillError where there is none."""
        draft, length = request.draft, request.draft_reach
        layers = usable_layers(window_layers(draft.config), length)
        if not layers:
            raise SpecprefillError(
                f"draft {draft.name}: all its layers attend to a window shorter than this prompt of {length} tokens; "
                "use --scorer lexical, --mode full, or another --draft"
            )
        return layers

    def last_layer(self, request: PrefillRequest) -> int:
        """The highest layer of the draft that runs: the last layer where it looks ahead, else the highest layer used."""
        if self.looks_ahead:
            return layer_count(request.draft.model) - 1
        return max(request.last_draft_layer, *self.layers(request))

    def score_document(self, request: PrefillRequest) -> tuple[Tensor, bool]:
        """The importance [n] of the draft's document tokens, and whether a cache held their KV."""
        prompt = request.draft_prompt
        state, capture, cached = self.prefill(request)
        with request.clock.phase("scoring"):
            importance = attention_importance(state, capture, prompt.length, prompt.document, self.layers(request))
        return importance, cached

    def finish(self, request: PrefillRequest, importance: Tensor) -> Tensor:
        """Last changes to the importance [n], now of the target's document tokens."""
        return importance

    def auto_budget(self, request: PrefillRequest) -> AutoBudget:
        return AutoBudget()

    def score(self, request: PrefillRequest) -> Scores:
        """Score with a single run of the draft. Raises SpecprefillError like `layers`, and for scores that are not finite."""
        importance, cached = self.score_document(request)
        with request.clock.phase("scoring"):
            if request.draft_prompt is not request.prompt:
                importance = transfer(importance, request.draft_prompt.offsets, request.prompt.offsets)
            importance = self.finish(request, importance)
        return Scores(
            importance=importance,
            auto_budget=self.auto_budget(request),
            neighbours=self.neighbours,
            spread_limit=self.spread_limit,
            reused=(DRAFT_PREFIX,) if cached else (),
        )

    def window(self, pair: CalibratedPair, setting: str | int) -> int | None:
        return DEFAULT_WINDOW if setting == AUTO else super().window(pair, setting)

    def prefill(self, request: PrefillRequest) -> tuple[KvCacheState, QueryCapture, bool]:
        """Read the prompt and look ahead: the draft's state, the queries, and whether a cache held the document."""
        prompt, clock, last_layer = request.draft_prompt, request.clock, self.last_layer(request)
        capture = QueryCapture(self.query_tokens(prompt))
        with clock.phase("draft_prefill"):
            prefixes, window = request.draft_prefixes, request.draft_window
            state, store_prefix = open_prefix(prefixes, request.draft, prompt, last_layer + 1, window)
            cached = state.length
            logits = self.read(request, state, capture, last_layer)
            store_prefix()
        if self.looks_ahead:
            with clock.phase("look_ahead"):
                look_ahead(request, logits, state, capture, self.decoded_queries(request.look_ahead))
        return state, capture, cached > 0

    def read(self, request: PrefillRequest, state: KvCacheState, capture: QueryCapture, last_layer: int) -> Tensor:
        """Run the draft over the tokens that the state lacks; return logits [V] if the whole draft runs."""
        size, window = request.prefill_chunk, request.local_window
        read = partial(prefill, request.draft.model, pass_size=size, state=state, capture=capture, local_window=window)
        prompt, start = request.draft_prompt, state.length
        tokens, positions, end = prompt.tokens, torch.arange(prompt.length), prompt.document[1]
        if request.draft_gap:
            # A pass of its own: attention to a local window is fastest over positions without a gap.
            read(tokens[start:end], positions[start:end], last_layer=last_layer)
            positions[end:] += request.draft_gap
        unread = slice(state.length, None)
        return read(tokens[unread], positions[unread], last_layer=None if self.looks_ahead else last_layer)[0]

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        """FLOPs of the draft, with or without the fixed cost of passes, on all ranks, which wait for rank 0."""
        draft, prompt, last_layer = request.draft, request.draft_prompt, self.last_layer(request)
        cost = cost_of(draft)
        cached = cached_tokens(request.draft_prefixes, draft, prompt, last_layer + 1, request.draft_window)
        # The suffix sees everything.
        local = None if cached else request.local_window
        overhead = cost.overhead_flops() if with_overhead else 0.0
        if self.looks_ahead:
            steps = self.decoded_queries(request.look_ahead)
            flops = cost.prefill_flops(prompt.length - cached, local, cached) + overhead
            flops += steps * (cost.pass_flops(1, prompt.length) + overhead)
        else:
            flops = cost.reading_flops(prompt.length - cached, last_layer, local, cached) + overhead
        return flops * request.pair.ranks.size

    def obstacle(self, request: PrefillRequest) -> str | None:
        draft, reach = request.draft, request.draft_reach
        if reach + self.decoded_queries(request.look_ahead) > draft.context:
            return f"the draft's context of {draft.context:,} tokens is too short for the prompt"
        if not usable_layers(window_layers(draft.config), reach):
            return f"every layer of the draft sees less than the {reach:,} tokens"
        return None


class QuestionScorer(AttentionScorer):
    """The question's own tokens, without the chat template's suffix, and every look-ahead token are queries."""

    name = "question"
    neighbours = NEIGHBOURS

    def query_tokens(self, prompt: Prompt) -> Tensor:
        return torch.arange(*prompt.question)


class PaperScorer(AttentionScorer):
    """As published (arXiv 2502.02789): queries are the last prompt token and `look_ahead` - 1 decoded tokens; no window."""

    name = "paper"

    def query_tokens(self, prompt: Prompt) -> Tensor:
        return torch.tensor([prompt.length - 1])

    def decoded_queries(self, look_ahead: int) -> int:
        return max(0, look_ahead - 1)

    def window(self, pair: CalibratedPair, setting: str | int) -> None:
        return None


def look_ahead(request: PrefillRequest, logits: Tensor, state: KvCacheState, capture: QueryCapture, steps: int) -> None:
    """Decode up to `steps` tokens greedily, keeping the queries of each; stop where the draft ends its answer."""
    draft = request.draft
    for step in range(steps):
        token = int(logits.argmax())
        if token in draft.stop_tokens:
            break
        position = torch.tensor([request.draft_prompt.length + step])
        capture.positions = torch.cat([capture.positions, position])
        # Of the last token only the queries are needed.
        last_layer = None if step + 1 < steps else layer_count(draft.model) - 1
        logits = run(draft.model, torch.tensor([token]), position, state, capture=capture, last_layer=last_layer)
