"""Fits the confidence of answers on questions with known answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from specprefill_cli.answering.confidence import ConfidenceModel
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import RIGHT
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.prefill.calibration import weights_fingerprint
from specprefill_cli.settings import Settings

NAMES = ("mean", "lowest", "source")
FEWEST_QUESTIONS = 50
RIDGE, NEWTON_STEPS = 0.01, 30


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


def log_odds(probability: float) -> float:
    """The logit of a probability."""
    return math.log(probability / (1 - probability))


def logistic_regression(rows: np.ndarray, right: np.ndarray) -> tuple[float, list[float]]:
    """Fit a logistic regression with a small ridge on standardised weights by Newton's method: intercept and weights.

    rows: [n, k]; right: [n] of 0 and 1
    """
    mean, deviation = rows.mean(0), rows.std(0) + 1e-9
    inputs = np.column_stack([(rows - mean) / deviation, np.ones(len(rows))])
    ridge = RIDGE * np.diag([*np.ones(rows.shape[1]), 0.0])
    weights = np.zeros(inputs.shape[1])
    for _ in range(NEWTON_STEPS):
        probability = 1 / (1 + np.exp(-inputs @ weights))
        gradient = inputs.T @ (probability - right) / len(right) + ridge @ weights
        hessian = (inputs * (probability * (1 - probability))[:, None]).T @ inputs / len(right) + ridge
        weights = weights - np.linalg.solve(hessian, gradient)
    slopes = weights[:-1] / deviation
    return float(weights[-1] - slopes @ mean), slopes.tolist()
