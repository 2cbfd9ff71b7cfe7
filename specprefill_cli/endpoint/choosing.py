"""The draft chooses the text that an endpoint gets; settings that no endpoint can have are refused.

Kept spans are sent as prose: whole sentences below the name and page of their document, with `[...]` for left-out text.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.answering.passages import Sentences, kept_passages, ranges_of
from specprefill_cli.documents.document import Collection
from specprefill_cli.errors import UsageError, one_line
from specprefill_cli.prefill.auto_mode import check_draft_fits
from specprefill_cli.prefill.fates import Plan, full_plan
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import shared_scores
from specprefill_cli.prefill.selection import fate_spans, select_scored, spread_warnings
from specprefill_cli.prompting import Template
from specprefill_cli.record import BASELINE, Fate, Passage
from specprefill_cli.settings import AUTO, OFF, SETTINGS, Settings

if TYPE_CHECKING:
    from specprefill_cli.answering.session import Session

SELECT = "select"
ENDPOINT_MODES = (AUTO, BASELINE, SELECT)
# Settings of the target's weights, and of how they are run.
WEIGHT_SETTINGS = ("adapter", "style", "quantization", "tensor_parallel")
# Document tokens up to which `auto` sends everything: choosing would take longer than reading them.
SHORT_TOKENS = 1_024
LEFT_OUT = "[...]"
PARAGRAPH = "\n\n"


def check_possible(settings: Settings) -> None:
    """Raises UsageError for settings that need the target's weights here; it names them."""
    refused = [f"--mode {settings.mode}"] if settings.mode not in ENDPOINT_MODES else []
    names = [name for name in WEIGHT_SETTINGS if getattr(settings, name) != SETTINGS[name].default]
    refused += ["--confirm"] if settings.confirm else []
    names += ["positions"] if settings.positions != AUTO else []
    names += ["speculate"] if settings.speculate not in (AUTO, OFF) else []
    names += ["proposer"] if settings.proposer != AUTO else []
    refused += [f"{SETTINGS[name].flag} {getattr(settings, name)}" for name in names]
    if refused:
        raise UsageError(
            f"{', '.join(refused)}: an endpoint takes text only; leave it out, or give a --target with weights here"
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The text that is sent, and how the draft chose it.

    mode: `full` or `select`; reason: why `auto` took it; text: to send
    plan: its tokens, as the draft counts them; importance: [n] of the document's tokens, None where nothing was scored
    logits: none: an endpoint shows no distribution of its first token
    """

    request: PrefillRequest
    mode: str
    reason: str | None
    text: str
    plan: Plan
    importance: Tensor | None = None
    reused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    logits: None = None


def choose(session: Session, collection: Collection, question: str, settings: Settings) -> Choice:
    """Choose the text that is sent for a question.

    Raises PromptTooLong where the draft cannot read the documents.
    """
    # Nothing is decoded here, so that the draft keeps no state for it.
    planned = BASELINE if settings.mode == BASELINE else SELECT
    request = session.request(collection, question, settings.varied(mode=planned, speculate=OFF))
    mode, reason = choose_mode(settings.mode, request.document_tokens)
    prompt = request.prompt
    if mode == BASELINE:
        plan = full_plan(prompt.length, prompt.document)
        text = evidence_text(collection, whole_sentences(collection, plan, prompt.offsets))
        return Choice(request=request, mode=mode, reason=reason, text=text, plan=plan)
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
        text=text,
        plan=plan,
        importance=scores.importance,
        reused=scores.reused,
        warnings=(*selection.warnings, *spread_warnings(request, scores, selection)),
    )


def choose_mode(mode: str, document_tokens: int) -> tuple[str, str | None]:
    """The mode, and the reason where `auto` chose it. The cost of a token at the endpoint is unknown, and so is the speedup."""
    if mode != AUTO:
        return mode, None
    if document_tokens <= SHORT_TOKENS:
        return BASELINE, f"auto: {document_tokens:,} document tokens are few enough to send them all"
    return SELECT, f"auto: {document_tokens:,} document tokens; up to {SHORT_TOKENS:,} are sent whole"


def whole_sentences(collection: Collection, plan: Plan, offsets: np.ndarray) -> list[Passage]:
    """The sentences that a plan's kept spans touch, in document order; offsets: [n, 2] characters of document tokens."""
    ranges = ranges_of(collection.text)
    sentences = Sentences(collection=collection, ranges=ranges, relevance=np.zeros(len(ranges)))
    return kept_passages(sentences, plan, offsets)


def plan_of(collection: Collection, passages: Sequence[Passage], plan: Plan, offsets: np.ndarray) -> Plan:
    """The plan whose kept spans are the tokens of these passages."""
    kept = torch.zeros(len(offsets), dtype=torch.long)
    for passage in passages:
        start, end = place_of(collection, passage)
        first, last = np.searchsorted(offsets[:, 1], start, side="right"), np.searchsorted(offsets[:, 0], end)
        kept[int(first) : int(last)] = 1
    spans = fate_spans(kept, (Fate.DROP, Fate.RECOMPUTE), None, 1, plan.document) if len(kept) else ()
    return Plan(plan.prompt_tokens, plan.document, spans)


def place_of(collection: Collection, passage: Passage) -> tuple[int, int]:
    """The characters [start, end) of the collection's text where a passage stands."""
    origin = collection.starts[passage.number]
    return origin + passage.start, origin + passage.end


def evidence_text(collection: Collection, passages: Sequence[Passage]) -> str:
    """The passages as a text for a model: each a paragraph, the first of a page below its document's name and the page."""
    paragraphs, reached, headed = [], 0, None
    for passage in passages:
        start, end = place_of(collection, passage)
        if collection.text[reached:start].strip():
            paragraphs.append(LEFT_OUT)
        document, place = collection.documents[passage.number], (passage.number, passage.page)
        page = f", page {passage.page}" if len(document.pages) > 1 else ""
        heading = f"{one_line(document.name)}{page}:\n" if document.name and place != headed else ""
        paragraphs.append(heading + passage.text)
        reached, headed = end, place
    if collection.text[reached:].strip():
        paragraphs.append(LEFT_OUT)
    return PARAGRAPH.join(paragraphs)


def chat_messages(template: Template, document: str, question: str) -> list[dict[str, str]]:
    """The messages that are sent: the template's instruction, and its text with documents and question filled in."""
    body = template.user if template.text is None else template.text
    content = string.Template(body or "").substitute(document=document, question=question.strip()).strip()
    system = [{"role": "system", "content": template.system}] if template.system else []
    return [*system, {"role": "user", "content": content}]
