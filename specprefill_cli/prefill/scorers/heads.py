"""Scorer `heads`: only the draft's heads that were found to point at answers; no look-ahead, and no layer above them.

Where calibration found that words help (BM25), they are mixed in: attention and words miss different passages.
"""

from __future__ import annotations

import torch

from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.adapter import read_keys, window_layers
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.query_capture import QueryCapture
from specprefill_cli.prefill.importance import transfer, usable_layers
from specprefill_cli.prefill.prefix_cache import DRAFT_STATE, open_state
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, Scores, ScoringRequest
from specprefill_cli.prefill.scorers.lexical import lexical_importance
from specprefill_cli.prefill.scoring_heads import REMEDY, blend, head_importance


class HeadsScorer:
    """The question's tokens and the prompt's last token ask, through the heads that `calibrate --heads` stored."""

    name = "heads"
    uses_draft = True
    looks_ahead = False

    def score(self, request: ScoringRequest) -> Scores:
        """Raises SpecprefillError where no heads are known, or none of them sees the prompt, or scores are not finite."""
        draft, prompt, clock = request.pair.draft, request.draft_prompt, request.clock
        heads = request.pair.scoring_heads
        if heads is None:
            raise SpecprefillError(
                f"--scorer heads: no heads are known for draft {draft.name}; find them with {REMEDY}"
            )
        reaching = usable_layers(window_layers(draft.model.config), prompt.length)
        used = tuple(head for head in heads.heads if head.layer in reaching)
        if not used:
            raise SpecprefillError(
                f"--scorer heads: the layers of draft {draft.name} that hold its scoring heads attend to a window shorter "
                f"than this prompt of {prompt.length} tokens; use --scorer question"
            )
        highest = max(request.draft_reach, *(head.layer for head in used))
        with clock.phase("draft_prefill"):
            state, keep = open_state(request.draft_states, draft, prompt, highest + 1, request.draft_window)
            done = state.length
            capture = read_prompt(request, highest, state)
            keep()
        with clock.phase("scoring"):
            importance = head_importance(state, capture, prompt.document, used)
            if request.draft_prompt is not request.prompt:
                importance = transfer(importance, prompt.offsets, request.prompt.offsets)
            if heads.lexical:
                importance = blend(importance, lexical_importance(request), heads.lexical)
        # Keys and values of every layer are all that decoding wants of the prompt.
        complete = highest == draft.model.config.get_text_config().num_hidden_layers - 1
        return Scores(
            importance,
            heads.auto_mass,
            NEIGHBOURS,
            state if complete and request.keep_draft else None,
            (DRAFT_STATE,) if done else (),
        )


def read_prompt(request: ScoringRequest, highest: int, state: PrefillState) -> QueryCapture:
    """Run the draft over what the state does not hold yet, as far as layer `highest`; the queries of tokens that ask."""
    prompt, done = request.draft_prompt, state.length
    capture = QueryCapture(asking_tokens(prompt.question, prompt.length))
    read_keys(
        request.pair.draft.model,
        prompt.tokens[done:],
        torch.arange(done, prompt.length),
        request.prefill_chunk,
        highest,
        capture,
        state,
        request.local_reading,
    )
    return capture


def asking_tokens(question: tuple[int, int], prompt_tokens: int) -> torch.Tensor:
    """Indices of the question's tokens and of the prompt's last one, which predicts the answer's first."""
    return torch.tensor(sorted({*range(*question), prompt_tokens - 1}))
