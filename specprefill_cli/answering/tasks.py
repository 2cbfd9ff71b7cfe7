"""What a session can do besides a single answer: passages, a dry run of `select`, and a comparison of modes."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specprefill_cli.answering.passages import best_passages, kept_passages, rank_sentences
from specprefill_cli.answering.places import document_cells, span_records
from specprefill_cli.answering.session import WARM_UP, Session
from specprefill_cli.documents.document import Collection
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.prefill.auto_mode import automatic_mode, check_draft_fits, check_fits, fits_target
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.selection import select_scored, tokens_at
from specprefill_cli.record import BASELINE, PLANNED_MODE, Comparison, DryRun, Estimate, ModeAnswer, Retrieval
from specprefill_cli.settings import Settings

KEEP_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5)
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def retrieve(
    session: Session, collection: Collection, question: str, settings: Settings, top: int | None = None
) -> Retrieval:
    """Return the best `top` passages, or (None) the sentences of kept chunks. Raises UsageError, PromptTooLong."""
    request = session.request(collection, question, settings.varied(mode=PLANNED_MODE))
    check_draft_fits(request)
    scores = SCORERS[request.scorer].score(request)
    sentences = rank_sentences(collection, request.question, request.prompt.offsets, scores.importance)
    warnings = list(collection.warnings)
    if top is not None:
        passages = sorted(best_passages(sentences, top), key=lambda passage: (passage.number, passage.start))
    else:
        selection = select_scored(request, scores, capped=False)
        warnings += selection.warnings
        passages = kept_passages(sentences, selection.plan, request.prompt.offsets)
    return Retrieval(
        question=request.question,
        passages=collection.in_whole(passages),
        document_words=sum(len(document.text.split()) for document in collection.documents),
        kept_words=sum(len(passage.text.split()) for passage in passages),
        warnings=warnings,
        documents_left_out=collection.left_out,
    )


def dry_run(session: Session, collection: Collection, question: str, settings: Settings) -> DryRun:
    """Score the documents and select chunks, as mode `select` would. Raises UsageError, PromptTooLong."""
    settings = settings.varied(mode=PLANNED_MODE)
    # The estimates need the chooser's time for the whole prompt, so it starts without a cache, and stores nothing.
    session, collection = session.with_cache(None), replace(collection, kept=False)
    request = session.request(WARM_UP, "When?", settings)
    SCORERS[request.scorer].score(request)
    request = session.request(collection, question, settings)
    check_fits(request, PLANNED_MODE)
    scores = SCORERS[request.scorer].score(request)
    with request.clock.phase("selection"):
        selection = select_scored(request, scores)
    pair, plan, mode_and_reason = session.pair, selection.plan, automatic_mode(request)
    estimates, full_seconds = estimate(request, plan)
    full_fits = fits_target(request)
    uses_draft = request.clock.draft_ran
    return DryRun(
        question=request.question,
        mode=PLANNED_MODE,
        auto=dict(zip(("mode", "reason"), mode_and_reason, strict=True)),
        pair={"draft": pair.draft.name if pair.draft is not None and uses_draft else None, "target": pair.target.name},
        prompt_tokens=plan.prompt_tokens,
        kept_tokens=plan.kept_tokens,
        kept_ratio=plan.kept_ratio,
        phases=request.clock.phases(),
        spans=span_records(collection, request.prompt, plan),
        chunks=document_cells(collection, request.prompt.offsets, plan, scores.importance, request.chunk_size),
        estimates=estimates,
        full_ttft_seconds=full_seconds if full_fits else None,
        full_fits=full_fits,
        warnings=[*collection.warnings, *selection.warnings],
        documents_left_out=collection.left_out,
    )


def estimate(request: PrefillRequest, plan: Plan) -> tuple[list[Estimate], float | None]:
    """Estimate the plan and other keep ratios, and the seconds of full prefill.

    Seconds are operations times the chooser's measured seconds per operation. This assumes that draft and target run equally
    fast, and misjudges a target that is on another device or uses its device better.
    """
    length, target = request.prompt.length, cost_of(request.pair.target)
    full_flops, scoring = target.prefill_with_overhead(length), SCORERS[request.scorer].cost(request, True)
    seconds = sum(request.clock.seconds.get(phase, 0.0) for phase in ("draft_prefill", "look_ahead", "scoring"))
    full_seconds = full_flops * seconds / scoring if scoring and seconds else None

    def estimate_at(keep: float | None, tokens: int) -> Estimate:
        kept = min(tokens, length)
        speedup = full_flops / (scoring + target.prefill_with_overhead(kept))
        ttft = full_seconds / speedup if full_seconds is not None else None
        return Estimate(keep=keep, kept_tokens=kept, kept_ratio=kept / length, speedup=speedup, ttft_seconds=ttft)

    alternatives = [estimate_at(keep, tokens_at(keep, request)) for keep in KEEP_RATIOS if keep != request.keep]
    return [estimate_at(request.keep, plan.kept_tokens), *alternatives], full_seconds


def compare_modes(
    session: Session,
    collection: Collection,
    question: str,
    settings: Settings,
    modes: Sequence[str],
    on_mode: Callable[[str], None] = lambda _mode: None,
) -> Comparison:
    """Answer in each mode, in the order of `modes`; call `on_mode` before each.

    Several modes start without a cache, because a warm cache would save them different amounts of work. A mode that the
    prompt is too long for is a misfit if another mode answers. Raises what `Session.ask` raises, and KeyboardInterrupt.
    """
    answers: list[ModeAnswer] = []
    # Logits [V] of the first token by mode; an endpoint gives None.
    logits: dict[str, Any] = {}
    misfits: dict[str, str] = {}
    if len(modes) > 1:
        session = session.with_cache(None)
    for mode in modes:
        on_mode(mode)
        try:
            stream = session.ask(collection, question, settings.varied(mode=mode))
            answers.append(ModeAnswer(mode=mode, answer=stream.finished(), cells=stream.cells))
            logits[mode] = stream.prefilled.logits
            # Free the KV cache: the next mode needs its memory.
            del stream
        except PromptTooLong as error:
            misfits[mode] = str(error)
            if len(misfits) == len(modes):
                raise
    full = next((answer.answer for answer in answers if answer.mode == BASELINE), None)
    full_logits = logits.get(BASELINE)
    if full is not None:
        for place, answer in enumerate(answers):
            speedup = full.ttft_seconds / answer.answer.ttft_seconds
            divergence = None if full_logits is None else kl_divergence(full_logits, logits[answer.mode])
            agreement = word_f1(answer.answer.answer, full.answer)
            answers[place] = replace(answer, speedup=speedup, first_token_kl=divergence, agreement=agreement)
    return Comparison(question=question, answers=answers, misfits=misfits)


def kl_divergence(reference: Tensor, logits: Tensor) -> float:
    """KL(reference || logits) in nats between two logits [V]; tokens that the reference rules out count 0."""
    expected, actual = reference.double().log_softmax(-1).cpu(), logits.double().log_softmax(-1).cpu()
    terms = torch.where(expected == -math.inf, 0.0, expected.exp() * (expected - actual))
    return float(terms.sum().clamp(min=0.0))


def normalise_words(text: str) -> str:
    """Lower-case a text and remove punctuation, articles and extra blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def word_f1(answer: str, reference: str) -> float:
    """Word F1 of two texts after `normalise_words`, as in SQuAD (arXiv 1606.05250); 1 if neither has words."""
    words, expected = normalise_words(answer).split(), normalise_words(reference).split()
    overlap = sum((Counter(words) & Counter(expected)).values())
    return 2 * overlap / (len(words) + len(expected)) if overlap else float(words == expected)
