"""Tasks that need only the draft: passages for another model, and a dry run of `select`."""

from __future__ import annotations

from specprefill_cli.answering.cells import document_cells, span_records
from specprefill_cli.answering.passages import best_passages, kept_passages, rank_sentences
from specprefill_cli.answering.session import WARM_UP, Session
from specprefill_cli.documents.document import Collection
from specprefill_cli.models.machine.cost import cost_of, measure_passes
from specprefill_cli.prefill.auto_mode import automatic_mode, check_draft_fits, check_fits, fits_target
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.selection import select_scored, spread_warnings, tokens_at
from specprefill_cli.record import PLANNED_MODE, DryRun, Estimate, Retrieval
from specprefill_cli.settings import Settings

KEEP_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5)


def retrieve(
    session: Session, collection: Collection, question: str, settings: Settings, top: int | None = None
) -> Retrieval:
    """Score the documents with the draft; return the best `top` passages, or the chunks of the keep ratio if `top` is None.

    Chunks are extended to whole sentences. Raises UsageError for an empty question, PromptTooLong if the draft
    cannot read the documents.
    """
    request = session.request(collection, question, settings.varied(mode=PLANNED_MODE))
    if SCORERS[request.scorer].uses_draft:
        check_draft_fits(request)
    scores = session.score(request)
    sentences = rank_sentences(collection, request.question, request.prompt.offsets, scores.importance)
    warnings = list(collection.warnings)
    if top is not None:
        best = best_passages(sentences, top)
        passages = sorted(best, key=lambda passage: (passage.number, passage.start))
    else:
        selection = select_scored(request, scores, capped=False)
        warnings += selection.warnings
        passages = kept_passages(sentences, selection.plan, request.prompt.offsets)
    return Retrieval(
        question=request.question,
        passages=passages,
        document_words=sum(len(document.text.split()) for document in collection.documents),
        kept_words=sum(len(passage.text.split()) for passage in passages),
        warnings=warnings,
    )


def dry_run(session: Session, collection: Collection, question: str, settings: Settings) -> DryRun:
    """Score the documents for a question and select chunks, as mode `select` would.

    Raises UsageError for an empty question, SpecprefillError if the prompt does not fit the pair.
    """
    settings = settings.varied(mode=PLANNED_MODE)
    # The estimates need the draft's time for the whole prompt, so it starts without a cache.
    session = session.with_cache(None)
    request = session.request(WARM_UP, "When?", settings)
    session.score(request)
    measure_passes(session.pair, request.prefill_chunk)
    request = session.request(collection, question, settings)
    check_fits(request, PLANNED_MODE)
    scores = session.score(request)
    with request.clock.phase("selection"):
        selection = select_scored(request, scores)
    pair, plan, mode_and_reason = session.pair, selection.plan, automatic_mode(request)
    estimates, full_seconds = estimate(request, plan)
    full_fits = fits_target(request)
    uses_draft = pair.draft is not None and SCORERS[request.scorer].uses_draft
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
        warnings=[*collection.warnings, *selection.warnings, *spread_warnings(request, scores, selection)],
    )


def estimate(request: PrefillRequest, plan: Plan) -> tuple[list[Estimate], float | None]:
    """Estimate the plan and other keep ratios, and the seconds of full prefill.

    Seconds are operations times the draft's measured seconds per operation. This assumes that draft and target run equally
    fast, and misjudges a target that is on another device or uses its device better.
    """
    length, target = request.prompt.length, cost_of(request.pair.target)
    full_flops, scoring = target.prefill_with_overhead(length), SCORERS[request.scorer].cost(request, True)
    seconds = sum(request.clock.seconds.get(phase, 0.0) for phase in ("draft_prefill", "look_ahead"))
    full_seconds = full_flops * seconds / scoring if scoring and seconds else None

    def estimate_at(keep: float | None, tokens: int) -> Estimate:
        kept = min(tokens, length)
        speedup = full_flops / (scoring + target.prefill_with_overhead(kept))
        ttft = full_seconds / speedup if full_seconds is not None else None
        return Estimate(keep=keep, kept_tokens=kept, kept_ratio=kept / length, speedup=speedup, ttft_seconds=ttft)

    others = [estimate_at(keep, tokens_at(keep, request)) for keep in KEEP_RATIOS if keep != request.keep]
    return [estimate_at(request.keep, plan.kept_tokens), *others], full_seconds
