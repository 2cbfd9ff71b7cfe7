"""How often scorers keep what answers a question, at equal numbers of tokens, and how long they take."""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
from specprefill_cli.lab.evaluation.statistics import mean_figures, share_figures
from specprefill_cli.lab.tables import Columns, Row, figure, keep_text
from specprefill_cli.models.encoder import load_encoder
from specprefill_cli.prefill.prefix_cache import DocumentCache, PrefixCache
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scorer, Scores
from specprefill_cli.prefill.scorers.lexical import LexicalScorer
from specprefill_cli.prefill.selection import select_scored
from specprefill_cli.settings import Settings

# Tokens that the time is given for, and passages under an answer.
UNIT, PASSAGES = 1_000, 3
# Memory for what a scorer keeps between questions.
CACHE_BYTES = 2**27
# Words of a passage of `PassageScorer`, words between the starts of two, and documents that it keeps.
WORDS, STRIDE, KEPT_DOCUMENTS = 100, 50, 2
COLUMNS: Columns = {
    "scorer": figure("scorer"),
    "keep": keep_text,
    "n": figure("n"),
    "recall [95 %]": figure("recall", ".1f", interval=True),
    "- first [95 %]": figure("delta", "+.1f", interval=True),
    "answer": figure("answer", ".1f"),
    "in passages": figure("shown", ".1f"),
    "kept": figure("kept_ratio", ".3f"),
    "new, 1,000 tokens": lambda row: f"{row['new_ms']:,.0f} ms",
    "known": lambda row: f"{row['known_ms']:,.0f} ms",
}


class PassageScorer(Scorer):
    """What retrieval tools do: passages of 100 words, ranked by the encoder's cosine.

    A token is as important as the best passage that holds it, so that whole passages fill the budget.
    """

    name = "passages"

    def score(self, request: PrefillRequest) -> Scores:
        offsets, text = request.prompt.offsets, request.document_text
        with request.clock.phase("scoring"):
            device = request.pair.target.device
            ranges, vectors = passage_vectors(text, device)
            cosines = (vectors @ load_encoder(device).text_vector(request.question)).numpy()
            best = np.full(len(text) + 1, -1.0)
            for (start, end), cosine in zip(ranges, cosines, strict=True):
                best[start:end] = np.maximum(best[start:end], cosine)
            # Importance is not negative.
            return Scores(importance=torch.from_numpy(1 + best[offsets[:, 0]]).float())


@lru_cache(KEPT_DOCUMENTS)
def passage_vectors(text: str, device: str) -> tuple[list[tuple[int, int]], Tensor]:
    """Character ranges of a text's passages, and their unit vectors [n, width]."""
    words = [match.span() for match in re.finditer(r"\S+", text)]
    starts = range(0, max(1, len(words) - WORDS + STRIDE), STRIDE)
    ranges = [(words[first][0], words[min(first + WORDS, len(words)) - 1][1]) for first in starts]
    encoder = load_encoder(device)
    return ranges, torch.stack([encoder.text_vector(text[start:end]) for start, end in ranges])


@dataclass
class Tally:
    """What one scorer kept of each question, in order, by keep ratio; and its times in seconds, `new` for `UNIT` tokens.

    recall: whether all evidence was kept, or a place of an answer where the row names none; answer: whether an answer was
    cache: what its questions leave for each other; documents: the texts that it has seen
    """

    recall: dict[float | None, list[bool]] = field(default_factory=lambda: defaultdict(list))
    answer: dict[float | None, list[bool | None]] = field(default_factory=lambda: defaultdict(list))
    kept_ratio: dict[float | None, list[float]] = field(default_factory=lambda: defaultdict(list))
    shown: list[bool] = field(default_factory=list)
    cache: DocumentCache = field(default_factory=lambda: DocumentCache(draft=PrefixCache(capacity_bytes=CACHE_BYTES)))
    documents: set[str] = field(default_factory=set)
    new: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)


