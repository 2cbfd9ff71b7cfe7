"""The passages that most likely hold the answer: whole sentences, ranked by importance, shared words and kind of answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.documents.document import Collection
from specprefill_cli.documents.sentences import sentences_of
from specprefill_cli.prefill.bm25 import coverage, word_scores
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.selection import add_neighbours
from specprefill_cli.record import Fate, Passage

# Tokens over which importance is averaged, so that a single token does not lift a sentence.
SMOOTHING = 16
# Weight of a sentence's two neighbours in its score.
NEIGHBOURS = 0.2
# Weight of importance, against at most 1 for BM25.
IMPORTANCE_WEIGHT = 2.0
# Added to the score of a sentence that holds what the question asks for: a number, a date, a name or a reason.
KIND_BONUS = 0.1
NUMBER = (
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|hundred|thousand|million|half)\b"
)
MONTH_OR_DAY = (
    r"(?:jan|feb|march|april|may|june|july|aug|sept|oct|nov|dec|mon|tues|wednes|thurs|fri|satur|sun)(?:\w*day)?"
)
# Patterns of questions, each with a pattern of the sentences that answer them.
ANSWER_KINDS = {
    r"\bhow (?:much|expensive)\b|\bwhat\b.{0,30}\b(?:cost|price|fee|charge|rent|salary)": r"\d|[£$€]",
    r"\bhow (?:many|old|long|far|often|tall|big|high|fast|large|deep|wide)\b": f"(?i:{NUMBER})",
    r"\bwhen\b|\b(?:what|which) (?:year|date|day|time|month)\b": rf"\d{{4}}|\d[:.]\d\d|(?i:\b{MONTH_OR_DAY}|noon)",
    r"\bwho(?:m|se)?\b|\bwhere\b|\b(?:what|which) (?:company|firm|person|city|country)\b": r"(?<=[a-z,;] )[A-Z][a-z]",
    r"\bwhy\b": r"(?i:\b(?:because|since|so that|in order|due to|owing to|reason|therefore|to)\b)",
}
# Most sentences in a passage, and words per requested passage; all passages share these words.
LONGEST_PASSAGE, WORDS_PER_PASSAGE = 4, 39
# A passage with fewer words, such as a heading, says nothing by itself.
SHORTEST_PASSAGE_WORDS = 5
# Sentences per requested passage that are considered; those that rank lower are too far from the question to fill up with.
CONSIDERED_SENTENCES = 20
# A quoted sentence comes first if it has at least this share of the highest relevance; below it, the quote is doubtful.
TRUSTED_QUOTE = 0.7


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """A collection's sentences: character ranges [n, 2], relevance [n] in [0, 1]. A run is a range [first, last) of them."""

    collection: Collection
    ranges: np.ndarray
    relevance: np.ndarray

    def index_at(self, character: int) -> int:
        """Index of the sentence that holds a character, or of the last sentence before it."""
        return max(0, int(np.searchsorted(self.ranges[:, 0], character, side="right")) - 1)

    def relevance_at(self, character: int) -> float:
        return float(self.relevance[self.index_at(character)])

    @property
    def highest(self) -> float:
        return float(self.relevance.max(initial=0.0))

    def span(self, run: tuple[int, int]) -> tuple[int, int]:
        return int(self.ranges[run[0], 0]), int(self.ranges[run[1] - 1, 1])

    def words(self, run: tuple[int, int]) -> int:
        return len(self.collection.text[slice(*self.span(run))].split())

    def on_one_page(self, run: tuple[int, int]) -> bool:
        """Whether a run lies on a single page of a document, so that a passage can name its page."""
        touched = self.collection.pages_by_document(*self.span(run))
        return len(touched) == 1 and len(touched[0].pages) <= 1

    def passage(self, run: tuple[int, int]) -> Passage:
        start, end = self.span(run)
        number, first, last = self.collection.ranges_by_document(start, end)[0]
        document = self.collection.documents[number]
        page = next(iter(document.pages_between(first, last)), 1)
        text, importance = self.collection.text[start:end], round(float(self.relevance[slice(*run)].max()), 4)
        return Passage(document.name, page, first, last, text, number, importance=importance)


def scale_to_highest(scores: np.ndarray) -> np.ndarray:
    """Scale non-negative scores [n] to shares of the highest score."""
    return scores / max(scores.max(), 1e-12)


