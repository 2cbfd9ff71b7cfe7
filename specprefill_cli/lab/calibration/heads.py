"""Finds a draft's scoring heads on questions with known answers, and checks them on held-out questions."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.answering.places import occurrences
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.calibration import head_search as search
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.models.loaded import LoadedModel
from specprefill_cli.models.running.adapter import window_layers
from specprefill_cli.models.running.cache import KvCacheState, new_state
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.prefill.calibration import Head, ScoringHeads, model_identity
from specprefill_cli.prefill.importance import blend, layer_attention
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.attention import QuestionScorer
from specprefill_cli.prefill.scorers.base import NEIGHBOURS, lexical_importance
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.prefill.selection import add_neighbours, chunk_scores
from specprefill_cli.settings import Settings

FEWEST_QUESTIONS = 20
# Candidate draft windows, and the recall that the chosen window must reach, relative to no window.
WINDOWS = (64, 128, 256, 512, 1_024, 2_048)
WINDOW_RECALL = 0.99
# Try a window only if half the prompts are at least this many times as long: in shorter prompts it hides too little.
SHORTEST_PROMPT = 4
# The scorers without calibration; the heads must beat them.
UNCALIBRATED = ("question", "lexical")


def calibrate_heads(
    session: Session, items: Sequence[Item], settings: Settings, step: Callable[[str], None]
) -> ScoringHeads:
    """Search on every other question and measure on the rest.

    Raises SpecprefillError if too few questions have an answer that stands in their documents.
    """
    draft = session.pair.loaded_draft
    if all(window is not None for window in window_layers(draft.config)):
        raise SpecprefillError(f"{draft.name}: every layer has a sliding window, and no head sees a whole document")
    cases = list(usable_cases(session, items, settings))
    if len(cases) < FEWEST_QUESTIONS:
        raise SpecprefillError(
            f"only {len(cases)} of {len(items)} questions have an answer that stands in their documents and fit the "
            f"draft; scoring heads need at least {FEWEST_QUESTIONS}"
        )
    heads = draft.config.get_text_config().num_attention_heads
    sightings = []
    for number, case in enumerate(cases):
        step(f"searching the draft's heads: {number:,} of {len(cases):,}")
        sightings.append(sight(case, draft))
    searched, held_out = sightings[::2], sightings[1::2]
    chosen_heads = search.search_heads(searched, heads)
    lexical = search.search_lexical(searched, chosen_heads, heads)
    unlimited = [search.combine_heads(sighting, chosen_heads, heads, lexical) for sighting in sightings]
    window, window_recalls, windowed = smallest_window(cases, sightings, chosen_heads, lexical, unlimited)
    scores = {
        "heads": unlimited[1::2],
        "attention": [search.combine_heads(sighting, chosen_heads, heads) for sighting in held_out],
        "lexical": [sighting.lexical for sighting in held_out],
        "question": [sighting.question for sighting in held_out],
    }
    golds = [sighting.gold for sighting in held_out]
    recalls = {
        f"{scorer}_recall_{keep:g}": round(search.recall_at(keep, rows, golds), 4)
        for scorer, rows in scores.items()
        for keep in search.KEEP_RATIOS
    }
    mean_recalls = {scorer: search.mean_recall(rows, golds) for scorer, rows in scores.items()}
    by_window = {f"mean_recall_window_{name}": round(value, 4) for name, value in window_recalls.items()}
    return ScoringHeads(
        heads=chosen_heads,
        lexical=lexical,
        auto_mass=search.auto_mass(windowed, [sighting.gold for sighting in sightings]),
        auto_tokens=int(median(case.request.document_tokens for case in cases)),
        default=all(mean_recalls["heads"] > mean_recalls[scorer] for scorer in UNCALIBRATED),
        evidence={"questions": len(sightings), **recalls, **by_window},
        window=window,
        **model_identity(draft),
    )


@dataclass(frozen=True)
class Case:
    """A question whose answer stands in its own context; place: the answer's character range in the document."""

    request: PrefillRequest
    place: tuple[int, int]


