"""The figures of a study over all its questions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from specprefill_cli.lab.evaluation.statistics import FEWEST_QUESTIONS, auroc, mean_or_none, spearman
from specprefill_cli.lab.study.drift import drift_row
from specprefill_cli.lab.study.measurements import BUDGETS, MAPPED_ONLY, ItemStudy
from specprefill_cli.lab.study.signals import OBSERVABLE

# Smaller relative errors are rounding errors of exactly computed layers.
EXACT_ERROR = 1e-6
Statistic = Callable[[ArrayLike, ArrayLike], float | None]


def summary(studies: Sequence[ItemStudy], changed: Sequence[bool] = ()) -> dict:
    """The study's figures by name; correlations are None with fewer than `FEWEST_QUESTIONS` questions.

    changed: for the first questions, whether mapped KV alone changed the answer, if measured
    """
    risks = torch.tensor([study.risk for study in studies])
    kl = torch.tensor([study.trials[MAPPED_ONLY].kl for study in studies])
    first_changed = torch.tensor([not study.trials[MAPPED_ONLY].same for study in studies])
    answer_changed = torch.tensor(list(changed)[: len(studies)], dtype=torch.bool)
    enough_questions = len(studies) >= FEWEST_QUESTIONS
    correlation, separation = (statistic if enough_questions else no_statistic for statistic in (spearman, auroc))
    by_layer = {name: layer_correlations(studies, name, correlation) for name in studies[0].signals}
    means = {name: torch.stack([study.signals[name].mean() for study in studies]) for name in by_layer}
    keys, values = (
        torch.stack([getattr(study, part) for study in studies]).nanmean(0) for part in ("key_errors", "value_errors")
    )
    errors = (keys + values) / 2
    names = dict.fromkeys(name for study in studies for name in study.trials)
    return {
        "questions": len(studies),
        "first_token_changed": float(first_changed.float().mean()),
        "answer_changed": float(answer_changed.float().mean()) if len(answer_changed) else None,
        "spearman_checkpoint_to_true_error_by_layer": by_layer,
        "auroc_risk_to_changed_first_token": separation(risks, first_changed),
        "spearman_risk_to_kl": correlation(risks, kl),
        "signals": [
            {
                "signal": name,
                "observable": name in (*OBSERVABLE, "risk"),
                "spearman_to_true_error": mean_or_none(by_layer.get(name, ())),
                "spearman_to_kl": correlation(scores, kl),
                "auroc_to_changed_first_token": separation(scores, first_changed),
                "auroc_to_changed_answer": separation(scores[: len(answer_changed)], answer_changed),
            }
            for name, scores in {**means, "risk": risks}.items()
        ],
        "true_error_by_layer_and_depth": errors.tolist(),
        "true_error_by_layer": {"keys": keys.nanmean(1).tolist(), "values": values.nanmean(1).tolist()},
        "stability": stability(errors.nanmean(1), correlation),
        "variants": {name: variant(studies, name) for name in names},
        "first_token_by_budget": [
            {"recompute": budget, "chosen_by": chosen_by, **variant(studies, f"recompute {budget:g}{suffix}")}
            for chosen_by in ("risk", "random")
            for budget in BUDGETS
            for suffix in [" at random" if budget and chosen_by == "random" else ""]
        ],
        "drift": [
            drift_row(name, [study.trials[name].drift for study in studies if name in study.trials])
            for name in studies[0].trials
        ],
    }


def no_statistic(_first: ArrayLike, _second: ArrayLike) -> None:
    """The statistic of too few questions: None."""


def layer_correlations(studies: Sequence[ItemStudy], name: str, correlation: Statistic) -> list[float | None]:
    """Spearman's correlation, by layer, of a signal at the checkpoint tokens with the true error there.

    None for the first two layers: checkpoint tokens have no error there, because the inputs are exact.
    """
    return [
        correlation(
            torch.cat([study.signals[name][layer] for study in studies]),
            torch.cat([study.happened[layer] for study in studies]),
        )
        if layer > 1
        else None
        for layer in range(len(studies[0].happened))
    ]


def stability(errors: Tensor, correlation: Statistic = spearman) -> dict[str, float | None]:
    """Whether lower layers are mapped better: the mean error of each half, and the rank correlation of error and depth.

    errors: [layers]; exactly computed layers, like the first, do not count
    """
    mapped = errors[errors > EXACT_ERROR]
    half = (len(mapped) + 1) // 2
    return {
        "lower_half_error": float(mapped[:half].mean()) if len(mapped) else None,
        "upper_half_error": float(mapped[half:].mean()) if len(mapped) > 1 else None,
        "spearman_layer_to_error": correlation(torch.arange(len(mapped)), mapped),
    }


def variant(studies: Sequence[ItemStudy], name: str) -> dict[str, float]:
    """First-token figures of a variant, over the questions that have it."""
    trials = [study.trials[name] for study in studies if name in study.trials]
    return {
        "kl_median": statistics.median(trial.kl for trial in trials),
        "kl_mean": statistics.fmean(trial.kl for trial in trials),
        "same_first_token": statistics.fmean(trial.same for trial in trials),
    }
