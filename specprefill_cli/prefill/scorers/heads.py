"""Scorer `heads`: the draft's scoring heads, mixed with BM25; no layer above them runs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.prefill.calibration import HEADS_REMEDY, CalibratedPair, ScoringHeads
from specprefill_cli.prefill.importance import blend, check_finite, pool
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.attention import AttentionScorer
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, AutoBudget, lexical_importance
from specprefill_cli.prefill.scorers.parts import CoreScores, cached_parts, document_parts, normalise_cores, score_core
from specprefill_cli.prompting import Prompt
from specprefill_cli.settings import AUTO


class HeadsScorer(AttentionScorer):
    """Queries are the question's tokens and the prompt's last token, which predicts the answer's first."""

    name = "heads"
    looks_ahead = False
    any_length = True
    neighbours = NEIGHBOURS
    spread_limit = 0.58

    def query_tokens(self, prompt: Prompt) -> Tensor:
        return torch.tensor(sorted({*range(*prompt.question), prompt.length - 1}))

    def layers(self, request: PrefillRequest) -> Sequence[int]:
        """Layers of the scoring heads. Raises SpecprefillError where none are known, or none sees the whole prompt."""
        layers = sorted({head.layer for head in required_heads(request).heads} & {*super().layers(request)})
        if not layers:
            raise SpecprefillError(
                f"--scorer heads: the layers of draft {request.draft.name} that hold its scoring heads attend to a "
                f"window shorter than this prompt of {request.draft_reach} tokens; use --scorer question"
            )
        return layers

    def score_document(self, request: PrefillRequest) -> tuple[Tensor, bool]:
        parts = document_parts(request)
        # The first part lies farthest from the question: a layer that sees it from there sees every part.
        first_request = parts[0].cut_request(request)
        layers: dict[int, dict[int, float]] = {layer: {} for layer in self.layers(first_request)}
        for head in sorted(required_heads(request).heads, key=lambda head: head.head):
            if head.layer in layers:
                layers[head.layer][head.head] = head.weight
        requests = cached_parts(request, parts, self.last_layer(first_request) + 1)
        scores: list[list[CoreScores]] = []
        any_cached = False
        for part, part_request in zip(parts, requests, strict=True):
            state, capture, cached = self.prefill(part_request)
            any_cached |= cached
            with request.clock.phase("scoring"):
                prompt, layer_heads = part_request.draft_prompt, layers.items()
                inside = part.core_slice(prompt)
                cores = (score_core(state, capture, layer, list(heads), prompt, inside) for layer, heads in layer_heads)
                # Many parts would fill the memory of the draft's device.
                scores.append([core if len(parts) == 1 else core.cpu() for core in cores])
        with request.clock.phase("scoring"):
            importance = torch.zeros(len(request.draft_prompt.offsets))
            for heads, *cores_of_layer in zip(layers.values(), *scores, strict=True):
                importance += normalise_cores(cores_of_layer, torch.tensor(list(heads.values())))
            importance = check_finite(pool(importance[None])[0])
        return importance, any_cached

    def finish(self, request: PrefillRequest, importance: Tensor) -> Tensor:
        weight = required_heads(request).lexical
        return blend(importance, lexical_importance(request), weight) if weight else importance

    def auto_budget(self, request: PrefillRequest) -> AutoBudget:
        calibration = request.pair.target_calibration
        if calibration is not None and calibration.auto_mass is not None:
            return AutoBudget(share=calibration.auto_mass, tokens=calibration.auto_tokens)
        return self.general_budget(request)

    def general_budget(self, request: PrefillRequest) -> AutoBudget:
        """The budget of `--keep auto` where the target has no calibration of its own."""
        heads = required_heads(request)
        return AutoBudget(share=heads.auto_mass, tokens=heads.auto_tokens)

    def window(self, pair: CalibratedPair, setting: str | int) -> int | None:
        if setting == AUTO and pair.scoring_heads is not None:
            return pair.scoring_heads.window
        return super().window(pair, setting)

    def cost(self, request: PrefillRequest, with_overhead: bool = False) -> float:
        """`AttentionScorer.cost` of all parts, which have about the same size."""
        parts = document_parts(request)
        return len(parts) * super().cost(parts[0].cut_request(request), with_overhead)

    def obstacle(self, request: PrefillRequest) -> str | None:
        context, prompt = request.draft.context, request.draft_prompt
        if prompt.length - len(prompt.offsets) + request.chunk_size > context:
            return f"the draft's context of {context:,} tokens is too short for the question"
        return super().obstacle(document_parts(request)[0].cut_request(request))


def required_heads(request: PrefillRequest) -> ScoringHeads:
    """The pair's scoring heads. Raises SpecprefillError where there are none."""
    heads = request.pair.scoring_heads
    if heads is None:
        cause = f"no heads are known for draft {request.draft.name}"
        raise SpecprefillError(f"--scorer heads: {cause}; find them with {HEADS_REMEDY}")
    return heads
