"""Fits on answers to questions with known answers: how likely an answer is right, and what `auto` means for a target."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from specprefill_cli.answering.confidence import ConfidenceModel, last_values
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import RIGHT
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.evaluation.statistics import mean_interval
from specprefill_cli.lab.session import short_answers
from specprefill_cli.prefill.calibration import TargetCalibration, weights_fingerprint
from specprefill_cli.record import COMPACT, ORIGINAL
from specprefill_cli.settings import Settings

NAMES = ("mean", "lowest", "source")
FEWEST_QUESTIONS = 50
RIDGE, NEWTON_STEPS = 0.01, 30
# The layers whose values tell most of whether the text states an answer, as shares of the depth; the ridge of their weights.
TELLING_LAYERS, STATES_RIDGE = (0.4, 0.8), 0.1
SIGNIFICANT_DIGITS = 4


def fit_confidence(
    session: Session, items: Sequence[Item], settings: Settings, unseen: float | None, step: Callable[[str], None]
) -> ConfidenceModel:
    """Answer the questions, and fit a logistic regression of whether an answer is right on its signals.

    unseen: share of right answers on text that the pair was not trained on; None if these questions are such text.
        The intercept shifts by the difference of the log-odds (prior correction, Saerens et al. 2002).
    step: called with the progress in words

    Raises SpecprefillError for too few answers, or if all or none are right.
    """
    signal_rows, right = [], []
    for number, item in enumerate(items):
        step(f"answering: {number:,} of {len(items):,}")
        stream = session.ask(item.collection, item.question, settings)
        answer = stream.finished()
        signals = stream.signals
        if signals is not None:
            signal_rows.append([signals[name] for name in NAMES])
            right.append(f1(answer.answer, item.answers) >= RIGHT)
    share_right = float(np.mean(right)) if right else 0.0
    if len(right) < FEWEST_QUESTIONS or share_right in (0.0, 1.0):
        raise SpecprefillError(
            f"confidence: {len(right)} answers, {share_right:.0%} of them right; give at least {FEWEST_QUESTIONS} questions "
            "of which some are answered right and some wrong"
        )
    intercept, weights = logistic_regression(np.array(signal_rows), np.array(right, dtype=float))
    if unseen is not None:
        intercept += log_odds(unseen) - log_odds(share_right)
    return ConfidenceModel(
        intercept=intercept,
        weights=dict(zip(NAMES, weights, strict=True)),
        target=weights_fingerprint(session.pair.loaded_target.model),
        evidence={
            "questions": len(right),
            "right": round(share_right, 4),
            "unseen": unseen if unseen is not None else share_right,
        },
    )


def fit_answerable(
    session: Session, items: Sequence[Item], settings: Settings, assumed: float, step: Callable[[str], None]
) -> ConfidenceModel:
    """Fit a logistic regression of whether the documents state an answer on the target's states after the prompt.

    items: without answers where the documents state none; assumed: share of users' questions that have an answer
    step: called with the progress in words

    Raises SpecprefillError unless both kinds of questions are there.
    """
    target = session.pair.loaded_target.model
    depth = target.config.get_text_config().num_hidden_layers
    layers = range(*(round(share * depth) for share in TELLING_LAYERS))
    rows, answered = [], np.array([bool(item.answers) for item in items], dtype=float)
    if len(items) < FEWEST_QUESTIONS or answered.mean() in (0.0, 1.0):
        raise SpecprefillError(
            f"answerable: {len(items)} questions, {answered.mean():.0%} of them with answers; give at least "
            f"{FEWEST_QUESTIONS}, of which some have answers and some have none"
        )
    for number, item in enumerate(items):
        step(f"reading: {number:,} of {len(items):,}")
        stream = session.ask(item.collection, item.question, settings)
        values = [last_values(stream.prefilled.state, layer) for layer in layers]
        rows.append(np.concatenate([[stream.evidence["margin"], stream.evidence["names"]], *values]))
    return answerable_model(np.array(rows), answered, layers, assumed, weights_fingerprint(target))


def answerable_model(
    rows: np.ndarray, answered: np.ndarray, layers: Sequence[int], assumed: float, target: str
) -> ConfidenceModel:
    """The model from rows [n, 2 + values] of margin, names and the layers' values, and whether each is answered: [n]."""
    intercept, weights = logistic_regression(rows, answered, STATES_RIDGE)
    margin, names, *by_layer = (float(f"{weight:.{SIGNIFICANT_DIGITS}g}") for weight in weights)
    width = len(by_layer) // len(layers)
    return ConfidenceModel(
        intercept=intercept + log_odds(assumed) - log_odds(float(answered.mean())),
        weights={"states": 1.0, "margin": margin, "names": names},
        target=target,
        evidence={"questions": len(rows), "with_answers": round(float(answered.mean()), 4), "assumed": assumed},
        states={str(layer): by_layer[width * place :][:width] for place, layer in enumerate(layers)},
    )


def log_odds(probability: float) -> float:
    """The logit of a probability."""
    return math.log(probability / (1 - probability))


def logistic_regression(rows: np.ndarray, right: np.ndarray, strength: float = RIDGE) -> tuple[float, list[float]]:
    """Fit a logistic regression with a ridge on standardised weights by Newton's method: intercept and weights.

    rows: [n, k]; right: [n] of 0 and 1; strength: of the ridge
    """
    mean, deviation = rows.mean(0), rows.std(0) + 1e-9
    inputs = np.column_stack([(rows - mean) / deviation, np.ones(len(rows))])
    ridge = strength * np.diag([*np.ones(rows.shape[1]), 0.0])
    weights = np.zeros(inputs.shape[1])
    for _ in range(NEWTON_STEPS):
        probability = 1 / (1 + np.exp(-inputs @ weights))
        gradient = inputs.T @ (probability - right) / len(right) + ridge @ weights
        hessian = (inputs * (probability * (1 - probability))[:, None]).T @ inputs / len(right) + ridge
        weights = weights - np.linalg.solve(hessian, gradient)
    slopes = weights[:-1] / deviation
    return float(weights[-1] - slopes @ mean), slopes.tolist()


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
