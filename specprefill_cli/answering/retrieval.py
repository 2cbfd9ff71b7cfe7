"""The passages that matter for a question, found by the draft alone: prompt compression for any other model."""

from __future__ import annotations

import numpy as np

from specprefill_cli.answering.passages import Sentences, as_passage, best_passages, joined, rank_sentences
from specprefill_cli.answering.session import Session
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.documents.document import Collection
from specprefill_cli.prefill.auto_mode import check_draft_fits
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.selection import select_scored
from specprefill_cli.record import PLANNED_MODE, Fate, Passage, Retrieval
from specprefill_cli.settings import Settings


def retrieve(
    session: Session, collection: Collection, question: str, settings: Settings, top: int | None = None
) -> Retrieval:
    """Score the documents with the draft; the best `top` passages, or without it the chunks of the keep ratio.

    Chunks are extended to whole sentences. Raises UsageError for an empty question, PromptTooLong when the draft
    cannot read the documents.
    """
    settings = settings.varied(mode=PLANNED_MODE)
    question = clean_question(question)
    request = session.request(collection, question, settings)
    if SCORERS[request.scorer].uses_draft:
        check_draft_fits(request)
    scores = session.score(request)
    sentences = rank_sentences(collection, question, request.prompt.offsets, scores.importance)
    warnings = list(collection.warnings)
    if top is not None:
        chosen = best_passages(collection, sentences, top)
        passages = sorted(chosen, key=lambda passage: (passage.number, passage.start))
    else:
        selection = select_scored(request, scores, capped=False)
        warnings += selection.warnings
        passages = kept_passages(collection, sentences, selection.plan, request.prompt.offsets)
    kept = sum(len(passage.text.split()) for passage in passages)
    return Retrieval(
        question=question,
        passages=passages,
        document_words=sum(len(document.text.split()) for document in collection.documents),
        kept_words=kept,
        warnings=warnings,
    )


def kept_passages(collection: Collection, sentences: Sentences, plan: Plan, offsets: np.ndarray) -> list[Passage]:
    """The sentences that a plan's recomputed spans touch, as passages; offsets: [n, 2] characters of document tokens."""
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
        longer = (runs[-1][0], index + 1) if runs else (index, index + 1)
        if runs and runs[-1][1] == index and joined(collection, sentences, longer):
            runs[-1] = longer
        else:
            runs.append((index, index + 1))
    return [as_passage(collection, sentences, run) for run in runs]
