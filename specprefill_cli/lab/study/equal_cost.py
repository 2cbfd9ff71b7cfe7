"""Answers at equal time to first token: modes against the draft alone and against the controls of draft KV."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from torch import Tensor

from specprefill_cli.answering.comparison import kl_divergence, normalise
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.evaluation.statistics import FEWEST_QUESTIONS, TOO_FEW, mean_interval
from specprefill_cli.lab.session import answer_with, draft_session
from specprefill_cli.lab.study import conditions
from specprefill_cli.lab.study.controls import mapped_kv, other_document
from specprefill_cli.lab.study.equal_ttft import Tuned, tune
from specprefill_cli.settings import Settings

# What draft KV is compared with question by question.
OPPONENTS = (conditions.REST_DROPPED, conditions.SELECT, conditions.ZEROS_ACCEPTED, conditions.WRONG_ACCEPTED)
# How far a TTFT may lie from the reference's to count as equal, as a ratio.
TOLERANCE = 0.05


@dataclass
class Tally:
    """One condition's figures, a number for each question: F1 in percent, TTFT in seconds, first-token KL in nats.

    kl is empty if the first tokens cannot be compared; same: whether the answer equals that of `full`
    """

    condition: Configuration
    f1: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """One condition over n questions: F1 in percent with its 95 % interval, median TTFT in seconds.

    keep: of its configuration, None if it has none
    ttft_ratio: TTFT divided by the reference's; equal_ttft: whether they differ by at most `TOLERANCE`
    first_token_kl: median KL(full || condition) in nats, None for another vocabulary
    gap_recovered: the part of the F1 gap between the draft alone and `full`, None if there is no gap
    same_answer: ratio of answers that equal those of `full`
    """

    name: str
    keep: float | None
    n: int
    f1: float
    f1_low: float
    f1_high: float
    ttft_seconds: float
    ttft_ratio: float
    equal_ttft: bool
    first_token_kl: float | None
    gap_recovered: float | None
    same_answer: float


@dataclass(frozen=True)
class PairedDifference:
    """F1 of the reference minus that of another condition, paired by question, in percent with its 95 % interval."""

    against: str
    difference: float
    low: float
    high: float
    verdict: str


@dataclass(frozen=True)
class EqualCost:
    """The outcome of the comparison.

    rows: every condition over all questions
    answer_changed: per question, whether the answer with mapped KV alone differs from that of `full`
    """

    tuned: tuple[Tuned, ...]
    rows: tuple[CostRow, ...]
    duels: tuple[PairedDifference, ...]
    answer_changed: tuple[bool, ...]

    def record(self) -> dict:
        """The outcome for JSON."""
        return {"reference": conditions.DRAFT_KV, "tolerance": TOLERANCE, **asdict(self)}


def equal_cost(session: Session, items: Sequence[Item], settings: Settings, step: Callable[[str], None]) -> EqualCost:
    """Choose keep ratios at equal TTFT, then ask every question in every condition, question by question.

    Raises SpecprefillError without questions, KeyboardInterrupt if interrupted.
    """
    if not items:
        raise SpecprefillError("no questions to answer; give --answers a number above 0")
    settings = conditions.reference_settings(settings)
    tuned = tune(session, items, settings, (conditions.SELECT, conditions.HYBRID), step)
    keeps = {mode: choice.keep for mode, choice in tuned.items()}
    tallies = ask_all(session, items, settings, keeps, step)
    return EqualCost(
        tuned=tuple(tuned.values()),
        rows=cost_rows(tallies),
        duels=tuple(
            paired_difference(tallies[conditions.DRAFT_KV], tallies[name], name)
            for name in OPPONENTS
            if name in tallies
        ),
        answer_changed=tuple(not same for same in tallies[conditions.MAPPED].same),
    )


def ask_all(
    session: Session,
    items: Sequence[Item],
    settings: Settings,
    keeps: Mapping[str, float],
    step: Callable[[str], None],
) -> dict[str, Tally]:
    """The figures of every condition by name; settings: the reference's, keeps: keep ratio by mode."""
    session, draft_alone = session.with_cache(None), draft_session(session)
    tallies: dict[str, Tally] = {}
    # Number -1 asks the last question without counting it, as a warm-up of every condition.
    for number in range(-1, len(items)):
        item = items[number]
        other = other_document(items, number % len(items))
        wrong = mapped_kv(session, other, settings) if other is not None else None
        full: tuple[str, Tensor] | None = None
        for condition in conditions.conditions(keeps, wrong):
            step(f"question {number + 1:,} of {len(items):,}: {condition.label}")
            asking = draft_alone if condition.by_draft else session
            stream = answer_with(
                asking, item.collection, item.question, condition.settings(settings), condition.control
            )
            text, ttft, logits = stream.finished().answer, stream.ttft_seconds, stream.prefilled.logits
            full = full or (text, logits)
            if number >= 0:
                tally = tallies.setdefault(condition.label, Tally(condition))
                tally.f1.append(100 * f1(text, item.answers))
                tally.ttft.append(ttft)
                tally.same.append(normalise(text) == normalise(full[0]))
                # With another tokenizer, the draft's logits are over other tokens.
                if session.pair.same_tokenizer or not condition.by_draft:
                    tally.kl.append(first_token_kl(full[1], logits))
    return tallies


def first_token_kl(full: Tensor, logits: Tensor) -> float:
    """KL(full || condition) in nats over logits [V]; the padding of either vocabulary is cut off."""
    size = min(len(full), len(logits))
    return kl_divergence(full[:size], logits[:size])


def cost_rows(tallies: Mapping[str, Tally]) -> tuple[CostRow, ...]:
    """One row for each condition."""
    reference = statistics.median(tallies[conditions.DRAFT_KV].ttft)
    full, draft = (statistics.fmean(tallies[name].f1) for name in (conditions.FULL, conditions.DRAFT_ALONE))
    return tuple(cost_row(name, tally, reference, full, draft) for name, tally in tallies.items())


def cost_row(name: str, tally: Tally, reference: float, full: float, draft: float) -> CostRow:
    """A row; reference: the reference's median TTFT in seconds; full, draft: mean F1 of `full` and the draft alone."""
    mean, low, high = mean_interval(tally.f1)
    ratio = (seconds := statistics.median(tally.ttft)) / reference
    return CostRow(
        name=name,
        keep=tally.condition.keep,
        n=len(tally.f1),
        f1=mean,
        f1_low=low,
        f1_high=high,
        ttft_seconds=seconds,
        ttft_ratio=ratio,
        equal_ttft=abs(ratio - 1) <= TOLERANCE,
        first_token_kl=statistics.median(tally.kl) if tally.kl else None,
        gap_recovered=gap_recovered(mean, draft, full),
        same_answer=statistics.fmean(tally.same),
    )


def gap_recovered(score: float, draft: float, full: float) -> float | None:
    """(score - draft) / (full - draft): 0 is no better than the draft alone, 1 as good as `full`."""
    return (score - draft) / (full - draft) if full > draft else None


def paired_difference(reference: Tally, other: Tally, name: str) -> PairedDifference:
    """The reference against another condition on the same questions; decided if the interval excludes 0."""
    differences = [ours - theirs for ours, theirs in zip(reference.f1, other.f1, strict=True)]
    mean, low, high = mean_interval(differences)
    verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
    return PairedDifference(name, mean, low, high, verdict if len(differences) >= FEWEST_QUESTIONS else TOO_FEW)
