"""What comes out of a question: the answer and everything measured on the way to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specprefill_cli.answering.citations import Citation
from specprefill_cli.decoding.adaptive import SWITCHED_OFF, Verdict
from specprefill_cli.documents.collection import Collection, DocumentPages
from specprefill_cli.prefill.fates import Fate, Plan
from specprefill_cli.prompting import Prompt


@dataclass(frozen=True)
class SpanRecord:
    """A span of prompt tokens [start, end) with its fate, pages, and risk where one was estimated.

    pages: numbers alone, of all documents; documents: the same by document
    """

    start: int
    end: int
    fate: Fate
    pages: list[int]
    risk: float | None
    documents: list[DocumentPages] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """One answered question. Times in seconds; `ttft_seconds` from question submitted to first token in hand.

    tokens_per_second: decoding after the first token, None when nothing more was decoded
    reason: why the mode was taken, where `auto` took it
    acceptance_rate: proposed tokens that were accepted, over all proposed; None when none was
    accepted_length_mean, accepted_histogram: accepted tokens a round, and rounds by that number
    proposer: who proposed, None when nobody did; speculation: whether it was on at the end, and why not
    reused: what earlier questions about the same documents had left and was not done again, in words
    scorer: who judged the document's tokens, None in `full`; draft_window: tokens that the draft saw back while it read
    """

    id: str
    question: str
    answer: str
    mode: str
    reason: str | None
    draft: str | None
    target: str
    prompt_tokens: int
    kept_tokens: int
    kept_ratio: float
    ttft_seconds: float
    startup_seconds: float
    phases: dict[str, float]
    spans: list[SpanRecord]
    generated_tokens: int
    tokens_per_second: float | None
    acceptance_rate: float | None
    peak_memory_bytes: int | None
    citations: list[Citation]
    warnings: list[str]
    stopped: str
    accepted_length_mean: float | None = None
    accepted_histogram: list[int] = field(default_factory=list)
    proposer: str | None = None
    speculation: Verdict = SWITCHED_OFF
    reused: list[str] = field(default_factory=list)
    scorer: str | None = None
    draft_window: int | None = None


def span_records(collection: Collection, prompt: Prompt, plan: Plan) -> list[SpanRecord]:
    """The plan's spans with the pages they touch."""
    first = prompt.document[0]
    records = []
    for span in plan.spans:
        low, high = int(prompt.offsets[span.start - first, 0]), int(prompt.offsets[span.end - first - 1, 1])
        pages, documents = collection.pages(low, high), collection.pages_by_document(low, high)
        records.append(SpanRecord(span.start, span.end, span.fate, pages, span.risk, documents))
    return records