def rank_sentences(collection: Collection, question: str, offsets: np.ndarray, importance: Tensor | None) -> Sentences:
    """Score every sentence by the importance of its tokens, by BM25 of the question's words, and by the kind of answer.

    BM25 weighs more the larger the share of the question's words that a single place holds.
    offsets: [n, 2] character range of each document token; importance: [n], or None without scores
    """
    text = collection.text
    ranges = sentences_of(text)
    if not len(ranges) or not len(offsets):
        return Sentences(collection=collection, ranges=ranges, relevance=np.zeros(len(ranges)))
    score = scale_to_highest(word_scores(question, text, ranges[:, 0]))
    if importance is not None:
        smoothed = np.convolve(importance.double().numpy(), np.full(SMOOTHING, 1 / SMOOTHING), "same")[: len(offsets)]
        first_token = np.searchsorted(offsets[:, 1], ranges[:, 0], side="right").clip(max=len(offsets) - 1)
        # The square root brings a few large values nearer to the rest, like the spread of word scores.
        importance_score = scale_to_highest(np.sqrt(np.maximum.reduceat(smoothed, first_token).clip(min=0)))
        word_weight = coverage(question, text, ranges[:, 0])
        score = (word_weight * score + IMPORTANCE_WEIGHT * importance_score) / (word_weight + IMPORTANCE_WEIGHT)
    kind = next((answer for asked, answer in ANSWER_KINDS.items() if re.search(asked, question, re.IGNORECASE)), None)
    if kind is not None:
        pattern = re.compile(kind)
        score += KIND_BONUS * np.array([bool(pattern.search(text, *sentence)) for sentence in ranges.tolist()])
    relevance = add_neighbours(torch.from_numpy(score), NEIGHBOURS).numpy() / ((1 + KIND_BONUS) * (1 + 2 * NEIGHBOURS))
    return Sentences(collection=collection, ranges=ranges, relevance=relevance)


def best_passages(sentences: Sentences, count: int, quotes: Sequence[int] = ()) -> list[Passage]:
    """Up to `count` passages: the first of `quotes` (places in the text) if it is trusted, then the most relevant."""
    lowest = TRUSTED_QUOTE * sentences.highest
    leading = [sentences.index_at(place) for place in quotes[:1] if sentences.relevance_at(place) >= lowest]
    order = [*leading, *np.argsort(-sentences.relevance, kind="stable").tolist()]
    runs: list[tuple[int, int]] = []
    for index in order[: CONSIDERED_SENTENCES * count]:
        words = sum(map(sentences.words, [*runs, (index, index + 1)]))
        # The best sentence is shown however long it is.
        if words <= WORDS_PER_PASSAGE * count or not runs:
            add_sentence(runs, index, sentences, count)
    return [sentences.passage(run) for run in runs]


def kept_passages(sentences: Sentences, plan: Plan, offsets: np.ndarray) -> list[Passage]:
    """The sentences that a plan's recomputed spans touch; offsets: [n, 2] character range of each document token."""
    kept = np.zeros(len(sentences.ranges), dtype=bool)
    for span in plan.spans:
        if span.fate is Fate.RECOMPUTE:
            first, last = span.start - plan.document[0], span.end - plan.document[0] - 1
            # Sentences are in document order and do not overlap.
            first_sentence = np.searchsorted(sentences.ranges[:, 1], offsets[first, 0], side="right")
            end_sentence = np.searchsorted(sentences.ranges[:, 0], offsets[last, 1])
            kept[first_sentence:end_sentence] = True
    runs: list[tuple[int, int]] = []
    for index in np.flatnonzero(kept).tolist():
        extended = (runs[-1][0], index + 1) if runs and runs[-1][1] == index else None
        if extended is not None and sentences.on_one_page(extended):
            runs[-1] = extended
        else:
            runs.append((index, index + 1))
    return [sentences.passage(run) for run in runs]


def add_sentence(runs: list[tuple[int, int]], index: int, sentences: Sentences, most_runs: int) -> None:
    """Add a sentence to the run beside it, or begin one of at most `most_runs` runs; a short one brings the next with it."""
    if any(first <= index < last for first, last in runs):
        return
    for place, (first, last) in enumerate(runs):
        extended_run = (min(first, index), max(last, index + 1))
        is_beside = extended_run[1] - extended_run[0] == last - first + 1
        if is_beside and last - first < LONGEST_PASSAGE and sentences.on_one_page(extended_run):
            runs[place] = extended_run
            return
    if len(runs) < most_runs:
        run, with_next = (index, index + 1), (index, min(index + 2, len(sentences.ranges)))
        is_next_free = all(index + 1 != first for first, _ in runs)
        is_short = sentences.words(run) < SHORTEST_PASSAGE_WORDS
        runs.append(with_next if is_short and is_next_free and sentences.on_one_page(with_next) else run)
