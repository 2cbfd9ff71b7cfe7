"""A dry run: what `select` would keep of the documents, and its expected cost, without the target's weights."""

from __future__ import annotations

from collections.abc import Sequence

from specprefill_cli.answering.cells import document_cells, span_records
from specprefill_cli.answering.session import WARM_UP, Session
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.documents.document import Collection
from specprefill_cli.models.cost import cost_of, measure_passes
from specprefill_cli.models.loading import LoadedPair
from specprefill_cli.prefill.auto_mode import automatic_mode, check_fits, fits_target
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.selection import select_scored, spread_warnings, tokens_at
from specprefill_cli.record import PLANNED_MODE, DryRun, Estimate, PassCost
from specprefill_cli.settings import Settings

KEEP_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5)


def dry_run(session: Session, collection: Collection, question: str, settings: Settings) -> DryRun:
    """Score the documents for a question and select chunks, as mode `select` would.

    Raises UsageError for an empty question, SpecprefillError when the prompt does not fit the pair.
    """
    settings = settings.varied(mode=PLANNED_MODE)
    # The estimates rest on the draft's time for the whole prompt, so that the draft starts cold.
    session = session.with_cache(None)
    request = session.request(WARM_UP, "When?", settings)
    scorer = SCORERS[request.scorer]
    session.score(request)
    measure_passes(session.pair, request.prefill_chunk)
    question = clean_question(question)
    request = session.request(collection, question, settings)
    check_fits(request, PLANNED_MODE)
    scores = session.score(request)
    with request.clock.phase("selection"):
        selection = select_scored(request, scores)
    draft = session.pair.draft if scorer.uses_draft else None
    estimates, full_seconds = estimate(request, selection.plan)
    return DryRun(
        question=question,
        draft=draft.name if draft is not None else None,
        target=session.pair.target.name,
        loaded=bool(session.pair.target.devices),
        prompt_tokens=selection.plan.prompt_tokens,
        kept_tokens=selection.plan.kept_tokens,
        kept_ratio=selection.plan.kept_ratio,
        document_start=selection.plan.document[0],
        cells=document_cells(
            collection,
            request.prompt.offsets,
            selection.plan,
            scores.importance,
            request.chunk_size,
            scores.neighbours,
        ),
        spans=span_records(collection, request.prompt, selection.plan),
        phases=request.clock.phases(),
        advice=automatic_mode(request),
        estimates=estimates,
        full_seconds=full_seconds,
        full_fits=fits_target(request),
        pass_costs=pass_costs(session.pair),
        warnings=[*collection.warnings, *selection.warnings, *spread_warnings(request, scores, selection)],
    )


def pass_costs(pair: LoadedPair) -> list[PassCost]:
    """The fixed costs that the estimates rest on."""
    models = [(role, model) for role, model in (("draft", pair.draft), ("target", pair.target)) if model is not None]
    costs = [(role, cost_of(model)) for role, model in models]
    return [
        PassCost(
            role=role,
            tokens=cost.overhead_tokens if cost.pass_tokens is None else round(cost.pass_tokens),
            measured=cost.pass_tokens is not None,
        )
        for role, cost in costs
    ]


def estimate(
    request: PrefillRequest, plan: Plan, ratios: Sequence[float] = KEEP_RATIOS
) -> tuple[list[Estimate], float | None]:
    """Estimates for the plan and for other keep ratios, and the seconds of full prefill.

    Seconds are operations times the draft's measured seconds per operation: both models are assumed to run equally fast,
    so a target on another device, or one that uses its device better, is misjudged.
    """
    prompt, target = request.prompt, cost_of(request.pair.target)
    full_flops, scoring = target.prefill_with_overhead(prompt.length), SCORERS[request.scorer].cost(request, True)
    full_seconds = None
    seconds = sum(request.clock.seconds.get(phase, 0.0) for phase in ("draft_prefill", "look_ahead"))
    # A scorer of another package may run its draft in phases of its own.
    if scoring and seconds:
        full_seconds = full_flops * seconds / scoring
    candidates = [(request.keep, plan.kept_tokens)]
    candidates += [(keep, tokens_at(keep, request)) for keep in ratios if keep != request.keep]
    estimates = []
    for keep, tokens in candidates:
        kept = min(tokens, prompt.length)
        speedup = full_flops / (scoring + target.prefill_with_overhead(kept))
        ttft = full_seconds / speedup if full_seconds is not None else None
        estimates.append(
            Estimate(keep=keep, kept_tokens=kept, kept_ratio=kept / prompt.length, speedup=speedup, ttft_seconds=ttft)
        )
    return estimates, full_seconds
