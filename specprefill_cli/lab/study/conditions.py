"""What the study compares at equal cost: modes, the draft alone, and the controls of draft KV."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from specprefill_cli.lab.evaluation.runner import Configuration
from specprefill_cli.lab.session import Control, short_answers
from specprefill_cli.lab.study.controls import (
    accepted_replaced,
    all_replaced,
    mapped_only,
    random_recomputed,
    rest_dropped,
    spliced,
    with_map,
    zeroed,
)
from specprefill_cli.lab.study.measurements import BUDGETS, REFERENCE_BUDGET
from specprefill_cli.prefill.calibration import CalibratedPair
from specprefill_cli.prefill.checkpoints import SlotKv
from specprefill_cli.prefill.projection import pair_calibration
from specprefill_cli.settings import Settings

FULL, DRAFT_ALONE, SELECT, DRAFT_KV, HYBRID = "full", "draft alone", "select", "draft-kv", "hybrid"
ZEROS_ACCEPTED, WRONG_ACCEPTED = "zeros accepted", "wrong document accepted"
REST_DROPPED, MAPPED, WRONG = "same tokens, rest dropped", "mapped only", "wrong document's KV"


def reference_settings(settings: Settings) -> Settings:
    """Draft KV with the reference's budget, for short answers."""
    return short_answers(settings).varied(mode=DRAFT_KV, recompute=REFERENCE_BUDGET, accept_risk=None)


def conditions(pair: CalibratedPair, keeps: Mapping[str, float], wrong: SlotKv | None) -> list[Configuration]:
    """All conditions at the reference's budget, the baseline `full` first.

    keeps: keep ratio by mode; wrong: the mapped KV of another document, if there is one
    """
    calibration = pair_calibration(pair)
    exact = [kv_map for kv_map in calibration.maps.values() if kv_map.exact_layers] if calibration is not None else []
    return [
        Configuration(FULL),
        Configuration(FULL, name=DRAFT_ALONE, by_draft=True),
        Configuration(SELECT, keeps[SELECT]),
        budgeted(DRAFT_KV, REFERENCE_BUDGET),
        Configuration(HYBRID, keeps[HYBRID]),
        controlled(MAPPED, mapped_only),
        controlled(REST_DROPPED, rest_dropped),
        budgeted("random tokens recomputed", REFERENCE_BUDGET, random_recomputed),
        *(
            controlled(
                f"exact {kv_map.exact_layers} layers, {'with' if kv_map.draft_layers else 'without'} draft",
                partial(with_map, kv_map),
            )
            for kv_map in exact
        ),
        # The same budget as the reference, so that only the accepted KV differs.
        controlled(ZEROS_ACCEPTED, partial(accepted_replaced, zeroed)),
        *(
            [
                controlled(WRONG_ACCEPTED, partial(accepted_replaced, partial(spliced, wrong))),
                controlled(WRONG, partial(all_replaced, partial(spliced, wrong))),
            ]
            if wrong is not None
            else []
        ),
        controlled("zero KV", partial(all_replaced, zeroed)),
    ]


def other_budgets() -> list[Configuration]:
    """Draft KV with every budget but the reference's, spent on the riskiest and on random chunks."""
    by_risk = [budgeted(f"draft-kv, recompute {budget:g}", budget) for budget in BUDGETS if budget != REFERENCE_BUDGET]
    at_random = [
        budgeted(f"random tokens, recompute {budget:g}", budget, random_recomputed)
        for budget in BUDGETS
        if budget not in (0, REFERENCE_BUDGET)
    ]
    return by_risk + at_random


def budgeted(name: str, budget: float, control: Control | None = None) -> Configuration:
    """Draft KV that may recompute a ratio of the prompt: the riskiest chunks, or those that the control draws."""
    chosen_by = "random" if control else "risk"
    return Configuration(DRAFT_KV, name=name, recompute=budget, chosen_by=chosen_by, control=control)


def controlled(name: str, control: Control) -> Configuration:
    """Draft KV with a control in place of its prefill."""
    return Configuration(DRAFT_KV, name=name, control=control)
