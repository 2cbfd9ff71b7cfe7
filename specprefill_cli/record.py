"""The public records of an answer, a comparison, a plan and a retrieval. Imports no torch.

`to_json` and `from_json` are the JSON of `--json`, of batch rows and of the HTTP endpoints.
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
# The mode that others are compared with, and where the target computes kept tokens: the first unless said otherwise.
BASELINE, ORIGINAL, COMPACT = "full", "original", "compact"
# The mode of plans and passages.
PLANNED_MODE = "select"
# The phases of the time to first token, in their order.
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
# With an endpoint, after all of them: from sending the text to the first piece of the answer. That is network, queue, prefill
# and first token of the server.
UPSTREAM = "upstream"
# How the target says that the documents do not hold the answer.
NOT_FOUND = "not found"
# The warning about a provisional answer that stays one.
UNCONFIRMED = "full prefill has not confirmed the answer"
# Lowest probability of being right at which an answer is called likely.
LIKELY = 0.6


def json_line(record: dict[str, Any]) -> str:
    """Write one line of JSON in ASCII: readable in any locale, and no control character reaches a terminal."""
    return json.dumps(record, allow_nan=False)


class Fate(StrEnum):
    """A span is computed by the target, its KV is accepted from the draft, or it is dropped."""

    RECOMPUTE = "recompute"
    ACCEPT = "accept"
    DROP = "drop"


@dataclass(frozen=True, kw_only=True)
class SpanRecord:
    """A span of prompt tokens [start, end) with its fate, its pages, and its risk where one was estimated.

    pages: numbers alone, of all documents; documents: the same by document
    """

    start: int
    end: int
    fate: Fate
    pages: list[int]
    risk: float | None
    documents: list[DocumentPages] = field(default_factory=list)


@dataclass(frozen=True)
class Citation:
    """A document's name, a 1-based page, a character range [start, end) in the document, and the sentence or sentences there.

    number: which of the documents, from 0; their names may be the same
    """

    document: str
    page: int
    start: int
    end: int
    text: str
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Passage(Citation):
    """Consecutive sentences of one document; importance: 0 to 1, that of its best sentence."""

    importance: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A chunk, or the part of one that has one fate: prompt tokens [start, end), with its pages.

    text_start, text_end: its characters in the collection's text
    importance: mean over the chunk's tokens, None where nothing was scored
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
    """Whether speculation was on at the end of an answer, and the reason where it turned itself off."""

    state: str
    reason: str | None = None


# The verdict of an answer decoded without speculation.
SWITCHED_OFF = Verdict("off")


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """The gate's decision about a prompt.

    risk: that would remain, None where it was not estimated; threshold: None where any risk is accepted
    """

    signal: str
    risk: float | None
    threshold: float | None
    accepted: bool


@dataclass(frozen=True, kw_only=True)
class Record:
    """One answered question. Times in seconds; `ttft_seconds` from question submitted to first token in hand.

    reason: why `auto` took the mode; None where the mode was named
    tokens_per_second: of decoding after the first token, None when nothing more was decoded
    acceptance_rate: accepted over proposed tokens, None when none was proposed
    accepted_length_mean, accepted_histogram: accepted tokens a round, and the number of rounds by accepted tokens
    proposer: the source of proposed tokens, None without any; speculation: its state at the end, and the reason
    reused: work of earlier questions about the same documents that was not done again, in words
    cached_tokens: prompt tokens whose KV the target had from an earlier question
    passages: about the question, the passage that the answer quotes first
    log_probability: mean of the target's natural log-probabilities of the answer's tokens, the stop token included
    confidence: probability that the answer is right, None for `not found` and for pairs without that calibration
    expected_speedup: of the prefill over `full`, by the cost model
    gate: whether the risk of the accepted draft KV was small enough; None in modes without draft KV
    scorer: None in modes without one; draft_window: attention window of the draft's prefill in tokens, None for no window
    positions: where the target computed kept tokens, `original` or `compact`; position_factor: of the gaps between spans
    confirmed: whether full prefill gave the provisional answer (True), another one, which `answer` then is (False), or was not
        asked or not finished (None)
    provisional_answer, provisional_ttft_seconds: None where no confirmation was asked for
    confirm_seconds: from the end of the provisional answer to that of the final one
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
    cached_tokens: int = 0
    passages: list[Passage] = field(default_factory=list)
    log_probability: float | None = None
    confidence: float | None = None
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
        """Document tokens that the target computed over all document tokens; None without any."""
        document = sum(span.end - span.start for span in self.spans)
        # Every token that was not kept is a document token: prefix and suffix are always computed.
        return 1 - (self.prompt_tokens - self.kept_tokens) / document if document else None

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values: its fields by name, the pair's models together; absent values are None."""
        values = asdict(self)
        pair = {"draft": values.pop("draft"), "target": values.pop("target")}
        values |= {"id": self.id or None, "pair": pair, "document_kept_ratio": self.document_kept_ratio}
        return {"schema": SCHEMA, **values}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Record:
        """The record in the JSON values of `to_json`; further keys are ignored."""
        return decode(cls, {**values, **values["pair"], "id": values["id"] or ""})


