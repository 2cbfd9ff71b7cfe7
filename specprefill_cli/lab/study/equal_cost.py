"""Answers at equal time to first token: modes against the draft alone and against the controls of draft KV.

Nothing is kept of a question but a few numbers a condition, so that memory does not grow with the number of questions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from torch import Tensor

from specprefill_cli.answering.comparison import divergence
from specprefill_cli.answering.metrics import bootstrap_interval, f1, normalise
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.study.conditions import (
    DRAFT_ALONE,
    DRAFT_KV,
    FULL,
    MAPPED,
    REST_DROPPED,
    SELECT,
    WRONG_ACCEPTED,
    ZEROS_ACCEPTED,
    Condition,
    conditions,
    draft_session,
    other_budgets,
    reference_settings,
)
from specprefill_cli.lab.study.controls import mapped_kv, other_document
from specprefill_cli.lab.study.equal_ttft import Tuned, tune
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings

# What draft KV is compared with question by question.
DUELLISTS = (REST_DROPPED, SELECT, ZEROS_ACCEPTED, WRONG_ACCEPTED)
# How far a time may lie from the reference's to count as equal.
TOLERANCE = 0.05


@dataclass
class Tally:
    """One condition's figures, a number for each question: F1 in percent, TTFT in seconds, first-token KL in nats.

    kl is empty where the first tokens cannot be compared; same: whether the answer is that of `full`
    """

    budget: float | None
    chosen_by: str | None
    keep: float | None
    f1: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)

    def first(self, count: int) -> Tally:
        """The figures of the first questions."""
        return replace(self, f1=self.f1[:count], ttft=self.ttft[:count], kl=self.kl[:count], same=self.same[:count])


@dataclass(frozen=True)
class CostRow:
    """One condition over n questions; F1 in percent with its 95 % interval, median TTFT in seconds.

    keep: where the condition has one; budget, chosen_by: as in `Condition`
    ttft_ratio: TTFT over that of the reference; equal_ttft: whether they differ by at most TOLERANCE
    first_token_kl: median KL(full || condition) in nats, None for another vocabulary
    gap_recovered: share of the F1 between the draft alone and `full`, None where `full` is not better than the draft
    same_answer: share of answers that are those of `full`
    """

    name: str
    budget: float | None
    chosen_by: str | None
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
class Duel:
    """F1 of the reference minus that of another condition, paired by question, in percent with its 95 % interval."""

    against: str
    difference: float
    low: float
    high: float
    verdict: str


@dataclass(frozen=True)
class EqualCost:
    """What the run found.

    rows: every condition over all questions; budgets: draft KV with every budget over the first ones
    answer_changed: per question, whether mapped KV alone gave another answer than `full`
    """

    tuned: tuple[Tuned, ...]
    rows: tuple[CostRow, ...]
    duels: tuple[Duel, ...]
    budgets: tuple[CostRow, ...]
    answer_changed: tuple[bool, ...]

    def record(self) -> dict:
        """For JSON."""
        return {"reference": DRAFT_KV, "tolerance": TOLERANCE, **asdict(self)}


def equal_cost(
    session: Session, items: Sequence[Item], settings: Settings, swept: int, step: Callable[[str], None]
) -> EqualCost:
    """Choose keep ratios at equal TTFT, then ask every question in every condition, question by question.

    swept: how many of the questions, the first ones, are also asked with the other budgets of recompute

    Raises SpecprefillError without questions, KeyboardInterrupt when an answer was interrupted.
    """
    if not items:
        raise SpecprefillError("no questions to answer; give --answers a number above 0")
    settings = reference_settings(session.with_scorer(settings))
    tuned = tune(session, items, settings, ("select", "hybrid"), step)
    keeps = {mode: one.keep for mode, one in tuned.items()}
    tallies = ask_all(session, items, settings, keeps, swept, step)
    others = {condition.name for condition in other_budgets(session, settings)}
    everywhere = {name: tally for name, tally in tallies.items() if name not in others}
    first = {name: tally.first(swept) for name, tally in tallies.items()}
    budgets = tuple(row for row in cost_rows(first) if row.budget is not None)
    changed = tuple(not same for same in tallies[MAPPED].same)
    duels = tuple(duel(tallies[DRAFT_KV], tallies[name], name) for name in DUELLISTS if name in tallies)
    return EqualCost(tuple(tuned.values()), cost_rows(everywhere), duels, budgets, changed)


def ask_all(
    session: Session,
    items: Sequence[Item],
    settings: Settings,
    keeps: Mapping[str, float],
    swept: int,
    step: Callable[[str], None],
) -> dict[str, Tally]:
    """The figures of every condition by name. settings: the reference's; keeps: keep ratio by mode; swept: see above."""
    session, alone = replace(session, shared=None), draft_session(session)
    tallies: dict[str, Tally] = {}
    # Round 0 asks the last question without counting it, so that no condition pays for lazy initialisation.
    for number in range(-1, len(items)):
        item = items[number]
        other = other_document(items, number % len(items))
        wrong = mapped_kv(session, other, settings) if other is not None else None
        full: tuple[Tensor, str] | None = None
        wanted = conditions(session, alone, settings, keeps, wrong)
        for condition in wanted + (other_budgets(session, settings) if number < swept else []):
            step(f"question {number + 1:,} of {len(items):,}: {condition.name}")
            text, ttft, logits = answer(condition, item)
            full = full or (logits, text)
            if number >= 0:
                add(tallies, condition, item, text, ttft, first_token_kl(session, condition, full[0], logits), full[1])
    return tallies


