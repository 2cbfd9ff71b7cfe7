"""The public records of an answer, a comparison, a plan and a retrieval. Does not import torch.

`to_json` and `from_json` write and read the JSON of `--json`, of batch rows and of the HTTP endpoints.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum, StrEnum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from specprefill_cli.documents.document import DocumentPages

SCHEMA = 1
# The mode that other modes are compared with; then the positions of kept tokens, ORIGINAL by default.
BASELINE, ORIGINAL, COMPACT = "full", "original", "compact"
# The mode that plans and passages use.
PLANNED_MODE = "select"
# The phases of the time to first token, in order.
PHASES = (
    "tokenize",
    "draft_prefill",
    "look_ahead",
    "scoring",
    "selection",
    "mapping",
    "checkpoints",
    "target_prefill",
    "first_token",
)
# The last phase with an endpoint: from sending the text to the first piece of the answer. It covers the network, and the
# server's queue, prefill and first token.
UPSTREAM = "upstream"
# How the target says that the documents do not hold the answer.
NOT_FOUND = "not found"
# The warning about an answer that stays provisional.
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
class SpanRecord:
    """A span of prompt tokens [start, end) with its fate, its pages, and its risk (None if not estimated).

    pages: page numbers over all documents; documents: the same pages by document
    """

    start: int
    end: int
    fate: Fate
    pages: list[int]
    risk: float | None
    documents: list[DocumentPages] = field(default_factory=list)


@dataclass(frozen=True)
class Citation:
    """A document's name, a 1-based page, a character range [start, end) in the document, and the sentences there.

    number: index of the document, from 0; two documents may have the same name
    """

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


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A chunk, or a part of a chunk with a single fate: prompt tokens [start, end), with its pages.

    text_start, text_end: its character range in the collection's text
    importance: mean over the chunk's tokens, None without scores
    """

    start: int
    end: int
    text_start: int
    text_end: int
    pages: list[int]
    documents: list[DocumentPages]
    fate: Fate
    importance: float | None


@dataclass(frozen=True)
class Verdict:
    """Whether speculation was on at the end of an answer, and why it turned itself off if it did."""

    state: str
    reason: str | None = None


# The verdict of an answer decoded without speculation.
SWITCHED_OFF = Verdict("off")


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """The gate's decision about a prompt.

    risk: the risk that would remain, None if not estimated; threshold: None if any risk is accepted
    """

    risk: float | None
    threshold: float | None
    accepted: bool


@dataclass(frozen=True, kw_only=True)
class Record:
    """An answered question. Times in seconds; `ttft_seconds` runs from question submitted to first token in hand.

    reason: why `auto` took the mode; None if the user named the mode
    tokens_per_second: decoding speed after the first token, None if nothing more was decoded
    acceptance_rate: accepted over proposed tokens, None if nothing was proposed
    accepted_length_mean, accepted_histogram: accepted tokens a round, and the number of rounds by accepted tokens
    proposer: the source of proposed tokens, None without proposals; speculation: its state at the end, and the reason
    reused: work of earlier questions about the same documents that was not repeated, in words
    cached_tokens: prompt tokens whose KV the target had from an earlier question
    passages: the passages about the question; the passage that the answer quotes comes first
    log_probability: mean natural log-probability that the target gave the answer's tokens, including the stop token
    documents_left_out: number of documents that the shortlist leaves out
    confidence: probability that the answer is right, None for `not found`
    answerable, answerable_probability: whether the documents state an answer; None with `--not-found never`
    expected_speedup: of the prefill over `full`, by the cost model
    gate: whether the risk of the accepted draft KV was small enough; None in modes without draft KV
    scorer: None in modes without a scorer; draft_window: attention window of the draft's prefill in tokens, None for no window
    positions: `original` or `compact` positions of kept tokens; position_factor: factor of the gaps between spans
    confirmed: True if full prefill gave the provisional answer; False if it gave another answer, then in `answer`; None if
        no confirmation was requested or it did not finish
    provisional_answer, provisional_ttft_seconds: None if no confirmation was requested
    confirm_seconds: from the end of the provisional answer to the end of the final answer
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
    documents_left_out: int = 0
    accepted_length_mean: float | None = None
    accepted_histogram: list[int] = field(default_factory=list)
    proposer: str | None = None
    speculation: Verdict = SWITCHED_OFF
    reused: list[str] = field(default_factory=list)
    cached_tokens: int = 0
    passages: list[Passage] = field(default_factory=list)
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

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Record:
        """The record from the JSON values of `to_json`; unknown keys are ignored."""
        return from_json_values(cls, {**values, **values["pair"], "id": values["id"] or ""})


@dataclass(frozen=True, kw_only=True)
class ModeAnswer:
    """A mode's answer, its cells for the page, and its difference from `full` (None if `full` did not run).

    mode: as the user named it; `answer.mode` is the mode that `auto` took
    speedup: TTFT of `full` over this mode's TTFT; first_token_kl: KL(full || mode) of the first token, in nats
    agreement: word F1 of this answer and that of `full`, 1 if they are the same
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
        differences = ("speedup", "first_token_kl", "agreement")
        rows = [
            row.answer.to_json() | {"asked": row.mode} | {name: getattr(row, name) for name in differences}
            for row in self.answers
        ]
        return {"schema": SCHEMA, "question": self.question, "rows": rows, "does_not_fit": self.misfits}


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Passages in document order, and their share of the documents.

    document_words, kept_words: words of the documents and of the passages
    """

    question: str
    passages: list[Passage]
    document_words: int
    kept_words: int
    warnings: list[str]
    documents_left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected cost of a keep ratio, from counted operations and the overhead of a pass.

    speedup: time of full prefill over the time at this ratio
    ttft_seconds: at the measured speed of the draft, None if no draft ran
    """

    keep: float | None
    kept_tokens: int
    kept_ratio: float
    speedup: float
    ttft_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The tokens that mode `select` would keep, and the expected times.

    auto: the mode that `auto` would take before scoring, and the reason; pair: names of `draft` and `target`
    phases: seconds of the draft's phases; full_fits: whether the whole prompt fits the target's context
    estimates: the planned ratio first, then others; full_ttft_seconds: estimate for full prefill, None if no draft ran
    """

    question: str
    mode: str
    auto: dict[str, str]
    pair: dict[str, str | None]
    prompt_tokens: int
    kept_tokens: int
    kept_ratio: float
    phases: dict[str, float]
    spans: list[SpanRecord]
    chunks: list[Cell]
    estimates: list[Estimate]
    full_ttft_seconds: float | None
    full_fits: bool
    warnings: list[str]
    documents_left_out: int = 0


def from_json_values(value_type: Any, value: Any) -> Any:
    """Rebuild a value of the given type from the JSON values of `asdict`. Unknown keys of dataclasses are ignored.

    Raises TypeError for a missing field without a default.
    """
    origin, arguments = get_origin(value_type), get_args(value_type)
    if value is None:
        return None
    if isinstance(value_type, type) and is_dataclass(value_type):
        hints = _hints(value_type)
        return value_type(
            **{name: from_json_values(hint, value[name]) for name, hint in hints.items() if name in value}
        )
    if origin in (Union, UnionType):
        return from_json_values(next(argument for argument in arguments if argument is not type(None)), value)
    if origin is list:
        return [from_json_values(arguments[0], item) for item in value]
    return value_type(value) if isinstance(value_type, type) and issubclass(value_type, Enum) else value


@cache
def _hints(expected: Any) -> dict[str, Any]:
    return get_type_hints(expected)