@dataclass(frozen=True, kw_only=True)
class ModeAnswer:
    """One mode's answer, with its cells for the page, and its difference from `full` (None where that did not run).

    mode: as the user named it; the answer names the one that `auto` took
    speedup: TTFT of `full` over this one's; first_token_kl: KL(full || mode) of the first token's distributions, in nats
    agreement: F1 of the words of both answers, 1 where they are the same
    """

    mode: str
    answer: Record
    cells: list[Cell]
    speedup: float | None = None
    first_token_kl: float | None = None
    agreement: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The answers to one question. misfits: modes that the prompt is too long for, with the reason."""

    question: str
    answers: list[ModeAnswer]
    misfits: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values: rows as `ask --json` has them, with their differences from `full`."""
        names = ("speedup", "first_token_kl", "agreement")
        rows = [
            row.answer.to_json() | {"asked": row.mode} | {name: getattr(row, name) for name in names}
            for row in self.answers
        ]
        return {"schema": SCHEMA, "question": self.question, "rows": rows, "does_not_fit": self.misfits}


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Passages in document order, and how much of the documents they are.

    document_words, kept_words: words of the documents and of the passages
    """

    question: str
    passages: list[Passage]
    document_words: int
    kept_words: int
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected cost of a keep ratio, by counted operations and the overhead of a pass.

    speedup: time of full prefill over the time with this ratio
    ttft_seconds: at the measured speed of the draft, or None where no draft ran
    """

    keep: float | None
    kept_tokens: int
    kept_ratio: float
    speedup: float
    ttft_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class PassCost:
    """The fixed cost of a model's pass, in tokens computed in the same time; `measured`, or assumed for its device."""

    role: str
    tokens: int
    measured: bool


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The tokens that mode `select` would keep, and the expected times.

    auto: the mode that `auto` would take before scoring, and the reason; pair: names of `draft` and `target`
    phases: seconds, of the draft alone; full_fits: whether the whole prompt fits the target's context
    estimates: the planned ratio first, then others; full_ttft_seconds: estimate for full prefill, None as in Estimate
    pass_costs: of each model, the cost of a pass beside its tokens
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
    pass_costs: list[PassCost]
    warnings: list[str]


def decode(expected: Any, value: Any) -> Any:
    """A value of a type from the JSON values that `asdict` makes of it. Unknown keys of dataclasses are ignored.

    Raises TypeError for a field that is missing and has no default.
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if value is None:
        return None
    if isinstance(expected, type) and is_dataclass(expected):
        hints = _hints(expected)
        return expected(**{name: decode(hint, value[name]) for name, hint in hints.items() if name in value})
    if origin in (Union, UnionType):
        return decode(next(argument for argument in arguments if argument is not type(None)), value)
    if origin is list:
        return [decode(arguments[0], item) for item in value]
    return expected(value) if isinstance(expected, type) and issubclass(expected, Enum) else value


@cache
def _hints(expected: Any) -> dict[str, Any]:
    return get_type_hints(expected)
