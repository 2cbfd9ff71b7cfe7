"""Fits what `auto` means for a target: the positions of kept tokens, and the share of the importance that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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

# Keep ratio for comparing positions, and document tokens whose mass `--keep auto` counts.
KEEP, AUTO_TOKENS = 0.1, 2_048
MASSES = (0.3, 0.4, 0.5, 0.6)
# F1 points that a smaller mass may lose against the best mass: less than a hundred questions can resolve.
MARGIN = 1.0


def tune_target(
    session: Session, items: Sequence[Item], settings: Settings, step: Callable[[str], None]
) -> TargetCalibration:
    """Answer every question with original and with compact positions, then with each mass at the better positions.

    items: with answers, in documents long enough that little of them is kept; step: called with the progress in words
    Takes compact positions only if their F1 is higher, and the smallest mass within `MARGIN` of the best.

    Raises SpecprefillError without questions.
    """
    if not items:
        raise SpecprefillError("no questions to tune the target's values on; give some with answers")
    base = short_answers(settings.varied(mode="select"))
    plain = TargetCalibration(target=weights_fingerprint(session.pair.loaded_target.model))

    def f1_scores(name: str, calibration: TargetCalibration, settings: Settings) -> list[float]:
        calibrated, scores = replace(session, pair=replace(session.pair, target_calibration=calibration)), []
        for number, item in enumerate(items):
            step(f"answering with {name}: {number:,} of {len(items):,}")
            answer = calibrated.ask(item.collection, item.question, settings).finished()
            scores.append(100 * f1(answer.answer, item.answers))
        return scores

    original, compact = (
        f1_scores(f"{name} positions", plain, base.varied(keep=KEEP, positions=name)) for name in (ORIGINAL, COMPACT)
    )
    difference = mean_interval([ours - theirs for ours, theirs in zip(compact, original, strict=True)])
    chosen_positions, mean_f1 = COMPACT if difference[0] > 0 else ORIGINAL, {}
    for mass in MASSES:
        calibration = replace(plain, auto_mass=mass, auto_tokens=AUTO_TOKENS)
        mean_f1[mass] = fmean(
            f1_scores(f"mass {mass:g}", calibration, base.varied(keep=None, positions=chosen_positions))
        )
    return replace(
        plain,
        positions=chosen_positions,
        auto_mass=min(mass for mass in MASSES if mean_f1[mass] >= max(mean_f1.values()) - MARGIN),
        auto_tokens=AUTO_TOKENS,
        evidence={
            "questions": len(items),
            "f1_original": round(fmean(original), 2),
            "f1_compact": round(fmean(compact), 2),
            "f1_difference": [round(value, 2) for value in difference],
            **{f"f1_mass_{mass:g}": round(mean, 2) for mass, mean in mean_f1.items()},
        },
    )
