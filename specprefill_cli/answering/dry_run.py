"""A dry run: what would be kept of the documents, and what that should cost, without the target's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from specprefill_cli.answering.answer import SpanRecord, span_records
from specprefill_cli.answering.session import Session
from specprefill_cli.documents.cleaning import clean_question
from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.models.cost import promised_speedup
from specprefill_cli.prefill.auto_mode import automatic_mode, check_fits, cost_of, scoring_flops
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prefill.selection import select_scored
from specprefill_cli.settings import Settings

KEEP_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5)
PLANNED_MODE = "select"


@dataclass(frozen=True)
class Estimate:
    """What a keep ratio should cost, by counted operations and the overhead of a pass.

    speedup: time of full prefill over the time with this ratio
    ttft_seconds: at the speed at which the draft was measured to run, or None where no draft ran
    """

    keep: float | None
    kept_tokens: int
    kept_ratio: float
    speedup: float
    ttft_seconds: float | None


@dataclass(frozen=True)
class DryRun:
    """A plan and all that was found on the way to it.

    offsets: [n, 2] character range of each document token; importance: [n]; phases: seconds, of the draft alone
    neighbours: weight of the chunks beside it in a chunk's place among the important ones
    loaded: whether the target's weights were there; advice: the mode that `auto` would take, with its reason
    estimates: the planned ratio first, then others; full_seconds: estimate for full prefill, None as in Estimate
    """

    question: str
    draft: str | None
    target: str
    loaded: bool
    plan: Plan
    offsets: np.ndarray
    importance: Tensor
    neighbours: float
    spans: list[SpanRecord]
    phases: dict[str, float]
    advice: tuple[str, str]
    estimates: list[Estimate]
    full_seconds: float | None
    warnings: list[str]


def dry_run(session: Session, collection: Collection, question: str, settings: Settings) -> DryRun:
    """Score the documents for a question and choose chunks, as mode `select` would.

    Raises UsageError for an empty question, SpecprefillError when the prompt does not fit the pair.
    """
    question = clean_question(question)
    settings = session.with_scorer(replace(settings, mode=PLANNED_MODE))
    scorer = SCORERS[settings.scorer]
    short = Collection((one_page_document("warm-up", "The gate is open from nine to five. " * 8, "text/plain"),))
    scorer.score(session.prepare(short, "When?", settings, PhaseClock(session.pair.wait)))
    request = session.prepare(collection, question, settings, PhaseClock(session.pair.wait))
    check_fits(request, settings, scorer.uses_draft)
    scores = scorer.score(request)
    importance = scores.importance
    prompt = request.prompt
    with request.clock.phase("selection"):
        chosen = select_scored(scores, prompt, settings.keep, request.chunk_size)
    draft = session.pair.draft if scorer.uses_draft else None
    estimates, full_seconds = estimate(request, settings, chosen.plan)
    warnings = collection.warnings
    return DryRun(
        question=question,
        draft=draft.name if draft is not None else None,
        target=session.pair.target.name,
        loaded=bool(session.pair.target.devices),
        plan=chosen.plan,
        offsets=prompt.offsets,
        importance=importance,
        neighbours=scores.neighbours,
        spans=span_records(collection, prompt, chosen.plan),
        phases=request.clock.phases(),
        advice=automatic_mode(settings, request),
        estimates=estimates,
        full_seconds=full_seconds,
        warnings=[*warnings, chosen.warning] if chosen.warning else warnings,
    )


def estimate(
    request: ScoringRequest, settings: Settings, plan: Plan, ratios: Sequence[float] = KEEP_RATIOS
) -> tuple[list[Estimate], float | None]:
    """Estimates for the plan and for other keep ratios, and the seconds of full prefill.

    Seconds are operations times the draft's measured seconds for each of its operations: both models are taken to run
    equally fast, so that a target on another device, or a larger one that uses its device better, is misjudged.
    """
    pair, prompt = request.pair, request.prompt
    target = cost_of(pair.target)
    full_seconds = None
    scoring = scoring_flops(settings, request, with_overhead=True)
    if scoring:
        pace = (request.clock.seconds["draft_prefill"] + request.clock.seconds.get("look_ahead", 0.0)) / scoring
        full_seconds = pace * target.prefill_with_overhead(prompt.length)
    outside = prompt.length - (prompt.document[1] - prompt.document[0])
    others = [
        (keep, max(int(keep * prompt.length), outside + settings.chunk_size))
        for keep in ratios
        if keep != settings.keep
    ]
    found = []
    for keep, kept in [(settings.keep, plan.kept_tokens), *others]:
        kept = min(kept, prompt.length)
        speedup = promised_speedup(target, scoring, prompt.length, kept)
        ttft = full_seconds / speedup if full_seconds is not None else None
        found.append(Estimate(keep, kept, kept / prompt.length, speedup, ttft))
    return found, full_seconds
