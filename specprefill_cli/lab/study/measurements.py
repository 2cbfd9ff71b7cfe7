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
from specprefill_cli.lab.session import check_context
from specprefill_cli.lab.study import controls
from specprefill_cli.lab.study.signals import observe, rows_of, signals_at
from specprefill_cli.models.raw_kv import StateCapture, layer_count
from specprefill_cli.prefill.checkpoints import SlotKv, checkpoint_slots, chunk_risks, key_value_errors
from specprefill_cli.prefill.gate import signal_of
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
    """The questions whose prompts fit the pair in the settings' mode, and the others with the reason.

    Raises PromptTooLong if none fits.
    """
    good, left_out = [], []
    for item in items:
        try:
            check_context(session.request(item.collection, item.question, settings), settings)
            good.append(item)
        except PromptTooLong as error:
            left_out.append((item, error))
    if left_out and not good:
        raise left_out[0][1]
    return good, left_out


def study(session: Session, items: Sequence[Item], settings: Settings, step: Callable[[str], None]) -> list[ItemStudy]:
    """Study every question, with the document of another question as the wrong document."""
    studies = []
    for number, item in enumerate(items):
        step(f"studying {number} of {len(items)}")
        other = controls.other_document(items, number)
        wrong = controls.mapped_kv(session, other, settings) if other is not None else None
        studies.append(study_item(session.request(item.collection, item.question, settings), wrong))
    return studies


@torch.inference_mode()
def study_item(request: PrefillRequest, wrong: SlotKv | None) -> ItemStudy:
    """The figures of one question; wrong: the mapped KV of another document."""
    prompt, model = request.prompt, request.target.model
    layers = range(layer_count(model))
    with StateCapture(model, layers) as capture:
        full = MODES[BASELINE].prefill(request)
    kv_map = find_map(request, DraftKvMode.name)
    scores, state = score_and_map(request, kv_map)
    mapped, native = controls.everything_of(state), controls.everything_of(full.state)
    keys, values = (errors[:, slice(*prompt.document)] for errors in key_value_errors(mapped, native))
    checkpoints = checkpoint_slots(prompt.document, scores.importance)
    seen = inspect(request, state, scores.importance, signal_of(kv_map.gate))
    observed = observe(request, state, seen.computed, checkpoints)
    exact_states = [rows_of(capture.states(layer, prompt.length), checkpoints) for layer in layers]
    risks = chunk_risks(seen.mass, seen.errors, request.chunk_size)
    checked = controls.everything_of(state)
    others: dict[str, controls.Contents] = {"zeros": controls.zeroed}
    if wrong is not None:
        others["wrong document"] = partial(controls.spliced, wrong)
    fates = fates_at(request, risks, REFERENCE_BUDGET)
    accepted = controls.accepted_slots(request, fates, seen.computed)
    before, after = (controls.at(kv, checkpoints) for kv in (mapped, checked))
    variants = {name: repaired(request, kv) for name, kv in ((MAPPED_ONLY, mapped), ("native", native))}
    variants |= {name: repaired(request, contents(mapped, prompt.document)) for name, contents in others.items()}
    variants |= budgets(request, checked, risks)
    for name, contents in others.items():
        replaced = controls.exchanged(checked, contents(checked, prompt.document), accepted)
        variants[f"recompute {REFERENCE_BUDGET:g}, {name} accepted"] = repaired(request, replaced, fates)
    return ItemStudy(
        key_errors=by_depth(keys),
        value_errors=by_depth(values),
        signals=signals_at(request, before, after, observed, exact_states),
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
        logits[f"recompute {budget:g}"] = repaired(request, checked, fates)
        if budget:
            drawn = fates[controls.random_order(len(fates), question_seed(request))]
            logits[f"recompute {budget:g} at random"] = repaired(request, checked, drawn)
    return logits


def fates_at(request: PrefillRequest, risks: Tensor, budget: float) -> Tensor:
    """Fates [chunks] when the riskiest chunks up to a budget are recomputed; risks: [chunks]."""
    return fates_by_risk(risks, prompt_tokens=request.prompt.length, chunk_size=request.chunk_size, share=budget)


def repaired(request: PrefillRequest, kv: SlotKv, fates: Tensor | None = None) -> Tensor:
    """First-token logits [V] on a copy of a cache, after what the fates [chunks] recompute; None: nothing."""
    slots = torch.arange(0)
    if fates is not None:
        slots = chunk_tokens(fates == RECOMPUTE, request.chunk_size, request.prompt.document)
    return repair(request, controls.fresh(kv), slots)


def by_depth(errors: Tensor) -> Tensor:
    """Mean error [layers, DEPTHS] by depth in the document, from errors [layers, n]."""
    return torch.stack([part.mean(1) for part in errors.tensor_split(DEPTHS, dim=1)], dim=1)
