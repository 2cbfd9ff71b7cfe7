"""Kept spans as prose: whole sentences below the name and page of their document, with `[...]` for what is left out."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from specprefill_cli.answering.passages import Sentences, ranges_of
from specprefill_cli.answering.retrieval import kept_passages
from specprefill_cli.documents.document import Collection
from specprefill_cli.errors import one_line
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.selection import fate_spans
from specprefill_cli.prompting import Template
from specprefill_cli.record import Fate, Passage

LEFT_OUT = "[...]"
PARAGRAPH = "\n\n"


def whole_sentences(collection: Collection, plan: Plan, offsets: np.ndarray) -> list[Passage]:
    """The sentences that a plan's kept spans touch, in document order; offsets: [n, 2] characters of document tokens."""
    ranges = ranges_of(collection.text)
    return kept_passages(collection, Sentences(ranges=ranges, relevance=np.zeros(len(ranges))), plan, offsets)


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
    """The passages as a text for a model: a heading for each page, then its passages, each a paragraph."""
    return PARAGRAPH.join(parts(collection, passages))


def parts(collection: Collection, passages: Sequence[Passage]) -> Iterator[str]:
    """The paragraphs of the text; a heading belongs to the paragraph below it."""
    reached = 0
    for (number, page), group in groupby(passages, key=lambda passage: (passage.number, passage.page)):
        heading = page_heading(collection, number, page)
        for passage in group:
            start, end = place_of(collection, passage)
            if collection.text[reached:start].strip():
                yield LEFT_OUT
            yield f"{heading}\n{passage.text}" if heading else passage.text
            heading, reached = "", end
    if collection.text[reached:].strip():
        yield LEFT_OUT


def page_heading(collection: Collection, number: int, page: int) -> str:
    """What stands above the text of a page: the document's name, if it has one, and the page where it has several."""
    document = collection.documents[number]
    if not document.name:
        return ""
    return f"{one_line(document.name)}, page {page}:" if len(document.pages) > 1 else f"{one_line(document.name)}:"


def chat_messages(template: Template, document: str, question: str) -> list[dict[str, str]]:
    """The messages that are sent: the template's instruction, and its text with documents and question filled in."""
    body = template.user if template.text is None else template.text
    content = string.Template(body or "").substitute(document=document, question=question.strip()).strip()
    system = [{"role": "system", "content": template.system}] if template.system else []
    return [*system, {"role": "user", "content": content}]
