"""Scoring by the draft's attention: one run of the draft, from which a scorer picks its queries and its reduction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import prefill, read_keys, run, window_layers
from specprefill_cli.models.cache import PrefillState, rollback
from specprefill_cli.models.cost import cost_of
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.models.raw_kv import layer_count
from specprefill_cli.prefill.importance import attention_importance, transfer, usable_layers
from specprefill_cli.prefill.prefix_cache import DRAFT_PREFIX, cached_tokens, open_prefix
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scorer, Scores
from specprefill_cli.prompting import Prompt


class AttentionScorer(Scorer):
    """Runs the draft over the prompt and scores document tokens by the attention of a few queries.

    A subclass says which tokens of the prompt are queries, how many decoded ones join them, and how attention becomes
    importance. neighbours: as in `Scores`
    """

    uses_draft = True
    looks_ahead = True
    uses_window = True
    neighbours = 0.0

    @abstractmethod
    def query_tokens(self, prompt: Prompt) -> Tensor:
        """Indices [Q], ascending, of the suffix's tokens whose queries score the document."""

    def decoded_queries(self, look_ahead: int) -> int:
        """How many look-ahead tokens add a query; fewer do where the draft ends its answer first."""
        return look_ahead

    def layers(self, request: PrefillRequest) -> Sequence[int]:
        """Draft layers, ascending, whose attention is used. Raises SpecprefillError where there is none."""
        draft, length = request.draft, request.draft_prompt.length
        layers = usable_layers(window_layers(draft.config), length)
        if not layers:
            raise SpecprefillError(
                f"draft {draft.name}: all its layers attend to a window shorter than this prompt of {length} tokens; "
                "use --scorer lexical, --mode full, or another --draft"
            )
        return layers

    def reads_all_layers(self) -> bool:
        """Whether the whole draft runs, as look-ahead needs it, or only the layers up to the highest one used."""
        return True

    def last_layer(self, request: PrefillRequest) -> int:
        """The highest layer of the draft that runs."""
        if self.reads_all_layers():
            return layer_count(request.draft.model) - 1
        return max(request.last_draft_layer, *self.layers(request))

    def reduce(
        self, request: PrefillRequest, state: PrefillState, capture: QueryCapture, layers: Sequence[int]
    ) -> Tensor:
        """Importance [n] of the draft's document tokens, float32 on the CPU."""
        prompt = request.draft_prompt
        queries = self.query_tokens(prompt)
        decoded = capture.layer(layers[0]).shape[1] - len(queries)
        positions = torch.cat([queries, torch.arange(prompt.length, prompt.length + decoded)])
        return attention_importance(state, capture, positions, prompt.length, prompt.document, layers)

    def finish(self, request: PrefillRequest, importance: Tensor) -> Tensor:
        """Last changes to the importance [n], now of the target's document tokens."""
        return importance

    def auto_mass(self, request: PrefillRequest) -> float | None:
        """Share of the importance that `--keep auto` holds; None for the usual share."""
        return None

    def score(self, request: PrefillRequest) -> Scores:
        """Score with one run of the draft. Raises SpecprefillError as `layers`, and for scores that are not finite."""
        prompt, clock = request.draft_prompt, request.clock
        layers, last_layer = self.layers(request), self.last_layer(request)
        capture = QueryCapture(self.query_tokens(prompt))
        with clock.phase("draft_prefill"):
            state, keep = open_prefix(
                request.draft_prefixes, request.draft, prompt, last_layer + 1, request.draft_window
            )
            cached = state.length
            logits = self.read(request, state, capture, last_layer)
            keep()
        if logits is not None:
            with clock.phase("look_ahead"):
                look_ahead(request, logits, state, capture, self.decoded_queries(request.look_ahead))
        with clock.phase("scoring"):
            importance = self.reduce(request, state, capture, layers)
            if request.draft_prompt is not request.prompt:
                importance = transfer(importance, prompt.offsets, request.prompt.offsets)
            importance = self.finish(request, importance)
        rollback(state, prompt.length)
        # Decoding needs keys and values of every layer.
        usable = request.keep_draft_state and last_layer == layer_count(request.draft.model) - 1
        return Scores(
            importance=importance,
            auto_mass=self.auto_mass(request),
            neighbours=self.neighbours,
            draft_state=state if usable else None,
            reused=(DRAFT_PREFIX,) if cached else (),
        )

    def read(
        self, request: PrefillRequest, state: PrefillState, capture: QueryCapture, last_layer: int
    ) -> Tensor | None:
        """Run the draft over the tokens that the state lacks; logits [V] of the last one where the whole draft ran."""
        model, prompt, local = request.draft.model, request.draft_prompt, request.local_window
        tokens, positions = prompt.tokens[state.length :], torch.arange(state.length, prompt.length)
        if self.reads_all_layers():
            logits, _ = prefill(model, tokens, positions, request.prefill_chunk, capture, state, local)
            return logits
        read_keys(model, tokens, positions, request.prefill_chunk, last_layer, capture, state, local)
        return None

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        """Operations of the draft's run; it runs on every rank, while ranks share the target."""
        draft, prompt, last_layer = request.draft, request.draft_prompt, self.last_layer(request)
        cost = cost_of(draft)
        cached = cached_tokens(request.draft_prefixes, draft, prompt, last_layer + 1, request.draft_window)
        # What stands behind the document sees everything.
        local = None if cached else request.local_window
        overhead = cost.overhead_flops() if with_overhead else 0.0
        if self.reads_all_layers():
            steps = self.decoded_queries(request.look_ahead)
            flops = cost.prefill_flops(prompt.length - cached, local, cached) + overhead
            flops += steps * (cost.pass_flops(1, prompt.length) + overhead)
        else:
            flops = cost.reading_flops(prompt.length - cached, last_layer, local, cached) + overhead
        return flops * request.pair.ranks.size

    def obstacle(self, request: PrefillRequest) -> str | None:
        """Layers that see too little, or a context that is too short."""
        draft, tokens = request.draft, request.draft_prompt.length
        if not usable_layers(window_layers(draft.config), tokens):
            return f"every layer of the draft sees less than the {tokens:,} tokens"
        if tokens + (request.look_ahead if self.looks_ahead else 0) > draft.context:
            return f"the draft's context of {draft.context:,} tokens is too short for the prompt"
        return None


def look_ahead(request: PrefillRequest, logits: Tensor, state: PrefillState, capture: QueryCapture, steps: int) -> None:
    """Decode up to `steps` tokens greedily, keeping the queries of each; stop where the draft ends its answer."""
    draft = request.draft
    for step in range(steps):
        token = int(logits.argmax())
        if token in draft.stop_tokens:
            break
        position = request.draft_prompt.length + step
        capture.positions = torch.tensor([position])
        # Behind the last token only its queries are needed.
        last_layer = None if step + 1 < steps else layer_count(draft.model) - 1
        logits = run(draft.model, torch.tensor([token]), torch.tensor([position]), state, capture, last_layer)
