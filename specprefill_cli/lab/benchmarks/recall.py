"""How often scorers keep the text that answers a question, at equal numbers of tokens, and how long they take."""

import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.answering.passages import best_passages, rank_sentences
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import answer_kept, facts_kept
from specprefill_cli.lab.evaluation.metrics import contains_answer
from specprefill_cli.lab.evaluation.statistics import mean_figures, mean_or_none, share_figures
from specprefill_cli.lab.tables import Columns, Row, figure, keep_text
from specprefill_cli.models.encoder_files import load_encoder
from specprefill_cli.prefill.prefix_cache import DocumentCache, PrefixCache
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import LexicalScorer, Scorer, Scores
from specprefill_cli.prefill.selection import select_scored
from specprefill_cli.settings import Settings

# The reported time is for this number of tokens; then the number of passages under an answer.
UNIT, PASSAGES = 1_000, 3
# The name of the group of all questions.
ALL = "all"
# Memory, in bytes, for what a scorer caches between questions.
CACHE_BYTES = 2**27
# For `PassageScorer`: words in a passage, words from a passage's start to the next, and documents that it caches.
WORDS, STRIDE, KEPT_DOCUMENTS = 100, 50, 2
COLUMNS: Columns = {
    "questions": figure("group"),
    "scorer": figure("scorer"),
    "keep": keep_text,
    "n": figure("n"),
    "recall [95 %]": figure("recall", ".1f", interval=True),
    "- first [95 %]": figure("delta", "+.1f", interval=True),
    "answer": figure("answer", ".1f"),
    "in passages": figure("shown", ".1f"),
    "kept": figure("kept_ratio", ".3f"),
    "new, ms for 1,000 tokens": figure("new_ms", ",.0f"),
    "known, ms": figure("known_ms", ",.0f"),
}


class PassageScorer(Scorer):
    """Retrieval as a baseline: passages of 100 words, ranked by the encoder's cosine.

    A token gets the importance of the best passage that holds it, so that whole passages fill the budget.
    """

    name = "passages"

    def score(self, request: PrefillRequest) -> Scores:
        offsets, text = request.prompt.offsets, request.collection.text
        with request.clock.phase("scoring"):
            device = request.pair.target.device
            ranges, vectors = passage_vectors(text, device)
            cosines = (vectors @ load_encoder(device).question_vectors(request.question).whole).numpy()
            best = np.full(len(text) + 1, -1.0)
            for (start, end), cosine in zip(ranges, cosines, strict=True):
                best[start:end] = np.maximum(best[start:end], cosine)
            # Add 1: importance must not be negative.
            return Scores(importance=torch.from_numpy(1 + best[offsets[:, 0]]).float())


