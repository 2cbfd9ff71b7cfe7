"""What of the documents is sent to an endpoint, chosen by the draft, and what no endpoint can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from specprefill_cli.documents.document import Collection
from specprefill_cli.endpoint.evidence_text import evidence_text, plan_of, whole_sentences
from specprefill_cli.errors import UsageError
from specprefill_cli.prefill.auto_mode import check_draft_fits
from specprefill_cli.prefill.fates import Plan, full_plan
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import shared_scores
from specprefill_cli.prefill.selection import select_scored, spread_warnings
from specprefill_cli.record import BASELINE, Passage
from specprefill_cli.settings import AUTO, OFF, SETTINGS, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session

SELECT = "select"
MODES_THERE = (AUTO, BASELINE, SELECT)
# Settings of the target's weights, and of how they are run.
OF_WEIGHTS = ("adapter", "style", "quantization", "tensor_parallel")
# Document tokens up to which `auto` sends everything: choosing would take longer than reading them.
SHORTEST = 1_024


def check_possible(settings: Settings) -> None:
    """Raises UsageError that names the settings which need the target's weights here."""
    asked = [f"--mode {settings.mode}"] if settings.mode not in MODES_THERE else []
    names = [name for name in OF_WEIGHTS if getattr(settings, name) != SETTINGS[name].default]
    asked += ["--confirm"] if settings.confirm else []
    names += ["positions"] if settings.positions != AUTO else []
    names += ["speculate"] if settings.speculate not in (AUTO, OFF) else []
    names += ["proposer"] if settings.proposer != AUTO else []
    asked += [f"{SETTINGS[name].flag} {getattr(settings, name)}" for name in names]
    if asked:
        raise UsageError(
            f"{', '.join(asked)}: an endpoint takes text only; leave it out, or give a --target with weights here"
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is sent, and how it was found.

    mode: `full` or `select`; reason: why `auto` took it; passages, text: what is sent, as sentences and as prose
    plan: its tokens, as the draft counts them; importance: [n] of the document's tokens, None where nothing was scored
    neighbours: weight of a chunk's two neighbours in its rank
    logits: none: an endpoint shows no distribution of its first token
    """

    request: PrefillRequest
    mode: str
    reason: str | None
    passages: list[Passage]
    text: str
    plan: Plan
    importance: Tensor | None = None
    neighbours: float = 0.0
    reused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    logits: None = None


def choose(session: Session, collection: Collection, question: str, settings: Settings) -> Choice:
    """Choose what is sent for a question.

    Raises PromptTooLong where the draft cannot read the documents.
    """
    # Nothing is decoded here, so that the draft keeps no state for it.
    planned = BASELINE if settings.mode == BASELINE else SELECT
    request = session.request(collection, question, settings.varied(mode=planned, speculate=OFF))
    mode, reason = choose_mode(settings.mode, request.document_tokens)
    prompt = request.prompt
    if mode == BASELINE:
        plan = full_plan(prompt.length, prompt.document)
        passages = whole_sentences(collection, plan, prompt.offsets)
        text = evidence_text(collection, passages)
        return Choice(request=request, mode=mode, reason=reason, passages=passages, text=text, plan=plan)
    if SCORERS[request.scorer].uses_draft:
        check_draft_fits(request)
    scores = shared_scores(request)
    with request.clock.phase("selection"):
        selection = select_scored(request, scores, capped=False)
        passages = whole_sentences(collection, selection.plan, prompt.offsets)
        plan = plan_of(collection, passages, selection.plan, prompt.offsets)
        text = evidence_text(collection, passages)
    return Choice(
        request=request,
        mode=mode,
        reason=reason,
        passages=passages,
        text=text,
        plan=plan,
        importance=scores.importance,
        neighbours=scores.neighbours,
        reused=scores.reused,
        warnings=(*selection.warnings, *spread_warnings(request, scores, selection)),
    )


def choose_mode(mode: str, document_tokens: int) -> tuple[str, str | None]:
    """The mode, and the reason where `auto` chose it: what a token costs at the endpoint is unknown, and so no speedup."""
    if mode != AUTO:
        return mode, None
    if document_tokens <= SHORTEST:
        return BASELINE, f"auto: {document_tokens:,} document tokens are few enough to send them all"
    return SELECT, f"auto: {document_tokens:,} document tokens; up to {SHORTEST:,} are sent whole"
