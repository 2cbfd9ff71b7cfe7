"""Where draft KV breaks: true errors by layer and depth, what the checkpoints predict, what recomputing repairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specprefill_cli.answering.comparison import divergence
from specprefill_cli.answering.session import Session
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.study.controls import (
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
from specprefill_cli.lab.study.signals import picked, signals_at, watch
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.raw_kv import StateCapture, layer_count
from specprefill_cli.prefill.auto_mode import check_fits
from specprefill_cli.prefill.checkpoints import SlotKv, checkpoint_slots, chunk_risks, key_value_errors
from specprefill_cli.prefill.fates import Fate
from specprefill_cli.prefill.mapped_cache import inspect, repair
from specprefill_cli.prefill.modes.draft_kv import find_map, score_and_map
from specprefill_cli.prefill.phases import PhaseClock
from specprefill_cli.prefill.recompute_policy import int_fate, riskiest, tokens_of
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.random import seed_of
from specprefill_cli.settings import Settings

BUDGETS = (0.0, 0.05, 0.15, 0.3, 0.5)
# Share of the prompt that the reference recomputes.
RECOMPUTE = 0.15
DEPTHS = 10
MAPPED_ONLY = "mapped only"


@dataclass(frozen=True)
class ItemStudy:
    """One question. All tensors on the CPU.

    key_errors, value_errors: [layers, DEPTHS] relative squared error of mapped KV by depth in the document
    signals: by name, [layers, C] what the checkpoints show (`signals.py`); happened: [layers, C] the true error there
    risk: summed risk before any recompute; kl, same: per variant, KL(full || variant) of the first token and whether
        the likeliest token stayed
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

    Raises PromptTooLong where none fits.
    """
    settings = session.with_scorer(replace(settings, mode="draft-kv"))
    good, left_out = [], []
    for item in items:
        try:
            check_fits(
                session.request(item.collection, item.question, settings), settings, with_draft=True
            )
            good.append(item)
        except PromptTooLong as error:
            left_out.append((item, error))
    if left_out and not good:
        raise left_out[0][1]
    return good, left_out


def study(session: Session, items: Sequence[Item], settings: Settings, step: Callable[[int], None]) -> list[ItemStudy]:
    """Study every question; the document of another question serves as the wrong document."""
    settings = session.with_scorer(replace(settings, mode="draft-kv"))
    found = []
    for number, item in enumerate(items):
        step(number)
        other = other_document(items, number)
        wrong = mapped_kv(session, other, settings) if other is not None else None
        request = session.request(item.collection, item.question, settings)
        found.append(study_item(request, settings, wrong))
    return found


@torch.inference_mode()
def study_item(request: PrefillRequest, settings: Settings, wrong: PrefillState | None) -> ItemStudy:
    """The figures of one question; wrong: the mapped cache of another document's prompt."""
    prompt, model = request.prompt, request.pair.target.model
    with StateCapture(model, range(layer_count(model))) as exact:
        full = MODES["full"].prefill(request, settings)
    kv_map = find_map(request, settings)
    scores, mapped = score_and_map(request, settings, kv_map)
    original, native = everything_of(mapped), everything_of(full.state)
    keys, values = (part[:, slice(*prompt.document)] for part in key_value_errors(original, native))
    checkpoints = checkpoint_slots(prompt.document, scores.importance)
    seen = inspect(request, mapped, scores.importance)
    watched = watch(request, mapped, seen.computed, checkpoints)
    exact_states = [picked(exact.states(layer, prompt.length), checkpoints) for layer in range(layer_count(model))]
    risks = chunk_risks(seen.mass, seen.errors, request.chunk_size)
    checked = everything_of(mapped)
    variants = first_tokens(request, original, native, wrong, checked, risks, seen.computed)
    return ItemStudy(
        key_errors=by_depth(keys),
        value_errors=by_depth(values),
        signals=signals_at(request, at(original, checkpoints), at(checked, checkpoints), watched, exact_states),
        happened=((keys + values) / 2)[:, checkpoints - prompt.document[0]],
        risk=float(risks.sum()),
        kl={name: divergence(full.logits, logits) for name, logits in variants.items()},
        same={name: bool(logits.argmax() == full.logits.argmax()) for name, logits in variants.items()},
        exact_layers=kv_map.exact_layers,
    )


def first_tokens(
    request: PrefillRequest,
    original: SlotKv,
    native: SlotKv,
    wrong: PrefillState | None,
    checked: SlotKv,
    risks: Tensor,
    computed: Tensor,
) -> dict[str, Tensor]:
    """Logits [V] of the first token by variant: controls, and each budget spent on the riskiest chunks and at random.

    original, native: the prompt's mapped and exact KV; checked: the mapped with what checkpoints computed; risks: [chunks]
    computed: [C] the prompt tokens that the checked cache holds exactly
    """
    prompt, nothing = request.prompt, torch.arange(0)
    found = {
        MAPPED_ONLY: repair(request, fresh(original), nothing),
        "native": repair(request, fresh(native), nothing),
        "zeros": repair(request, fresh(zeroed(original)), nothing),
    }
    if wrong is not None:
        found["wrong document"] = repair(request, fresh(spliced(original, wrong, prompt.document)), nothing)
    for budget in BUDGETS:
        fates = riskiest(risks, prompt.length, request.chunk_size, budget)
        drawn = fates[random_order(len(fates), seed_of(request))]
        # Without a budget both are the same: the checkpoints alone.
        for suffix, chosen in (("", fates), (" at random", drawn)) if budget else (("", fates),):
            wanted = tokens_of(chosen == int_fate(Fate.RECOMPUTE), request.chunk_size, prompt.document)
            found[f"recompute {budget:g}{suffix}"] = repair(request, fresh(checked), wanted)
    fates = riskiest(risks, prompt.length, request.chunk_size, RECOMPUTE)
    accepted = accepted_slots(request, fates, computed)
    wanted = tokens_of(fates == int_fate(Fate.RECOMPUTE), request.chunk_size, prompt.document)
    contents = {"zeros": zeroed(checked)}
    if wrong is not None:
        contents["wrong document"] = spliced(checked, wrong, prompt.document)
    for name, other in contents.items():
        found[f"recompute {RECOMPUTE:g}, {name} accepted"] = repair(
            request, fresh(exchanged(checked, other, accepted)), wanted
        )
    return found


def by_depth(errors: Tensor) -> Tensor:
    """Mean error [layers, DEPTHS] by depth in the document: errors [layers, n]."""
    return torch.stack([part.mean(1) for part in errors.tensor_split(DEPTHS, dim=1)], dim=1)