@lru_cache(KEPT_DOCUMENTS)
def passage_vectors(text: str, device: str) -> tuple[list[tuple[int, int]], Tensor]:
    """Return the character ranges of a text's passages, and their unit vectors [n, width]."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    starts = range(0, max(1, len(words) - WORDS + STRIDE), STRIDE)
    ranges = [(words[first][0], words[min(first + WORDS, len(words)) - 1][1]) for first in starts]
    encoder = load_encoder(device)
    return ranges, torch.stack([encoder.question_vectors(text[start:end]).whole for start, end in ranges])


def bench_recall(
    session: Session,
    items: Sequence[Item],
    scorers: Sequence[Scorer],
    keeps: Sequence[float | None],
    settings: Settings,
    by: str | None,
    step: Callable[[str], None],
) -> list[Row]:
    """Score every question with every scorer; return a row for each scorer and keep ratio.

    by: a label of the items; each of its values gets rows of its own, beside those of all questions

    Leaves out a question that names no evidence and whose answers do not stand in its documents.
    Raises SpecprefillError if no question is left.
    """
    caches = {scorer.name: DocumentCache(draft=PrefixCache(capacity_bytes=CACHE_BYTES)) for scorer in scorers}
    outcomes: dict[tuple[str, float | None], list[Row]] = {(name, keep): [] for name in caches for keep in keeps}
    seen: set[str] = set()
    for number, item in enumerate(items):
        step(f"{number:,} of {len(items):,} questions")
        for scorer in scorers:
            # An unregistered scorer uses the request of a registered scorer without a draft.
            name = scorer.name if scorer.name in SCORERS else LexicalScorer.name
            cached = session.with_cache(caches[scorer.name])
            request = cached.request(item.collection, item.question, settings.varied(scorer=name))
            if number == 0:
                # Warm up: the first run loads libraries.
                scorer.score(request.without_caches())
            for keep, outcome in score_question(item, scorer, request, keeps, item.collection.text not in seen):
                outcomes[scorer.name, keep].append(outcome)
        # Scoring caches the document even if the question is left out.
        seen.add(item.collection.text)
    if not all(outcomes.values()):
        raise SpecprefillError("no answer stands in its documents; give questions whose answers do")
    first = scorers[0].name
    groups = [ALL, *sorted({case["labels"].get(by, ALL) for cases in outcomes.values() for case in cases} - {ALL})]

    def of_group(group: str, name: str, keep: float | None) -> list[Row]:
        return [case for case in outcomes[name, keep] if group in (ALL, case["labels"].get(by))]

    return [
        {"group": group} | row_of(name, keep, cases, of_group(group, first, keep) if name != first else ())
        for group in groups
        for name, keep in outcomes
        if (cases := of_group(group, name, keep))
    ]


def score_question(
    item: Item, scorer: Scorer, request: PrefillRequest, keeps: Sequence[float | None], new: bool
) -> list[tuple[float | None, Row]]:
    """The outcome at each keep ratio, with the seconds of scoring; empty for a question that cannot be counted.

    recall: whether all evidence was kept, or a place of an answer if the row names no evidence; answer: whether an answer
        was kept
    new: whether the document is new to the scorer; new_seconds: for `UNIT` tokens of a new document, else None
    """
    offsets = request.prompt.offsets
    scores, seconds = time_scorer(scorer, request)
    common = {
        "item": item.identifier,
        "labels": item.labels,
        "shown": answer_shown(item, offsets, scores.importance),
        "new_seconds": seconds * UNIT / request.document_tokens if new else None,
        "known_seconds": time_scorer(scorer, request)[1],
    }
    outcomes: list[tuple[float | None, Row]] = []
    for keep in keeps:
        plan = select_scored(replace(request, keep=keep), scores, capped=False).plan
        answer, facts = answer_kept(item, plan, offsets), facts_kept(item, plan, offsets)
        recall = answer if facts is None else facts
        if recall is not None:
            outcomes.append((keep, {**common, "recall": recall, "answer": answer, "kept_ratio": plan.kept_ratio}))
    return outcomes


def answer_shown(item: Item, offsets: np.ndarray, importance: Tensor) -> bool:
    """Whether the passages under an answer would hold a reference."""
    sentences = rank_sentences(item.collection, item.question, offsets, importance)
    passages = best_passages(sentences, PASSAGES)
    return contains_answer(" ".join(passage.text for passage in passages), item.answers)


def time_scorer(scorer: Scorer, request: PrefillRequest) -> tuple[Scores, float]:
    """Score a request; return the scores and the seconds that they took."""
    started = time.perf_counter()
    scores = scorer.score(request)
    request.clock.wait()
    return scores, time.perf_counter() - started


def row_of(name: str, keep: float | None, cases: Sequence[Row], first: Sequence[Row]) -> Row:
    """The figures of a scorer at a keep ratio.

    recall, answer, shown: percentages; shown: questions with a reference in the passages under an answer
    delta: paired difference from the first scorer in points; None for the first scorer, where `first` is empty
    new_ms: median time for 1,000 tokens of a new document; known_ms: of another question about the same document
    """
    answer = mean_or_none(case["answer"] for case in cases)
    pairs = zip(cases, first, strict=True) if first else ()
    return {
        "scorer": name,
        "keep": keep,
        "n": len(cases),
        **share_figures("recall", [case["recall"] for case in cases]),
        **mean_figures("delta", [100.0 * (ours["recall"] - theirs["recall"]) for ours, theirs in pairs]),
        "answer": None if answer is None else 100 * answer,
        "shown": 100 * statistics.fmean(case["shown"] for case in cases),
        "kept_ratio": statistics.fmean(case["kept_ratio"] for case in cases),
        "new_ms": median_ms(case["new_seconds"] for case in cases),
        "known_ms": median_ms(case["known_seconds"] for case in cases),
        "missed": [case["item"] for case in cases if not case["recall"]],
    }


def median_ms(seconds: Iterable[float | None]) -> float | None:
    """The median of known times in milliseconds; None where none is known."""
    known = [value for value in seconds if value is not None]
    return 1_000 * statistics.median(known) if known else None
