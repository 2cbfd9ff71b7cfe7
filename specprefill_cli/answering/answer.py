"""The answer to a question, and everything measured on the way to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specprefill_cli.answering.citations import Citation
from specprefill_cli.answering.passages import Passage
from specprefill_cli.decoding.adaptive import SWITCHED_OFF, Verdict
from specprefill_cli.documents.collection import Collection, DocumentPages
from specprefill_cli.prefill.fates import Fate, Plan
from specprefill_cli.prefill.gate import GateVerdict
from specprefill_cli.prefill.positions import ORIGINAL
from specprefill_cli.prompting import Prompt


@dataclass(frozen=True, kw_only=True)
class SpanRecord:
    """A span of prompt tokens [start, end) with its fate, its pages, and its risk where one was estimated.

    layers: how many of its lower layers the target computed for the span, None in modes without draft KV
    pages: numbers alone, of all documents; documents: the same by document
    """

    start: int
    end: int
    fate: Fate
    pages: list[int]
    risk: float | None
    documents: list[DocumentPages] = field(default_factory=list)
    layers: int | None = None


def span_records(collection: Collection, prompt: Prompt, plan: Plan) -> list[SpanRecord]:
    """Return the plan's spans with the pages that they touch."""
    records = []
    for span in plan.spans:
        first, last = span.start - prompt.document[0], span.end - prompt.document[0] - 1
        start, end = int(prompt.offsets[first, 0]), int(prompt.offsets[last, 1])
        records.append(
            SpanRecord(
                start=span.start,
                end=span.end,
                fate=span.fate,
                pages=collection.pages(start, end),
                risk=span.risk,
                documents=collection.pages_by_document(start, end),
                layers=span.layers,
            )
        )
    return records


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answered question. Times in seconds; `ttft_seconds` from question submitted to first token in hand.

    reason: why `auto` took the mode; None where the mode was named
    tokens_per_second: of decoding after the first token, None when nothing more was decoded
    acceptance_rate: accepted over proposed tokens, None when none was proposed
    accepted_length_mean, accepted_histogram: accepted tokens a round, and the number of rounds by accepted tokens
    proposer: what proposed tokens, None when nothing did; speculation: its state at the end, and the reason
    reused: work of earlier questions about the same documents that was not done again, in words
    passages: what the documents say about the question, the passage that the answer quotes first
    log_probability: mean of the target's natural log-probabilities of the answer's tokens, the stop token included
    confidence: probability that the answer is right, None for `not found` and for pairs without that calibration
    expected_speedup: of the prefill over `full`, by the cost model
    gate: whether the risk of the accepted draft KV was small enough; None in modes without draft KV
    scorer: None in modes without one; draft_window: attention window of the draft's prefill in tokens, None for no window
    positions: where the target computed kept tokens, `original` or `compact`; position_factor: what gaps were multiplied by
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
    passages: list[Passage] = field(default_factory=list)
    log_probability: float | None = None
    confidence: float | None = None
    expected_speedup: float | None = None
    scorer: str | None = None
    draft_window: int | None = None
    gate: GateVerdict | None = None
    positions: str = ORIGINAL
    position_factor: float = 1.0

    @property
    def document_kept_ratio(self) -> float | None:
        """Document tokens that the target computed over all document tokens; None without any."""
        document = sum(span.end - span.start for span in self.spans)
        # Every token that was not kept is a document token: prefix and suffix are always computed.
        return 1 - (self.prompt_tokens - self.kept_tokens) / document if document else None
