"""Finding a draft's scoring heads on questions with known answers, and checking them on questions held out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.answering.citations import occurrences
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.calibration.head_search import (
    Sighting,
    auto_mass,
    combined,
    mean_recall,
    search_heads,
    search_lexical,
    share_recalls,
)
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.models.adapter import window_layers
from specprefill_cli.models.cache import new_state
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, PrefillRequest
from specprefill_cli.prefill.scorers.heads import read_prompt
from specprefill_cli.prefill.scorers.lexical import lexical_importance
from specprefill_cli.prefill.scorers.question import QuestionScorer
from specprefill_cli.prefill.scoring_heads import Head, ScoringHeads, blend, head_importance, draft_identity, layer_attention
from specprefill_cli.prefill.selection import chunk_scores, with_neighbours
from specprefill_cli.settings import Settings

FEWEST = 20
# Windows for reading that are tried, and the share of the recall without a window that the one taken must reach. Below 64
# little is won: the products become too thin.
WINDOWS = (64, 128, 256, 512, 1_024, 2_048)
WINDOW_RECALL, ENOUGH = 0.99, 4
# Of the usable questions, those that are searched on and those that are not.
SEARCHED, HELD_OUT = slice(0, None, 2), slice(1, None, 2)


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
    cases = list(usable_cases(session, items, settings))
    if len(cases) < FEWEST:
        raise SpecprefillError(
            f"only {len(cases)} of {len(items)} questions have an answer that stands in their documents and fit the "
            f"draft; scoring heads need at least {FEWEST}"
        )
    draft = session.pair.draft
    heads = draft.model.config.get_text_config().num_attention_heads
    sightings = []
    for number, case in enumerate(cases):
        step(number)
        sightings.append(sight(case))
    searched, held_out = sightings[SEARCHED], sightings[HELD_OUT]
    chosen = search_heads(searched, heads)
    lexical = search_lexical(searched, chosen, heads)
    golds = [one.gold for one in held_out]
    ways = {
        "heads": [combined(one, chosen, heads, lexical) for one in held_out],
        "attention": [combined(one, chosen, heads) for one in held_out],
        "lexical": [one.lexical for one in held_out],
        "question": [one.usual for one in held_out],
    }
    recalls = {name: share_recalls(scores, golds) for name, scores in ways.items()}
    everything = [combined(one, chosen, heads, lexical) for one in sightings]
    window, by_window, seen = smallest_window(cases, sightings, chosen, lexical, everything)
    return ScoringHeads(
        heads=chosen,
        lexical=lexical,
        auto_mass=auto_mass(seen, [one.gold for one in sightings]),
        default=sum(recalls["heads"].values()) > sum(recalls["question"].values()),
        evidence={
            "questions": len(sightings),
            **{f"{way}_{name}": round(value, 4) for way, found in recalls.items() for name, value in found.items()},
            **{f"mean_recall_window_{name}": round(value, 4) for name, value in by_window.items()},
        },
        window=window,
        **identity(draft),
    )


@dataclass(frozen=True)
class Case:
    """A question whose answer stands in its own context; place: the answer's character range in the document."""

    item: Item
    request: PrefillRequest
    place: tuple[int, int]


def usable_cases(session: Session, items: Sequence[Item], settings: Settings) -> Iterator[Case]:
    """The questions that fit the draft and whose answer stands in their own context."""
    for item in items:
        start, end = item.evidence
        places = [
            (start + low, start + high)
            for answer in item.answers[:1]
            for low, high in occurrences(answer, item.collection.text[start:end])
        ]
        if not places:
            continue
        request = session.request(item.collection, item.question, settings)
        if request.draft_prompt.length + settings.look_ahead <= session.pair.draft.context:
            yield Case(item, request, places[0])


def smallest_window(
    cases: Sequence[Case],
    sightings: Sequence[Sighting],
    chosen: Sequence[Head],
    lexical: float,
    whole: Sequence[np.ndarray],
) -> tuple[int | None, dict[str, float], Sequence[np.ndarray]]:
    """The smallest of WINDOWS with which the chosen heads find answers as often as WINDOW_RECALL asks; all recalls; and
    the chunk scores [chunks] with that window.

    lexical: the weight of words beside them; whole: chunk scores [chunks] without a window.
    A window is tried where half the prompts are ENOUGH times as long: in shorter ones it hides too little to tell.
    """
    golds = [one.gold for one in sightings]
    recalls = {"off": mean_recall(whole, golds)}
    found, seen = None, whole
    typical = np.median([case.request.draft_prompt.length for case in cases])
    for window in sorted((one for one in WINDOWS if ENOUGH * one <= typical), reverse=True):
        scores = [
            blend(windowed_scores(case.request, chosen, window), one.lexical, lexical)
            for case, one in zip(cases, sightings, strict=True)
        ]
        recalls[str(window)] = mean_recall(scores, golds)
        if recalls[str(window)] < WINDOW_RECALL * recalls["off"]:
            break
        found, seen = window, scores
    return found, recalls, seen


@torch.inference_mode()
def windowed_scores(request: PrefillRequest, heads: Sequence[Head], window: int) -> np.ndarray:
    """Chunk scores [chunks] of the heads when the draft reads with a window."""
    narrow = replace(request, prompt=request.draft_prompt, draft_window=window)
    state = new_state(narrow.prompt.length)
    capture = read_prompt(narrow, max(head.layer for head in heads), state)
    importance = head_importance(state, capture, narrow.prompt.document, tuple(heads))
    return judged(importance, request.chunk_size)


def judged(importance: Tensor, chunk_size: int) -> np.ndarray:
    """Scores [chunks] as selection sees them: importance [n] by chunk, with their neighbours'."""
    return with_neighbours(chunk_scores(importance, chunk_size), NEIGHBOURS).numpy()


@torch.inference_mode()
def sight(case: Case) -> Sighting:
    """One question's attention by head and chunk."""
    request, place = case.request, case.place
    draft, prompt = request.pair.draft, request.draft_prompt
    text = draft.model.config.get_text_config()
    # A longer prompt than those seen here would outgrow any window, so windowed layers are left out at once.
    layers = [layer for layer, window in enumerate(window_layers(draft.model.config)) if window is None]
    state = new_state(prompt.length)
    capture = read_prompt(replace(request, draft_window=None), text.num_hidden_layers - 1, state)
    rows = []
    for layer in range(text.num_hidden_layers):
        if layer in layers:
            shares = layer_attention(state, capture, layer, list(range(text.num_attention_heads)), prompt.document)
            rows += [judged(share, request.chunk_size) for share in shares]
        else:
            rows += [np.zeros_like(rows[0]) if rows else np.zeros(1)] * text.num_attention_heads
    width = max(len(row) for row in rows)
    first = int((prompt.offsets[:, 1] <= place[0]).sum())
    last = max(first, int((prompt.offsets[:, 0] < place[1]).sum()) - 1)
    # Gold and heads count in the draft's tokens, so the usual scores must too.
    own = replace(request, prompt=prompt, draft_window=None)
    usual = QuestionScorer().score(own).importance
    return Sighting(
        scores=np.stack([row if len(row) == width else np.zeros(width) for row in rows]).astype(np.float32),
        gold=np.arange(first // request.chunk_size, last // request.chunk_size + 1),
        usual=judged(usual, request.chunk_size),
        lexical=judged(lexical_importance(own), request.chunk_size),
    )
