"""Lets the draft choose the sentences for an endpoint, and refuses settings that an endpoint cannot have."""

import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specprefill_cli.answering.passages import Sentences, kept_passages
from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection
from specprefill_cli.documents.sentences import sentences_of
from specprefill_cli.errors import UsageError, one_line
from specprefill_cli.prefill.auto_mode import check_draft_fits
from specprefill_cli.prefill.fates import Plan, fate_spans, full_plan
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.selection import select_scored
from specprefill_cli.prompting import Template
from specprefill_cli.record import BASELINE, PLANNED_MODE, Fate, Passage
from specprefill_cli.settings import AUTO, OFF, SETTINGS, Settings

# Settings that need the target's weights, and their values besides the default that do not.
WEIGHT_SETTINGS: dict[str, tuple[str, ...]] = {
    **{"mode": (BASELINE, PLANNED_MODE), "speculate": (OFF,)},
    **dict.fromkeys(("adapter", "quantization", "tensor_parallel", "confirm", "positions", "proposer"), ()),
}
# `auto` sends documents up to this many tokens in full: scoring them would take longer than prefilling them.
SHORT_TOKENS = 1_024
LEFT_OUT = "[...]"
PARAGRAPH = "\n\n"


def check_possible(settings: Settings) -> None:
    """Raises UsageError with the names of all settings that need the target's weights here."""
    refused = [
        f"{SETTINGS[name].flag} {value}".removesuffix(" True")
        for name, possible in WEIGHT_SETTINGS.items()
        if (value := getattr(settings, name)) not in (SETTINGS[name].default, *possible)
    ]
    if refused:
        remedy = "leave it out, or give a --target with weights here"
        raise UsageError(f"{', '.join(refused)}: an endpoint takes text only; {remedy}")


@dataclass(frozen=True)
class Choice:
    """The text to send, and how the draft chose it.

    mode: `full` or `select`; reason: why `auto` chose the mode
    plan: of the text, in the draft's tokens; importance: [n] of the document's tokens, None where nothing was scored
    logits: always None, because an endpoint returns no distribution of its first token
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
    """Choose the text to send for a question. Raises PromptTooLong where the draft cannot read the documents."""
    planned_mode = BASELINE if settings.mode == BASELINE else PLANNED_MODE
    request = session.request(collection, question, settings.varied(mode=planned_mode))
    mode, reason = mode_by_length(settings.mode, request.document_tokens)
    prompt = request.prompt
    if mode == BASELINE:
        plan = full_plan(prompt.length, prompt.document)
        text = evidence_text(collection, whole_sentences(collection, plan, prompt.offsets))
        return Choice(request, mode, reason, text, plan)
    check_draft_fits(request)
    scores = SCORERS[request.scorer].score(request)
    with request.clock.phase("selection"):
        selection = select_scored(request, scores, capped=False)
        passages = whole_sentences(collection, selection.plan, prompt.offsets)
        plan = plan_from_passages(collection, passages, selection.plan, prompt.offsets)
        text = evidence_text(collection, passages)
    return Choice(request, mode, reason, text, plan, scores.importance, scores.reused, selection.warnings)


def mode_by_length(mode: str, document_tokens: int) -> tuple[str, str | None]:
    """Choose the mode, and give the reason where `auto` decides. Costs at the endpoint are unknown, so length decides."""
    if mode != AUTO:
        return mode, None
    if document_tokens <= SHORT_TOKENS:
        return BASELINE, f"auto: {document_tokens:,} document tokens are few enough to send them all"
    return PLANNED_MODE, f"auto: {document_tokens:,} document tokens; up to {SHORT_TOKENS:,} are sent whole"


def whole_sentences(collection: Collection, plan: Plan, offsets: np.ndarray) -> list[Passage]:
    """The sentences that overlap kept spans of a plan, in document order. offsets: [n, 2] characters of document tokens."""
    ranges = sentences_of(collection.text)
    sentences = Sentences(collection=collection, ranges=ranges, relevance=np.zeros(len(ranges)))
    return kept_passages(sentences, plan, offsets)


def plan_from_passages(collection: Collection, passages: Sequence[Passage], plan: Plan, offsets: np.ndarray) -> Plan:
    """The plan that keeps the tokens of these passages."""
    kept = torch.zeros(len(offsets), dtype=torch.long)
    for passage in passages:
        start, end = passage_range(collection, passage)
        first, last = np.searchsorted(offsets[:, 1], start, side="right"), np.searchsorted(offsets[:, 0], end)
        kept[int(first) : int(last)] = 1
    spans = fate_spans(kept, (Fate.DROP, Fate.RECOMPUTE), None, 1, plan.document) if len(kept) else ()
    return Plan(plan.prompt_tokens, plan.document, spans)


def passage_range(collection: Collection, passage: Passage) -> tuple[int, int]:
    """The characters [start, end) of a passage in the collection's text."""
    origin = collection.starts[passage.number]
    return origin + passage.start, origin + passage.end


def evidence_text(collection: Collection, passages: Sequence[Passage]) -> str:
    """Join passages to a text, a paragraph each. The first passage of a page has its document's name and page above it."""
    paragraphs, last_end, last_place = [], 0, None
    for passage in passages:
        start, end = passage_range(collection, passage)
        if collection.text[last_end:start].strip():
            paragraphs.append(LEFT_OUT)
        document, place = collection.documents[passage.number], (passage.number, passage.page)
        page = f", page {passage.page}" if len(document.pages) > 1 else ""
        heading = f"{one_line(document.name)}{page}:\n" if document.name and place != last_place else ""
        paragraphs.append(heading + passage.text)
        last_end, last_place = end, place
    if collection.text[last_end:].strip():
        paragraphs.append(LEFT_OUT)
    return PARAGRAPH.join(paragraphs)


def chat_messages(template: Template, document: str, question: str) -> list[dict[str, str]]:
    """Fill documents and question into a template's messages."""
    body = template.user if template.text is None else template.text
    content = string.Template(body or "").substitute(document=document, question=question.strip()).strip()
    system = [{"role": "system", "content": template.system}] if template.system else []
    return [*system, {"role": "user", "content": content}]
