"""How often scorers keep what answers a question, at equal numbers of tokens, and how long they take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from specprefill_cli.answering.passages import best_passages, rank_sentences
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import answer_kept, facts_kept
from specprefill_cli.lab.evaluation.metrics import contains_answer
from specprefill_cli.lab.evaluation.statistics import mean_interval, wilson_interval
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


@dataclass(frozen=True, kw_only=True)
class RecallRow:
    """Figures of one scorer at one keep ratio (None: `auto`); percentages with Wilson's 95 % intervals.

    recall: questions of which all evidence is kept where the row names some, else one place where a reference stands
    delta: paired difference from the first scorer in points, with its bootstrap interval; None for that scorer
    answer: questions with a reference kept, in the evidence where the row names some
    shown: questions with a reference in the passages that stand under an answer
    kept_ratio: mean; new_ms: median time for 1,000 tokens of a document that is new; known_ms: of a question about one
    that a question was asked about before
    """

    scorer: str
    keep: float | None
    n: int
    recall: float
    recall_low: float
    recall_high: float
    delta: float | None
    delta_low: float | None
    delta_high: float | None
    answer: float | None
    shown: float
    kept_ratio: float
    new_ms: float
    known_ms: float
    missed: tuple[str, ...]


@dataclass
class Tally:
    """What one scorer kept of each question, in order, by keep ratio; and its times in seconds, `new` for `UNIT` tokens.

    cache: what its questions leave for each other; documents: the texts that it knows
    """

    recall: dict[float | None, list[bool]] = field(default_factory=dict)
    answer: dict[float | None, list[bool | None]] = field(default_factory=dict)
    kept_ratio: dict[float | None, list[float]] = field(default_factory=dict)
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
) -> list[RecallRow]:
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
    return [
        recall_row(scorer.name, keep, tallies[scorer.name], tallies[scorers[0].name] if number else None, identifiers)
        for number, scorer in enumerate(scorers)
        for keep in keeps
    ]


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
    kept = {}
    for keep in keeps:
        plan = select_scored(replace(request, keep=keep), scores, capped=False).plan
        answer, facts = answer_kept(item, plan, offsets), facts_kept(item, plan, offsets)
        kept[keep] = answer if facts is None else facts, answer, plan.kept_ratio
    if any(recall is None for recall, _, _ in kept.values()):
        return False
    for keep, (recall, answer, ratio) in kept.items():
        counts.recall.setdefault(keep, []).append(bool(recall))
        counts.answer.setdefault(keep, []).append(answer)
        counts.kept_ratio.setdefault(keep, []).append(ratio)
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


def recall_row(
    name: str, keep: float | None, counts: Tally, first: Tally | None, identifiers: Sequence[str]
) -> RecallRow:
    """The figures of one scorer at one keep ratio; first: what they are compared with; identifiers: of the questions."""
    recalled = counts.recall.get(keep, [])
    n, hits = len(recalled), sum(recalled)
    low, high = wilson_interval(hits, n)
    difference: tuple[float | None, float | None, float | None] = (None, None, None)
    if first is not None:
        difference = mean_interval([100.0 * (a - b) for a, b in zip(recalled, first.recall[keep], strict=True)])
    answers = [kept for kept in counts.answer[keep] if kept is not None]
    return RecallRow(
        scorer=name,
        keep=keep,
        n=n,
        recall=100 * hits / n,
        recall_low=100 * low,
        recall_high=100 * high,
        delta=difference[0],
        delta_low=difference[1],
        delta_high=difference[2],
        answer=100 * sum(answers) / len(answers) if answers else None,
        shown=100 * statistics.fmean(counts.shown),
        kept_ratio=statistics.fmean(counts.kept_ratio[keep]),
        new_ms=1_000 * statistics.median(counts.new),
        known_ms=1_000 * statistics.median(counts.known),
        missed=tuple(question for question, kept in zip(identifiers, recalled, strict=True) if not kept),
    )
