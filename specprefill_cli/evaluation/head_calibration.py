"""Finding a draft's scoring heads on questions with known answers, and checking them on questions held out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from specprefill_cli.citations import occurrences
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.evaluation.datasets import Item
from specprefill_cli.models.adapter import QueryCapture, read_keys, window_layers
from specprefill_cli.models.cache import new_state
from specprefill_cli.prefill.head_search import Sighting, auto_mass, combined, search_heads, share_recalls
from specprefill_cli.prefill.heads import ScoringHeads, identity, layer_attention
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prefill.scorers.heads import asking_tokens
from specprefill_cli.prefill.scorers.question import QuestionScorer
from specprefill_cli.prefill.selection import chunk_scores
from specprefill_cli.session import Session
from specprefill_cli.settings import Settings
from specprefill_cli.timing import PhaseClock

FEWEST = 20


def calibrate_heads(
    session: Session, items: Sequence[Item], settings: Settings, step: Callable[[int], None]
) -> ScoringHeads:
    """Search on every other question and measure on the rest.

    Raises SpecprefillError when fewer than 20 questions have an answer that stands in their documents.
    """
    if all(window is not None for window in window_layers(session.pair.draft.model.config)):
        raise SpecprefillError(
            f"{session.pair.draft.name}: every layer has a sliding window, so that no head sees a whole document"
        )
    sightings = list(sight_all(session, items, settings, step))
    if len(sightings) < FEWEST:
        raise SpecprefillError(
            f"only {len(sightings)} of {len(items)} questions have an answer that stands in their documents and fit the "
            f"draft; scoring heads need at least {FEWEST}"
        )
    draft = session.pair.draft
    heads = draft.model.config.get_text_config().num_attention_heads
    searched, held_out = sightings[::2], sightings[1::2]
    chosen = search_heads(searched, heads)
    golds = [one.gold for one in held_out]
    ours = [combined(one, chosen, heads) for one in held_out]
    found, usual = share_recalls(ours, golds), share_recalls([one.usual for one in held_out], golds)
    everything = [combined(one, chosen, heads) for one in sightings]
    return ScoringHeads(
        heads=chosen,
        auto_mass=auto_mass(everything, [one.gold for one in sightings]),
        default=sum(found.values()) > sum(usual.values()),
        evidence={
            "questions": len(sightings),
            **{f"heads_{name}": round(value, 4) for name, value in found.items()},
            **{f"question_{name}": round(value, 4) for name, value in usual.items()},
        },
        **identity(draft),
    )


def sight_all(
    session: Session, items: Sequence[Item], settings: Settings, step: Callable[[int], None]
) -> Iterator[Sighting]:
    """What every head of the draft looks at for each question whose answer stands in its own context."""
    for number, item in enumerate(items):
        step(number)
        start, end = item.evidence
        places = [
            (start + low, start + high)
            for answer in item.answers[:1]
            for low, high in occurrences(answer, item.collection.text[start:end])
        ]
        if not places:
            continue
        request = session.prepare(item.collection, item.question, settings, PhaseClock())
        if request.draft_prompt.length + settings.look_ahead > session.pair.draft.context:
            continue
        yield sight(request, places[0])


@torch.inference_mode()
def sight(request: ScoringRequest, place: tuple[int, int]) -> Sighting:
    """One question's attention by head and chunk; `place` is the answer's character range in the document."""
    draft, prompt = request.pair.draft, request.draft_prompt
    text = draft.model.config.get_text_config()
    # A longer prompt than those seen here would outgrow any window, so windowed layers are left out at once.
    layers = [layer for layer, window in enumerate(window_layers(draft.model.config)) if window is None]
    capture = QueryCapture(asking_tokens(prompt.question, prompt.length))
    state = new_state(prompt.length)
    read_keys(
        draft.model,
        prompt.tokens,
        torch.arange(prompt.length),
        request.prefill_chunk,
        text.num_hidden_layers - 1,
        capture,
        state,
    )
    rows = []
    for layer in range(text.num_hidden_layers):
        if layer in layers:
            shares = layer_attention(state, capture, layer, list(range(text.num_attention_heads)), prompt.document)
            rows += [chunk_scores(share, request.chunk_size).numpy() for share in shares]
        else:
            rows += [np.zeros_like(rows[0]) if rows else np.zeros(1)] * text.num_attention_heads
    width = max(len(row) for row in rows)
    first = int((prompt.offsets[:, 1] <= place[0]).sum())
    last = max(first, int((prompt.offsets[:, 0] < place[1]).sum()) - 1)
    # Gold and heads count in the draft's tokens, so the usual scores must too.
    usual = QuestionScorer().score(replace(request, prompt=prompt)).importance
    return Sighting(
        scores=np.stack([row if len(row) == width else np.zeros(width) for row in rows]).astype(np.float32),
        gold=np.arange(first // request.chunk_size, last // request.chunk_size + 1),
        usual=chunk_scores(usual, request.chunk_size).numpy(),
    )