def bench_recall(
    session: Session,
    items: Sequence[Item],
    scorers: Sequence[Scorer],
    keeps: Sequence[float | None],
    settings: Settings,
    step: Callable[[str], None],
) -> list[Row]:
    """Score every question with every scorer; rows by scorer and keep ratio.

    A question whose evidence, or an answer, stands nowhere in its documents is left out.
    Raises SpecprefillError where no question is left.
    """
    tallies = {scorer.name: Tally() for scorer in scorers}
    identifiers: list[str] = []
    for number, item in enumerate(items):
        step(f"{number:,} of {len(items):,} questions")
        for scorer in scorers:
            counted = tally(tallies[scorer.name], session, item, scorer, keeps, settings, warm=number == 0)
        if counted:
            identifiers.append(item.identifier)
    if not identifiers:
        raise SpecprefillError("no answer stands in its documents; give questions whose answers do")
    first = next(iter(tallies.values()))
    return [row_of(name, keep, counts, first, identifiers) for name, counts in tallies.items() for keep in keeps]


def tally(
    counts: Tally,
    session: Session,
    item: Item,
    scorer: Scorer,
    keeps: Sequence[float | None],
    settings: Settings,
    warm: bool,
) -> bool:
    """Score one question and count what each keep ratio keeps; whether it could be counted. warm: score once before."""
    # What is resolved for a registered scorer that needs no draft serves one that is not registered.
    name = scorer.name if scorer.name in SCORERS else LexicalScorer.name
    request = session.with_cache(counts.cache).request(item.collection, item.question, settings.varied(scorer=name))
    offsets = request.prompt.offsets
    # Scoring caches the document, also that of a question that is then left out.
    fresh = item.collection.text not in counts.documents
    counts.documents.add(item.collection.text)
    if warm:
        scorer.score(request.without_caches())
    scores, seconds = time_scorer(scorer, request)
    for keep in keeps:
        plan = select_scored(replace(request, keep=keep), scores, capped=False).plan
        answer, facts = answer_kept(item, plan, offsets), facts_kept(item, plan, offsets)
        recall = answer if facts is None else facts
        if recall is None:
            # It depends on the item alone: no keep ratio has been counted before.
            return False
        counts.recall[keep].append(recall)
        counts.answer[keep].append(answer)
        counts.kept_ratio[keep].append(plan.kept_ratio)
    counts.shown.append(answer_shown(item, offsets, scores.importance))
    if fresh:
        counts.new.append(seconds * UNIT / request.document_tokens)
    counts.known.append(time_scorer(scorer, request)[1])
    return True


def answer_shown(item: Item, offsets: np.ndarray, importance: Tensor) -> bool:
    """Whether the passages that would stand under an answer hold a reference."""
    sentences = rank_sentences(item.collection, item.question, offsets, importance)
    passages = best_passages(sentences, PASSAGES)
    return contains_answer(" ".join(passage.text for passage in passages), item.answers)


def time_scorer(scorer: Scorer, request: PrefillRequest) -> tuple[Scores, float]:
    """The scores of a request, and the seconds that they took."""
    started = time.perf_counter()
    scores = scorer.score(request)
    request.pair.wait()
    return scores, time.perf_counter() - started


def row_of(name: str, keep: float | None, counts: Tally, first: Tally, identifiers: Sequence[str]) -> Row:
    """The figures of one scorer at one keep ratio; identifiers: of the questions.

    recall, answer, shown: percentages; shown: of questions with a reference in the passages that stand under an answer
    delta: paired difference from the first scorer in points; None for that scorer
    new_ms: median time for 1,000 tokens of a document that is new; known_ms: of another question about it
    """
    recalled = counts.recall[keep]
    pairs = zip(recalled, first.recall[keep], strict=True)
    answers = [kept for kept in counts.answer[keep] if kept is not None]
    return {
        "scorer": name,
        "keep": keep,
        "n": len(recalled),
        **share_figures("recall", recalled),
        **mean_figures("delta", [100.0 * (ours - theirs) for ours, theirs in pairs if counts is not first]),
        "answer": 100 * statistics.fmean(answers) if answers else None,
        "shown": 100 * statistics.fmean(counts.shown),
        "kept_ratio": statistics.fmean(counts.kept_ratio[keep]),
        "new_ms": 1_000 * statistics.median(counts.new),
        "known_ms": 1_000 * statistics.median(counts.known),
        "missed": [question for question, kept in zip(identifiers, recalled, strict=True) if not kept],
    }
