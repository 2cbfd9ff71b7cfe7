"""What the studied questions say together, as plain numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from specprefill_cli.lab.evaluation.statistics import auroc, spearman
from specprefill_cli.lab.study.measurements import BUDGETS, MAPPED_ONLY, ItemStudy
from specprefill_cli.lab.study.signals import OBSERVABLE


def summary(found: Sequence[ItemStudy], changed: Sequence[bool] = ()) -> dict:
    """The study's figures by name.

    changed: for the first of the questions, whether mapped KV alone changed the whole answer, where that was asked
    """
    risks = torch.tensor([one.risk for one in found])
    kl = torch.tensor([one.kl[MAPPED_ONLY] for one in found])
    first_changed = torch.tensor([not one.same[MAPPED_ONLY] for one in found])
    answer_changed = torch.tensor(list(changed)[: len(found)], dtype=torch.bool)
    by_layer = {name: layer_correlations(found, name) for name in found[0].signals}
    per_question = {name: torch.stack([one.signals[name].mean() for one in found]) for name in by_layer}
    keys, values = mean_errors(found, "key_errors"), mean_errors(found, "value_errors")
    both = (keys + values) / 2
    return {
        "questions": len(found),
        "first_token_changed": float(first_changed.float().mean()),
        "answer_changed": float(answer_changed.float().mean()) if len(answer_changed) else None,
        "spearman_checkpoint_to_true_error_by_layer": by_layer,
        "auroc_risk_to_changed_first_token": auroc(risks, first_changed),
        "spearman_risk_to_kl": spearman(risks, kl),
        "signals": [
            {
                "signal": name,
                "observable": name in (*OBSERVABLE, "risk"),
                "spearman_to_true_error": mean_known(by_layer.get(name, ())),
                "spearman_to_kl": spearman(scores, kl),
                "auroc_to_changed_first_token": auroc(scores, first_changed),
                "auroc_to_changed_answer": auroc(scores[: len(answer_changed)], answer_changed),
            }
            for name, scores in {**per_question, "risk": risks}.items()
        ],
        "true_error_by_layer_and_depth": both.tolist(),
        "true_error_by_layer": {"keys": keys.nanmean(1).tolist(), "values": values.nanmean(1).tolist()},
        "stability": stability(both.nanmean(1)),
        "variants": {name: variant(found, name) for name in dict.fromkeys(name for one in found for name in one.kl)},
        "first_token_by_budget": by_budget(found),
    }


def layer_correlations(found: Sequence[ItemStudy], name: str) -> list[float | None]:
    """Per layer, Spearman's correlation of a signal at the checkpoints with the true error there.

    None where there is nothing to predict: the exact layers, and the one above them, whose inputs are exact too, so that
    checkpoints hold the target's own keys and values there.
    """
    told = found[0].exact_layers + 1
    return [
        spearman(
            torch.cat([one.signals[name][layer] for one in found]), torch.cat([one.happened[layer] for one in found])
        )
        if layer > told
        else None
        for layer in range(len(found[0].happened))
    ]


def mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def mean_errors(found: Sequence[ItemStudy], field: str) -> Tensor:
    """Mean [layers, DEPTHS] over questions; a document of a few tokens has none at some depths."""
    return torch.stack([getattr(one, field) for one in found]).nanmean(0)


def stability(errors: Tensor) -> dict[str, float | None]:
    """Whether lower layers are mapped better: mean error of the lower and upper half, and its rank correlation with depth.

    errors: [layers]; the first layer, which depends on the tokens alone, and others computed exactly are left out
    """
    mapped = errors[errors > 1e-6]
    half = (len(mapped) + 1) // 2
    return {
        "lower_half_error": float(mapped[:half].mean()) if len(mapped) else None,
        "upper_half_error": float(mapped[half:].mean()) if len(mapped) > 1 else None,
        "spearman_layer_to_error": spearman(torch.arange(len(mapped)).float(), mapped),
    }


def variant(found: Sequence[ItemStudy], name: str) -> dict[str, float]:
    kl = torch.tensor([one.kl[name] for one in found if name in one.kl])
    same = [one.same[name] for one in found if name in one.same]
    return {
        "kl_median": statistics.median(kl.tolist()),
        "kl_mean": float(kl.mean()),
        "same_first_token": statistics.fmean(same),
    }


def by_budget(found: Sequence[ItemStudy]) -> list[dict]:
    """First-token figures by share of the prompt recomputed, spent on the riskiest chunks and at random."""
    return [
        {"recompute": budget, "chosen_by": order, **variant(found, name)}
        for order, suffix in (("risk", ""), ("random", " at random"))
        for budget in BUDGETS
        for name in [f"recompute {budget:g}{suffix if budget else ''}"]
    ]