def answer(condition: Condition, item: Item) -> tuple[str, float, Tensor]:
    """Answer, TTFT in seconds, and the first token's logits [V] of one question; the caches are let go."""
    stream = condition.session.ask(
        item.collection, item.question, condition.settings, item.identifier, strategy=condition.strategy
    )
    return stream.finished().answer, stream.clock.ttft, stream.prefilled.logits


def first_token_kl(session: Session, condition: Condition, full: Tensor, logits: Tensor) -> float | None:
    """KL(full || condition) in nats; None where the draft answers in other tokens than the target."""
    if condition.name == DRAFT_ALONE and not session.pair.same_tokenizer:
        return None
    # One vocabulary may be padded to another size in the two models.
    size = min(len(full), len(logits))
    return divergence(full[:size], logits[:size])


def add(
    tallies: dict[str, Tally], condition: Condition, item: Item, text: str, ttft: float, kl: float | None, full: str
) -> None:
    """Count one answer in."""
    keep = condition.settings.keep if MODES[condition.settings.mode].uses_keep else None
    tally = tallies.setdefault(condition.name, Tally(condition.budget, condition.chosen_by, keep))
    tally.f1.append(100 * f1(text, item.answers))
    tally.ttft.append(ttft)
    tally.same.append(normalise(text) == normalise(full))
    if kl is not None:
        tally.kl.append(kl)


def cost_rows(tallies: Mapping[str, Tally]) -> tuple[CostRow, ...]:
    """One row for each condition."""
    reference = statistics.median(tallies[DRAFT_KV].ttft)
    full, draft = (statistics.fmean(tallies[name].f1) for name in (FULL, DRAFT_ALONE))
    return tuple(cost_row(name, tally, reference, full, draft) for name, tally in tallies.items())


def cost_row(name: str, tally: Tally, reference: float, full: float, draft: float) -> CostRow:
    """reference: median TTFT of the reference in seconds; full, draft: mean F1 of `full` and of the draft alone."""
    mean, (low, high) = statistics.fmean(tally.f1), bootstrap_interval(tally.f1)
    seconds = statistics.median(tally.ttft)
    ratio = seconds / reference
    return CostRow(
        name=name,
        budget=tally.budget,
        chosen_by=tally.chosen_by,
        keep=tally.keep,
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
    """(score - draft) / (full - draft): 0 for no better than the draft alone, 1 for as good as `full`."""
    return (score - draft) / (full - draft) if full > draft else None


def duel(reference: Tally, other: Tally, name: str) -> Duel:
    """The reference against another condition over the same questions; the verdict says which interval excludes 0."""
    differences = [ours - theirs for ours, theirs in zip(reference.f1, other.f1, strict=True)]
    low, high = bootstrap_interval(differences)
    verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
    return Duel(name, statistics.fmean(differences), low, high, verdict)
