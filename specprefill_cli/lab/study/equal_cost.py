"""Answers at equal time to first token: modes against the draft alone and against the controls of draft KV."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.tasks import kl_divergence, normalise_words
from specprefill_cli.draft_kv.checkpoints import SlotKv
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.evaluation.statistics import FEWEST_QUESTIONS, TOO_FEW, mean_figures, mean_interval
from specprefill_cli.lab.session import Control, answer_with, draft_session, short_answers
from specprefill_cli.lab.study import controls
from specprefill_cli.lab.study.measurements import MAPPED_ONLY, REFERENCE_BUDGET, REST_DROPPED
from specprefill_cli.lab.tables import Row
from specprefill_cli.settings import OFF, Settings

FULL, DRAFT_ALONE, SELECT, DRAFT_KV, HYBRID = "full", "draft alone", "select", "draft-kv", "hybrid"
ZEROS_ACCEPTED, WRONG_ACCEPTED, WRONG = "zeros accepted", "wrong document accepted", "wrong document's KV"
# Draft KV is compared with these, question by question.
OPPONENTS = (REST_DROPPED, SELECT, ZEROS_ACCEPTED, WRONG_ACCEPTED)
# A TTFT counts as equal if it differs from the reference's by at most this share.
TOLERANCE = 0.05
# Keep ratios to try, and the number of questions whose TTFT decides between them.
KEEPS = tuple(step / 40 for step in range(1, 41))
PILOT_QUESTIONS = 9


def reference_settings(settings: Settings) -> Settings:
    """Draft KV with the reference's budget, for short answers."""
    return short_answers(settings).varied(mode=DRAFT_KV, recompute=REFERENCE_BUDGET, accept_risk=OFF)


def conditions(keeps: Mapping[str, float], wrong: SlotKv | None) -> list[Configuration]:
    """All conditions at the reference's budget, the baseline `full` first.

    keeps: keep ratio by mode; wrong: the mapped KV of another document, or None
    """
    draft_kv: dict[str, Control | None] = {
        MAPPED_ONLY: controls.map_only,
        REST_DROPPED: controls.drop_rest,
        "random tokens recomputed": controls.recompute_random,
        # These have the reference's budget, so that only the accepted KV differs.
        ZEROS_ACCEPTED: partial(controls.replace_accepted, controls.zero_kv),
    }
    if wrong is not None:
        splice_wrong = partial(controls.splice_document, wrong)
        draft_kv[WRONG_ACCEPTED] = partial(controls.replace_accepted, splice_wrong)
        draft_kv[WRONG] = partial(controls.replace_all, splice_wrong)
    draft_kv["zero KV"] = partial(controls.replace_all, controls.zero_kv)
    return [
        Configuration(FULL),
        Configuration(FULL, name=DRAFT_ALONE, by_draft=True),
        Configuration(SELECT, keeps[SELECT]),
        Configuration(DRAFT_KV),
        Configuration(HYBRID, keeps[HYBRID]),
        *(Configuration(DRAFT_KV, name=name, control=control) for name, control in draft_kv.items()),
    ]


@dataclass
class Tally:
    """A condition's figures, a number for each question: F1 in percent, TTFT in seconds, first-token KL in nats.

    kl: empty if the first tokens are not comparable; same: whether the answer equals that of `full`
    """

    condition: Configuration
    f1: list[float] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)


def equal_cost(session: Session, items: Sequence[Item], settings: Settings, step: Callable[[str], None]) -> Row:
    """Choose keep ratios at equal TTFT, then ask every question in every condition, question by question.

    answer_changed: for each question, whether the answer with only mapped KV differs from that of `full`

    Raises SpecprefillError without questions, KeyboardInterrupt if interrupted.
    """
    if not items:
        raise SpecprefillError("no questions to answer; give --answers a number above 0")
    settings = reference_settings(settings)
    tuned = tune(session, items, settings, (SELECT, HYBRID), step)
    tallies = ask_all(session, items, settings, {choice["mode"]: choice["keep"] for choice in tuned}, step)
    opponents = [name for name in OPPONENTS if name in tallies]
    return {
        "reference": DRAFT_KV,
        "tolerance": TOLERANCE,
        "tuned": tuned,
        "rows": cost_rows(tallies),
        "duels": [paired_difference(tallies[DRAFT_KV], tallies[name], name) for name in opponents],
        "answer_changed": [not same for same in tallies[MAPPED_ONLY].same],
    }


def tune(
    session: Session, items: Sequence[Item], reference: Settings, modes: Sequence[str], step: Callable[[str], None]
) -> list[Row]:
    """Find each mode's keep ratio whose median TTFT on the pilot questions is nearest to the reference's."""
    pilots = items[:PILOT_QUESTIONS]
    step(f"timing {reference.mode}")
    target_seconds = median_ttft(session, pilots, reference)
    tuned = []
    for mode in modes:

        def measure(keep: float, mode: str = mode) -> float:
            step(f"timing {mode} at keep {keep:g}")
            return median_ttft(session, pilots, reference.varied(mode=mode, keep=keep))

        keep, seconds = nearest_keep(target_seconds, measure)
        times = {"pilot_ttft_seconds": seconds, "target_ttft_seconds": target_seconds}
        tuned.append({"mode": mode, "keep": keep, **times})
    return tuned


