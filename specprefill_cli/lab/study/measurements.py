"""Measuring draft KV on questions: true errors by layer and depth, what checkpoints see, and what recomputing repairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specprefill_cli.answering.comparison import kl_divergence
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.session import check_context, loaded_models, request_for, with_scorer
from specprefill_cli.lab.study.controls import (
    Contents,
    accepted_slots,
    at,
    everything_of,
    exchanged,
    fresh,
    mapped_kv,
    other_document,
    random_order,
    spliced,
    zeroed,
)
from specprefill_cli.lab.study.signals import observe, rows_of, signals_at
from specprefill_cli.models.raw_kv import StateCapture, layer_count
from specprefill_cli.prefill.checkpoints import SlotKv, checkpoint_slots, chunk_risks, key_value_errors
from specprefill_cli.prefill.mapped_cache import inspect, repair
from specprefill_cli.prefill.modes.draft_kv import DraftKvMode, find_map, score_and_map
from specprefill_cli.prefill.recompute_policy import RECOMPUTE, chunk_tokens, fates_by_risk
from specprefill_cli.prefill.registry import BASELINE, MODES
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.random import question_seed
from specprefill_cli.settings import Settings

BUDGETS = (0.0, 0.05, 0.15, 0.3, 0.5)
# The reference's budget, as a ratio of the prompt.
REFERENCE_BUDGET = 0.15
DEPTHS = 10
MAPPED_ONLY = "mapped only"


@dataclass(frozen=True, kw_only=True)
class ItemStudy:
    """One question's figures; all tensors on the CPU.

    key_errors, value_errors: [layers, DEPTHS] relative squared error of mapped KV by depth in the document
    signals: by name, [layers, C] at the checkpoint tokens; happened: [layers, C] the true error there
    risk: summed before any recompute; kl, same: per variant, KL(full || variant) of the first token, and whether the
        likeliest token is the same
    exact_layers: how many of the target's first layers were computed for all tokens
    """

    key_errors: Tensor
    value_errors: Tensor
    signals: dict[str, Tensor]
    happened: Tensor
    risk: float
    kl: dict[str, float]
    same: dict[str, bool]
    exact_layers: int = 0


def fitting(
    session: Session, items: Sequence[Item], settings: Settings
) -> tuple[list[Item], list[tuple[Item, PromptTooLong]]]:
    """The questions whose prompts fit the pair, and the others with the reason.

    Raises PromptTooLong if none fits.
    """
    settings = with_scorer(session, settings.varied(mode=DraftKvMode.name))
    good, left_out = [], []
    for item in items:
        try:
            check_context(request_for(session, item.collection, item.question, settings), settings)
            good.append(item)
        except PromptTooLong as error:
            left_out.append((item, error))
    if left_out and not good:
        raise left_out[0][1]
    return good, left_out


def study(session: Session, items: Sequence[Item], settings: Settings, step: Callable[[int], None]) -> list[ItemStudy]:
    """Study every question, with the document of another question as the wrong document."""
    settings = with_scorer(session, settings.varied(mode=DraftKvMode.name))
    studies = []
    for number, item in enumerate(items):
        step(number)
        wrong = mapped_kv(session, other, settings) if (other := other_document(items, number)) else None
        studies.append(study_item(request_for(session, item.collection, item.question, settings), wrong))
    return studies


@torch.inference_mode()
def study_item(request: PrefillRequest, wrong: SlotKv | None) -> ItemStudy:
    """The figures of one question; wrong: the mapped KV of another document."""
    prompt, model = request.prompt, loaded_models(request.pair)[1].model
    layers = range(layer_count(model))
    with StateCapture(model, layers) as capture:
        full = MODES[BASELINE].prefill(request)
    kv_map = find_map(request, DraftKvMode.name)
    scores, state = score_and_map(request, kv_map)
    mapped, native = everything_of(state), everything_of(full.state)
    keys, values = (errors[:, slice(*prompt.document)] for errors in key_value_errors(mapped, native))
    checkpoints = checkpoint_slots(prompt.document, scores.importance)
    seen = inspect(request, state, scores.importance)
    observed = observe(request, state, seen.computed, checkpoints)
    exact_states = [rows_of(capture.states(layer, prompt.length), checkpoints) for layer in layers]
    risks = chunk_risks(seen.mass, seen.errors, request.chunk_size)
    checked = everything_of(state)
    others: dict[str, Contents] = {"zeros": zeroed}
    if wrong is not None:
        others["wrong document"] = partial(spliced, wrong)
    fates = fates_at(request, risks, REFERENCE_BUDGET)
    accepted = accepted_slots(request, fates, seen.computed)
    unrepaired = {MAPPED_ONLY: mapped, "native": native}
    unrepaired |= {name: contents(mapped, prompt.document) for name, contents in others.items()}
    variants = {name: repair(request, fresh(kv), torch.arange(0)) for name, kv in unrepaired.items()}
    variants |= budgets(request, checked, risks)
    for name, contents in others.items():
        replaced = fresh(exchanged(checked, contents(checked, prompt.document), accepted))
        variants[f"recompute {REFERENCE_BUDGET:g}, {name} accepted"] = repair(
            request, replaced, recompute_slots(request, fates)
        )
    return ItemStudy(
        key_errors=by_depth(keys),
        value_errors=by_depth(values),
        signals=signals_at(request, at(mapped, checkpoints), at(checked, checkpoints), observed, exact_states),
        happened=((keys + values) / 2)[:, checkpoints - prompt.document[0]],
        risk=float(risks.sum()),
        kl={name: kl_divergence(full.logits, logits) for name, logits in variants.items()},
        same={name: bool(logits.argmax() == full.logits.argmax()) for name, logits in variants.items()},
        exact_layers=kv_map.exact_layers,
    )


def budgets(request: PrefillRequest, checked: SlotKv, risks: Tensor) -> dict[str, Tensor]:
    """First-token logits [V] by budget, spent on the riskiest and on random chunks; risks: [chunks].

    checked: the mapped KV with the checkpoint tokens computed
    """
    logits = {}
    for budget in BUDGETS:
        fates = fates_at(request, risks, budget)
        logits[f"recompute {budget:g}"] = repair(request, fresh(checked), recompute_slots(request, fates))
        if budget:
            drawn = fates[random_order(len(fates), question_seed(request))]
            logits[f"recompute {budget:g} at random"] = repair(request, fresh(checked), recompute_slots(request, drawn))
    return logits


def fates_at(request: PrefillRequest, risks: Tensor, budget: float) -> Tensor:
    """Fates [chunks] when the riskiest chunks up to a budget are recomputed; risks: [chunks]."""
    return fates_by_risk(risks, prompt_tokens=request.prompt.length, chunk_size=request.chunk_size, share=budget)


def recompute_slots(request: PrefillRequest, fates: Tensor) -> Tensor:
    """Slots, ascending, of the chunks to recompute; fates: [chunks]."""
    return chunk_tokens(fates == RECOMPUTE, request.chunk_size, request.prompt.document)


def by_depth(errors: Tensor) -> Tensor:
    """Mean error [layers, DEPTHS] by depth in the document, from errors [layers, n]."""
    return torch.stack([part.mean(1) for part in errors.tensor_split(DEPTHS, dim=1)], dim=1)