def usable_cases(session: Session, items: Sequence[Item], settings: Settings) -> Iterator[Case]:
    """Yield the questions that fit the draft and whose first answer stands in their own context."""
    draft = session.pair.loaded_draft
    for item in items:
        start, end = item.evidence
        places = occurrences(item.answers[0], item.collection.text[start:end]) if item.answers else []
        for low, high in places[:1]:
            request = session.request(item.collection, item.question, settings)
            if request.draft_prompt.length + settings.look_ahead <= draft.context:
                yield Case(request, (start + low, start + high))


def smallest_window(
    cases: Sequence[Case],
    sightings: Sequence[search.Sighting],
    chosen_heads: Sequence[Head],
    lexical: float,
    unlimited: Sequence[np.ndarray],
) -> tuple[int | None, dict[str, float], Sequence[np.ndarray]]:
    """Find the smallest window that reaches `WINDOW_RECALL`; return it, all windows' recall, and its chunk scores [chunks].

    lexical: the weight of BM25; unlimited: chunk scores [chunks] without a window
    """
    golds = [sighting.gold for sighting in sightings]
    recalls = {"off": search.mean_recall(unlimited, golds)}
    best_window, best_scores = None, unlimited
    median_length = np.median([case.request.draft_prompt.length for case in cases])
    for window in sorted((window for window in WINDOWS if SHORTEST_PROMPT * window <= median_length), reverse=True):
        scores = [
            blend(windowed_scores(case.request, chosen_heads, window), sighting.lexical, lexical)
            for case, sighting in zip(cases, sightings, strict=True)
        ]
        recalls[str(window)] = search.mean_recall(scores, golds)
        if recalls[str(window)] < WINDOW_RECALL * recalls["off"]:
            break
        best_window, best_scores = window, scores
    return best_window, recalls, best_scores


@torch.inference_mode()
def windowed_scores(request: PrefillRequest, heads: Sequence[Head], window: int) -> np.ndarray:
    """Chunk scores [chunks] of the heads with a draft window."""
    narrow = replace(request, prompt=request.draft_prompt, draft_window=window)
    state, capture = read_prompt(narrow, max(head.layer for head in heads))
    document = narrow.prompt.document
    weighted = (head.weight * layer_attention(state, capture, head.layer, [head.head], document)[0] for head in heads)
    return scores_for_selection(torch.stack(list(weighted)).sum(0), request.chunk_size)


def read_prompt(request: PrefillRequest, last_layer: int) -> tuple[KvCacheState, QueryCapture]:
    """Run the draft over a prompt up to a layer; return its cache, and the queries that the scorer `heads` uses."""
    scorer, state = HeadsScorer(), new_state(request.draft_prompt.length)
    capture = QueryCapture(scorer.query_tokens(request.draft_prompt))
    scorer.read(request, state, capture, last_layer)
    return state, capture


def scores_for_selection(importance: Tensor, chunk_size: int) -> np.ndarray:
    """Chunk scores [chunks] for selection: importance [n] by chunk, blended with the neighbours' scores."""
    return add_neighbours(chunk_scores(importance, chunk_size), NEIGHBOURS).numpy()


@torch.inference_mode()
def sight(case: Case, draft: LoadedModel) -> search.Sighting:
    """Measure a question's attention by head and chunk."""
    # Gold chunks and heads use the draft's tokens, so the other scorers must use them too.
    request = replace(case.request, prompt=case.request.draft_prompt, draft_window=None)
    prompt, size = request.prompt, request.chunk_size
    text_config = draft.config.get_text_config()
    layers, heads = text_config.num_hidden_layers, text_config.num_attention_heads
    state, capture = read_prompt(request, layers - 1)
    start, end = prompt.document
    scores = np.zeros((layers, heads, math.ceil((end - start) / size)), np.float32)
    for layer, window in enumerate(window_layers(draft.config)):
        # Skip layers with a sliding window: their heads miss most of a long prompt.
        if window is None:
            attention = layer_attention(state, capture, layer, list(range(heads)), prompt.document)
            scores[layer] = [scores_for_selection(row, size) for row in attention]
    first = int((prompt.offsets[:, 1] <= case.place[0]).sum())
    last = max(first, int((prompt.offsets[:, 0] < case.place[1]).sum()) - 1)
    return search.Sighting(
        scores=scores.reshape(-1, scores.shape[-1]),
        gold=np.arange(first // size, last // size + 1),
        question=scores_for_selection(QuestionScorer().score(request).importance, size),
        lexical=scores_for_selection(lexical_importance(request), size),
    )
