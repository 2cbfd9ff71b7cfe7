"""Scoring by the draft's attention: what the scorers `question` and `paper` share."""

from __future__ import annotations

import torch
from torch import Tensor

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import prefill, run, window_layers
from specprefill_cli.models.cache import PrefillState, rollback
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.importance import attention_importance, transfer, usable_layers
from specprefill_cli.prefill.prefix_cache import DRAFT_STATE, open_state
from specprefill_cli.prefill.scorers.base import Scores, ScoringRequest


def score_with_queries(request: ScoringRequest, wanted: Tensor, decoded_queries: int) -> Scores:
    """Prefill the draft, look ahead greedily, and score with the queries of `wanted` tokens and of decoded ones.

    wanted: indices of tokens in the prompt's tail, ascending; decoded_queries: how many decoded tokens
    add a query (fewer when the draft ends its answer first)

    Raises SpecprefillError for a draft whose layers all see less than the prompt, and for scores that are not finite.
    """
    draft, prompt, clock = request.pair.draft, request.draft_prompt, request.clock
    layers = usable_layers(window_layers(draft.model.config), prompt.length)
    if not layers:
        raise SpecprefillError(
            f"draft {draft.name}: all its layers attend to a window shorter than this prompt of {prompt.length} tokens; "
            "use --scorer lexical, --mode full, or another --draft"
        )
    capture = QueryCapture(wanted)
    with clock.phase("draft_prefill"):
        filled = draft.config.get_text_config().num_hidden_layers
        state, keep = open_state(request.draft_states, draft, prompt, filled, request.draft_window)
        done = state.length
        logits, _ = prefill(
            draft.model,
            prompt.tokens[done:],
            torch.arange(done, prompt.length),
            request.prefill_chunk,
            capture,
            state,
            request.local_reading,
        )
        keep()
    with clock.phase("look_ahead"):
        look_ahead(request, logits, state, capture, decoded_queries)
    with clock.phase("scoring"):
        importance = attention_importance(state, capture, prompt.document, layers)
        if request.draft_prompt is not request.prompt:
            importance = transfer(importance, prompt.offsets, request.prompt.offsets)
    rollback(state, prompt.length)
    return Scores(
        importance,
        draft_state=state if request.keep_draft else None,
        reused=(DRAFT_STATE,) if done else (),
    )


def look_ahead(request: ScoringRequest, logits: Tensor, state: PrefillState, capture: QueryCapture, steps: int) -> None:
    """Decode up to `steps` tokens greedily, keeping the queries of each; stops where the draft ends its answer."""
    draft = request.pair.draft
    for step in range(steps):
        token = int(logits.argmax())
        if token in draft.stop_tokens:
            break
        position = request.draft_prompt.length + step
        capture.positions = torch.tensor([position])
        more = step + 1 < steps
        logits = run(draft.model, torch.tensor([token]), torch.tensor([position]), state, capture, logits=more)
