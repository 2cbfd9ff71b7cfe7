"""The registry of what is compared at equal cost: modes, the draft alone, and the controls of draft KV."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from specprefill_cli.answering.session import Session
from specprefill_cli.lab.study.controls import (
    accepted_replaced,
    mapped_only,
    random_recomputed,
    rest_dropped,
    with_map,
    wrong_document,
    zero_kv,
)
from specprefill_cli.lab.study.measurements import BUDGETS, RECOMPUTE
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.loading import LoadedPair
from specprefill_cli.prefill.modes.base import Prefill
from specprefill_cli.prefill.modes.draft_kv import known_calibration
from specprefill_cli.settings import OFF, Settings

FULL, DRAFT_ALONE, SELECT, DRAFT_KV, HYBRID = "full", "draft alone", "select", "draft-kv", "hybrid"
ZEROS_ACCEPTED, WRONG_ACCEPTED = "zeros accepted", "wrong document accepted"
REST_DROPPED, MAPPED, WRONG = "same tokens, rest dropped", "mapped only", "wrong document's KV"
LONGEST_ANSWER = 32


@dataclass(frozen=True)
class Condition:
    """One way to answer: who is asked, with which settings, and what prefills in place of their mode (None: it itself).

    budget, chosen_by: for draft KV with a budget, the share of the prompt recomputed and how its chunks are chosen
    """

    name: str
    session: Session
    settings: Settings
    strategy: Prefill | None = None
    budget: float | None = None
    chosen_by: str | None = None


def reference_settings(settings: Settings) -> Settings:
    """Draft KV with the reference's budget: greedy short answers without speculation, whose time is that of prefill."""
    return replace(
        settings,
        mode="draft-kv",
        recompute=RECOMPUTE,
        accept_risk=None,
        temperature=0.0,
        speculate=OFF,
        max_new_tokens=LONGEST_ANSWER,
    )


def draft_session(session: Session) -> Session:
    """A session in which the pair's draft answers by itself."""
    pair = session.pair
    return Session(LoadedPair(pair.pair, target=pair.draft, draft=None), session.template)


def conditions(
    session: Session, alone: Session, settings: Settings, keeps: dict[str, float], wrong: PrefillState | None
) -> list[Condition]:
    """All conditions at the reference's budget, the baseline `full` first.

    alone: the draft's own session; settings: the reference's; keeps: keep ratio by mode; wrong: another document's
    mapped cache, None where there is no other document
    """
    found = [
        Condition(FULL, session, replace(settings, mode="full")),
        Condition(DRAFT_ALONE, alone, replace(settings, mode="full")),
        Condition(SELECT, session, replace(settings, mode="select", keep=keeps["select"])),
        budgeted(session, settings, DRAFT_KV, RECOMPUTE),
        Condition(HYBRID, session, replace(settings, mode="hybrid", keep=keeps["hybrid"])),
        Condition(MAPPED, session, settings, mapped_only),
        Condition(REST_DROPPED, session, settings, rest_dropped),
        budgeted(session, settings, "random tokens recomputed", RECOMPUTE, random_recomputed),
    ]
    calibration = pair_calibration(session.pair)
    for kv_map in calibration.maps.values() if calibration is not None else ():
        if kv_map.exact_layers:
            drafted = "with draft" if kv_map.draft_layers else "without draft"
            name = f"exact {kv_map.exact_layers} layers, {drafted}"
            found.append(Condition(name, session, settings, partial(with_map, kv_map)))
    # The same budget as the reference, so that only what is accepted differs.
    found.append(Condition(ZEROS_ACCEPTED, session, settings, partial(accepted_replaced, None)))
    if wrong is not None:
        found.append(Condition(WRONG_ACCEPTED, session, settings, partial(accepted_replaced, wrong)))
        found.append(Condition(WRONG, session, settings, partial(wrong_document, wrong)))
    found.append(Condition("zero KV", session, settings, zero_kv))
    return found


def other_budgets(session: Session, settings: Settings) -> list[Condition]:
    """Draft KV with every budget but the reference's, spent by risk and at random."""
    found = []
    for budget in BUDGETS:
        if budget != RECOMPUTE:
            found.append(budgeted(session, settings, f"draft-kv, recompute {budget:g}", budget))
        if budget not in (0, RECOMPUTE):
            name = f"random tokens, recompute {budget:g}"
            found.append(budgeted(session, settings, name, budget, random_recomputed))
    return found


def budgeted(
    session: Session, settings: Settings, name: str, budget: float, strategy: Prefill | None = None
) -> Condition:
    """Draft KV that may recompute a share of the prompt: the riskiest chunks, or those that the strategy takes."""
    chosen_by = "random" if strategy else "risk"
    return Condition(name, session, replace(settings, recompute=budget), strategy, budget, chosen_by)
