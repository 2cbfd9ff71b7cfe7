"""The public records of an answer, a comparison, a plan and a retrieval. Does not import torch."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from specprefill_cli.documents.document import DocumentPages

SCHEMA = 1
# The mode that other modes are compared with, the mode of plans and passages; the positions of kept tokens.
BASELINE, PLANNED_MODE, ORIGINAL, COMPACT = "full", "select", "original", "compact"
# The phases of the time to first token, in order.
PHASES = tuple(
    "tokenize draft_prefill look_ahead scoring selection mapping checkpoints target_prefill first_token".split()
)
# The last phase with an endpoint: from sending the text to the first piece of the answer.
UPSTREAM = "upstream"
# How the target says that the documents do not hold the answer; the warning about an answer that stays provisional.
NOT_FOUND = "not found"
UNCONFIRMED = "full prefill has not confirmed the answer"
# An answer is called likely right from this probability on.
LIKELY = 0.6


def json_line(record: dict[str, Any]) -> str:
    """Write a line of JSON in ASCII: readable in any locale, and no control character reaches a terminal."""
    return json.dumps(record, allow_nan=False)


class Fate(StrEnum):
    """Of a span: the target computes it, its cache accepts draft KV, or the span is dropped."""

    RECOMPUTE = "recompute"
    ACCEPT = "accept"
    DROP = "drop"


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Prompt tokens [start, end) with a single fate. pages: over all documents; documents: the same pages by document."""

    start: int
    end: int
    fate: Fate
    pages: list[int]
    documents: list[DocumentPages] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SpanRecord(Stretch):
    """A span, and its risk (None if not estimated)."""

    risk: float | None


@dataclass(frozen=True, kw_only=True)
class Cell(Stretch):
    """A chunk or a part of it, the characters [text_start, text_end) of the collection, and its mean importance, if any."""

    text_start: int
    text_end: int
    importance: float | None


@dataclass(frozen=True)
class Citation:
    """Sentences [start, end) of a document: its name and index (names may repeat), the 1-based page, and their text."""

    document: str
    page: int
    start: int
    end: int
    text: str
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Passage(Citation):
    """Consecutive sentences of a document; importance: that of its best sentence, 0 to 1."""

    importance: float


@dataclass(frozen=True)
class Verdict:
    """Whether speculation was on at the end of an answer; reason: why it turned itself off."""

    state: str
    reason: str | None = None


SWITCHED_OFF = Verdict("off")


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """The gate's decision about a prompt. risk: None if not estimated; threshold: None if any risk is accepted."""

    risk: float | None
    threshold: float | None
    accepted: bool


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a record and a dry run share. phases: seconds by name; documents_left_out: number left out by the shortlist."""

    question: str
    mode: str
    prompt_tokens: int
    kept_tokens: int
    kept_ratio: float
    phases: dict[str, float]
    spans: list[SpanRecord]
    warnings: list[str]
    documents_left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Record(Planned):
    """An answered question. Times in seconds; `ttft_seconds` runs from question submitted to first token in hand.

    None means that nothing of the kind was done: the user named the mode, no draft, no proposals, no gate, no confirmation.
    `confirm_seconds` runs from the end of the provisional answer to the end of the final one.
    """

    id: str = ""
    answer: str
    reason: str | None
    draft: str | None
    target: str
    ttft_seconds: float
    startup_seconds: float
    generated_tokens: int
    tokens_per_second: float | None
    acceptance_rate: float | None = None
    peak_memory_bytes: int | None
    citations: list[Citation]
    stopped: str
    # Accepted tokens a round, and the number of rounds by accepted tokens.
    accepted_length_mean: float | None = None
    accepted_histogram: list[int] = field(default_factory=list)
    proposer: str | None = None
    speculation: Verdict = SWITCHED_OFF
    # Work of earlier questions that was not repeated, in words, and prompt tokens whose KV the target still had.
    reused: list[str] = field(default_factory=list)
    cached_tokens: int = 0
    passages: list[Passage] = field(default_factory=list)
    # Mean natural log-probability of the answer's tokens, stop token included; probability that the answer is right.
    log_probability: float | None = None
    confidence: float | None = None
    answerable: bool | None = None
    answerable_probability: float | None = None
    expected_speedup: float | None = None
    scorer: str | None = None
    draft_window: int | None = None
    gate: GateVerdict | None = None
    positions: str = ORIGINAL
    position_factor: float = 1.0
    # True if full prefill gave the provisional answer, False if it gave another one, then in `answer`.
    confirmed: bool | None = None
    provisional_answer: str | None = None
    provisional_ttft_seconds: float | None = None
    confirm_seconds: float | None = None

    @property
    def document_kept_ratio(self) -> float | None:
        """Document tokens that the target computed, divided by all document tokens; None without document tokens."""
        document = sum(span.end - span.start for span in self.spans)
        # Only document tokens are dropped: prefix and suffix are always computed.
        return 1 - (self.prompt_tokens - self.kept_tokens) / document if document else None

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values: its fields by name, draft and target under `pair`; absent values are None."""
        values = asdict(self)
        pair = {"draft": values.pop("draft"), "target": values.pop("target")}
        values |= {"id": self.id or None, "pair": pair, "document_kept_ratio": self.document_kept_ratio}
        return {"schema": SCHEMA, **values}


@dataclass(frozen=True, kw_only=True)
class ModeAnswer:
    """The answer in a mode that the user named, its cells for the page, and its difference from `full` where that ran.

    speedup: of the TTFT; first_token_kl: KL(full || mode) of the first token, in nats; agreement: word F1 of the answers
    """

    mode: str
    answer: Record
    cells: list[Cell]
    speedup: float | None = None
    first_token_kl: float | None = None
    agreement: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answers to a question in several modes. misfits: modes that the prompt is too long for, with the reason."""

    question: str
    answers: list[ModeAnswer]
    misfits: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values: rows in the format of `ask --json`, with their differences from `full`."""
        names = {"mode": "asked", "speedup": "speedup", "first_token_kl": "first_token_kl", "agreement": "agreement"}
        rows = [row.answer.to_json() | {key: getattr(row, name) for name, key in names.items()} for row in self.answers]
        return {"schema": SCHEMA, "question": self.question, "rows": rows, "does_not_fit": self.misfits}


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Passages in document order, and the words of documents and passages."""

    question: str
    passages: list[Passage]
    document_words: int
    kept_words: int
    warnings: list[str]
    documents_left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected cost of a keep ratio; speedup: over full prefill; ttft_seconds: None if no draft ran."""

    keep: float | None
    kept_tokens: int
    kept_ratio: float
    speedup: float
    ttft_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class DryRun(Planned):
    """The tokens that mode `select` would keep, and the expected times.

    auto: the mode that `auto` would take before scoring, and the reason; pair: names of `draft` and `target`
    estimates: the planned ratio first; full_ttft_seconds: None if no draft ran; full_fits: whether the target's context does
    """

    auto: dict[str, str]
    pair: dict[str, str | None]
    chunks: list[Cell]
    estimates: list[Estimate]
    full_ttft_seconds: float | None
    full_fits: bool