def nearest_keep(target_seconds: float, measure: Callable[[float], float]) -> tuple[float, float]:
    """Find by bisection the keep ratio of `KEEPS` whose time is nearest to the target; return it and its time.

    measure: keep ratio -> seconds, assumed to grow with the ratio; called once for each ratio tried
    """
    tried: dict[float, float] = {}

    def time_keep(keep: float) -> float:
        tried[keep] = measure(keep)
        return tried[keep]

    bisect_left(KEEPS, target_seconds, key=time_keep)
    return min(tried.items(), key=lambda trial: abs(trial[1] - target_seconds))


def median_ttft(session: Session, items: Sequence[Item], settings: Settings) -> float:
    """Median seconds to the first token over questions, after a warm-up."""
    session.ask(items[0].collection, items[0].question, settings)
    streams = (session.ask(item.collection, item.question, settings) for item in items)
    return statistics.median(stream.request.clock.ttft for stream in streams)


def ask_all(
    session: Session,
    items: Sequence[Item],
    settings: Settings,
    keeps: Mapping[str, float],
    step: Callable[[str], None],
) -> dict[str, Tally]:
    """Ask every question in every condition; return the tallies by name. settings: the reference's; keeps: ratio by mode."""
    session, draft_alone = session.with_cache(None), draft_session(session)
    tallies: dict[str, Tally] = {}
    # Number -1 is a warm-up of every condition with the last question; it does not count.
    for number in range(-1, len(items)):
        item = items[number]
        other_item = controls.other_document(items, number % len(items))
        wrong = controls.mapped_kv(session, other_item, settings) if other_item is not None else None
        full: tuple[str, Tensor] | None = None
        for condition in conditions(keeps, wrong):
            step(f"question {number + 1:,} of {len(items):,}: {condition.label}")
            answering = draft_alone if condition.by_draft else session
            stream = answer_with(
                answering, item.collection, item.question, condition.settings(settings), condition.control
            )
            text, ttft, logits = stream.finished().answer, stream.request.clock.ttft, stream.prefilled.logits
            full = full or (text, logits)
            if number >= 0:
                tally = tallies.setdefault(condition.label, Tally(condition))
                tally.f1.append(100 * f1(text, item.answers))
                tally.ttft.append(ttft)
                tally.same.append(normalise_words(text) == normalise_words(full[0]))
                # With different tokenizers, the draft's logits are over other tokens.
                if session.pair.same_tokenizer or not condition.by_draft:
                    # Either vocabulary may be padded.
                    size = min(len(full[1]), len(logits))
                    tally.kl.append(kl_divergence(full[1][:size], logits[:size]))
    return tallies


def cost_rows(tallies: Mapping[str, Tally]) -> list[Row]:
    """A row for each condition over n questions: F1 in percent with its 95 % interval, median TTFT in seconds.

    keep: the condition's keep ratio, or None
    ttft_ratio: TTFT divided by the reference's; equal_ttft: whether they differ by at most `TOLERANCE`
    first_token_kl: median KL(full || condition) in nats, None for another vocabulary
    gap_recovered: see the function `gap_recovered`; same_answer: share of answers that equal those of `full`
    """
    reference_seconds = statistics.median(tallies[DRAFT_KV].ttft)
    full, draft = (statistics.fmean(tallies[name].f1) for name in (FULL, DRAFT_ALONE))
    rows = []
    for name, tally in tallies.items():
        seconds = statistics.median(tally.ttft)
        rows.append(
            {
                "name": name,
                "keep": tally.condition.keep,
                "n": len(tally.f1),
                **mean_figures("f1", tally.f1),
                "ttft_seconds": seconds,
                "ttft_ratio": seconds / reference_seconds,
                "equal_ttft": abs(seconds / reference_seconds - 1) <= TOLERANCE,
                "first_token_kl": statistics.median(tally.kl) if tally.kl else None,
                "gap_recovered": gap_recovered(statistics.fmean(tally.f1), draft, full),
                "same_answer": statistics.fmean(tally.same),
            }
        )
    return rows


def gap_recovered(score: float, draft: float, full: float) -> float | None:
    """(score - draft) / (full - draft): 0 is no better than the draft alone, 1 as good as `full`; None without a gap."""
    return (score - draft) / (full - draft) if full > draft else None


def paired_difference(reference: Tally, other: Tally, name: str) -> Row:
    """F1 of the reference minus that of another condition, paired by question, in percent with its 95 % interval.

    The verdict is `undecided` if the interval includes 0.
    """
    differences = [ours - theirs for ours, theirs in zip(reference.f1, other.f1, strict=True)]
    mean, low, high = mean_interval(differences)
    verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
    if len(differences) < FEWEST_QUESTIONS:
        verdict = TOO_FEW
    return {"against": name, "difference": mean, "low": low, "high": high, "verdict": verdict}
