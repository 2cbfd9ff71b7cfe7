"""The figures of a study over all its questions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from specprefill_cli.lab.study.drift import drift_row
from specprefill_cli.lab.study.measurements import BUDGETS, MAPPED_ONLY, ItemStudy


def summary(studies: Sequence[ItemStudy], changed: Sequence[bool] = ()) -> dict:
    """The study's figures by name.

    changed: for the first questions, whether mapped KV alone changed the answer, if measured
    """
    keys, values = (
        torch.stack([getattr(study, part) for study in studies]).nanmean(0) for part in ("key_errors", "value_errors")
    )
    answer_changed = [float(value) for value in changed[: len(studies)]]
    names = dict.fromkeys(name for study in studies for name in study.trials)
    return {
        "questions": len(studies),
        "first_token_changed": statistics.fmean(not study.trials[MAPPED_ONLY].same for study in studies),
        "answer_changed": statistics.fmean(answer_changed) if answer_changed else None,
        "true_error_by_layer": {"keys": keys.tolist(), "values": values.tolist()},
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


def variant(studies: Sequence[ItemStudy], name: str) -> dict[str, float]:
    """First-token figures of a variant, over the questions that have it."""
    trials = [study.trials[name] for study in studies if name in study.trials]
    return {
        "kl_median": statistics.median(trial.kl for trial in trials),
        "kl_mean": statistics.fmean(trial.kl for trial in trials),
        "same_first_token": statistics.fmean(trial.same for trial in trials),
    }
