"""What `auto` should mean for a target: where its kept tokens stand, and how much of the importance it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.evaluation.statistics import mean_interval
from specprefill_cli.lab.session import short_answers
from specprefill_cli.prefill.calibration import TargetCalibration, weights_fingerprint
from specprefill_cli.record import COMPACT, ORIGINAL
from specprefill_cli.settings import Settings

# Keep ratio at which positions are compared, and document tokens whose mass `--keep auto` counts.
KEEP, AUTO_TOKENS = 0.1, 2_048
MASSES = (0.3, 0.4, 0.5, 0.6)
# The F1 points that a smaller mass may lose against the best one: less than what a hundred questions can tell.
MARGIN = 1.0


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to answer, as the target's calibration and the question's settings."""

    name: str
    calibration: TargetCalibration
    settings: Settings


def tune_target(
    session: Session, items: Sequence[Item], settings: Settings, step: Callable[[str], None]
) -> TargetCalibration:
    """Answer every question with kept tokens at both kinds of positions, then with each mass at the better ones.

    items: with answers, in documents long enough that little of them is kept; step: called with what is being done
    The published positions stay unless the compact ones have the higher F1; of the masses the smallest within `MARGIN` of
    the best is taken.

    Raises SpecprefillError without questions.
    """
    if not items:
        raise SpecprefillError("no questions to tune the target's values on; give some with answers")
    base = short_answers(settings.varied(mode="select"))
    target = weights_fingerprint(session.pair.loaded_target.model)
    plain = TargetCalibration(target=target)
    places = [
        Variant(name=name, calibration=plain, settings=base.varied(keep=KEEP, positions=name))
        for name in (ORIGINAL, COMPACT)
    ]
    by_place = score_variants(session, items, places, step)
    original, compact = by_place[ORIGINAL], by_place[COMPACT]
    difference = mean_interval(
        [compact_f1 - original_f1 for compact_f1, original_f1 in zip(compact, original, strict=True)]
    )
    chosen = COMPACT if difference[0] > 0 else ORIGINAL
    masses = [
        Variant(
            name=f"{mass:g}",
            calibration=replace(plain, auto_mass=mass, auto_tokens=AUTO_TOKENS),
            settings=base.varied(keep=None, positions=chosen),
        )
        for mass in MASSES
    ]
    means = {name: fmean(scores) for name, scores in score_variants(session, items, masses, step).items()}
    enough = [mass for mass in MASSES if means[f"{mass:g}"] >= max(means.values()) - MARGIN]
    return TargetCalibration(
        target=target,
        positions=chosen,
        auto_mass=min(enough),
        auto_tokens=AUTO_TOKENS,
        evidence={
            "questions": len(items),
            "f1_original": round(fmean(original), 2),
            "f1_compact": round(fmean(compact), 2),
            "f1_difference": [round(value, 2) for value in difference],
            **{f"f1_mass_{name}": round(mean, 2) for name, mean in means.items()},
        },
    )


def score_variants(
    session: Session, items: Sequence[Item], variants: Sequence[Variant], step: Callable[[str], None]
) -> dict[str, list[float]]:
    """F1 in percent of every question by variant's name, asked question by question on copies of the session."""
    scores: dict[str, list[float]] = {variant.name: [] for variant in variants}
    sessions = {
        variant.name: replace(session, pair=replace(session.pair, target_calibration=variant.calibration))
        for variant in variants
    }
    for number, item in enumerate(items):
        step(f"answering {', '.join(scores)}: {number:,} of {len(items):,}")
        for variant in variants:
            answer = sessions[variant.name].ask(item.collection, item.question, variant.settings).finished()
            scores[variant.name].append(100 * f1(answer.answer, item.answers))
    return scores
