"""Where draft KV breaks: true errors by layer and depth, what the checkpoints foretell, what recompute mends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.evaluation.datasets import Item
from specprefill_cli.evaluation.statistics import auroc, spearman
from specprefill_cli.models.cache import PrefillState
from specprefill_cli.models.keys import state_of
from specprefill_cli.prefill.checkpoints import (
    SlotKv,
    checkpoint_errors,
    checkpoint_slots,
    chunk_risks,
    copy_slots,
)
from specprefill_cli.prefill.draft_kv import inspect, repair
from specprefill_cli.prefill.modes import MODES
from specprefill_cli.prefill.modes.draft_kv import find_map, score_and_map, tokens_of
from specprefill_cli.prefill.scorers.base import ScoringRequest
from specprefill_cli.prefill.selection import rank
from specprefill_cli.session import Session
from specprefill_cli.settings import Settings
from specprefill_cli.timing import PhaseClock

BUDGETS = (0.05, 0.15, 0.3, 0.5)
DEPTHS = 10


@dataclass(frozen=True)
class ItemStudy:
    """One question. All tensors on the CPU.

    true_errors: [layers, DEPTHS] error of mapped KV by depth in the document
    foretold, happened: [layers, C] error at the checkpoints as the target saw it, and against its exact KV
    key_cosine, value_error: [layers, C] other things that a checkpoint can see
    risk: summed risk before any recompute; kl, same: per variant, KL(full || variant) of the first token and whether
        the likeliest token stayed
    """

    true_errors: Tensor
    foretold: Tensor
    happened: Tensor
    key_cosine: Tensor
    value_error: Tensor
    risk: float
    kl: dict[str, float]
    same: dict[str, bool]


def study(session: Session, items: Sequence[Item], settings: Settings, step: Callable[[int], None]) -> list[ItemStudy]:
    """Study every question; the document of the one before serves as the wrong document."""
    settings = session.with_scorer(replace(settings, mode="draft-kv"))
    found = []
    wrong: PrefillState | None = None
    for number, item in enumerate(items):
        step(number)
        request = session.prepare(item.collection, item.question, settings, PhaseClock())
        one, mapped = study_item(request, settings, wrong)
        wrong = mapped
        found.append(one)
    return found


@torch.inference_mode()
def study_item(
    request: ScoringRequest, settings: Settings, wrong: PrefillState | None
) -> tuple[ItemStudy, PrefillState]:
    """The figures of one question, and its mapped cache for use as a wrong document."""
    prompt, size = request.prompt, request.chunk_size
    full = MODES["full"].prefill(request, settings)
    scores, mapped = score_and_map(request, settings, find_map(request, settings))
    everything = torch.arange(prompt.length)
    original = copy_slots(mapped, everything)
    native = copy_slots(full.state, everything)
    errors = checkpoint_errors(original, native)[:, slice(*prompt.document)]
    checkpoints = checkpoint_slots(prompt.document, scores.importance)
    before = at(original, checkpoints)
    seen = inspect(request, mapped, scores.importance)
    after = copy_slots(mapped, checkpoints)
    risks = chunk_risks(seen.mass, seen.errors, size)
    variants = {
        "mapped only": repair(request, fresh(original), torch.arange(0)),
        "native": repair(request, fresh(native), torch.arange(0)),
        "zeros": repair(request, fresh(zeroed(original)), torch.arange(0)),
    }
    if wrong is not None:
        variants["wrong document"] = repair(request, fresh(spliced(original, wrong, prompt.document)), torch.arange(0))
    order = rank(risks)
    shuffled = torch.randperm(len(risks), generator=torch.Generator().manual_seed(request.seed))
    always = seen.computed[seen.computed < prompt.document[1]]
    for budget in BUDGETS:
        count = int(budget * prompt.length / size)
        for name, chunks in (("", order[:count]), (" at random", shuffled[:count])):
            chosen = torch.zeros(len(risks), dtype=torch.bool)
            chosen[chunks] = True
            slots = torch.unique(torch.cat([always, tokens_of(chosen, size, prompt.document)]))
            variants[f"recompute {budget:g}{name}"] = repair(request, fresh(original), slots)
    places = checkpoints - prompt.document[0]
    cosine, value = other_measures(before, after)
    log_full = full.logits.log_softmax(-1)
    return ItemStudy(
        true_errors=by_depth(errors),
        foretold=checkpoint_errors(before, after),
        happened=errors[:, places],
        key_cosine=cosine,
        value_error=value,
        risk=float(risks.sum()),
        kl={
            name: float(F.kl_div(logits.log_softmax(-1), log_full, log_target=True, reduction="sum"))
            for name, logits in variants.items()
        },
        same={name: bool(logits.argmax() == full.logits.argmax()) for name, logits in variants.items()},
    ), fresh(original)


def at(held: SlotKv, slots: Tensor) -> SlotKv:
    """The part of a copy that lies in slots [C] of it."""
    return SlotKv(slots, tuple((keys[:, slots], values[:, slots]) for keys, values in held.layers))


def fresh(held: SlotKv) -> PrefillState:
    """A cache of its own with what was copied."""
    return state_of([(keys.clone(), values.clone()) for keys, values in held.layers], held.slots)


def zeroed(held: SlotKv) -> SlotKv:
    return SlotKv(held.slots, tuple((torch.zeros_like(keys), torch.zeros_like(values)) for keys, values in held.layers))


def spliced(held: SlotKv, wrong: PrefillState, document: tuple[int, int]) -> SlotKv:
    """The copy with another document's keys and values in the document's slots, as far as they reach."""
    end = min(document[1], wrong.length)
    layers = []
    for (keys, values), other in zip(held.layers, wrong.cache.layers, strict=True):
        keys, values = keys.clone(), values.clone()
        keys[:, document[0] : end] = other.keys[0, :, document[0] : end]
        values[:, document[0] : end] = other.values[0, :, document[0] : end]
        layers.append((keys, values))
    return SlotKv(held.slots, tuple(layers))


def by_depth(errors: Tensor) -> Tensor:
    """Mean error [layers, DEPTHS] by depth in the document: errors [layers, n]."""
    return torch.stack([part.mean(1) for part in errors.tensor_split(DEPTHS, dim=1)], dim=1)


def other_measures(before: SlotKv, after: SlotKv) -> tuple[Tensor, Tensor]:
    """1 - cosine of keys, and relative squared error of values, at the checkpoints: [layers, C] each."""
    cosine, value = [], []
    for (old_keys, old_values), (new_keys, new_values) in zip(before.layers, after.layers, strict=True):
        cosine.append((1 - F.cosine_similarity(old_keys.float(), new_keys.float(), dim=-1)).mean(0).cpu())
        wrong = (old_values.float() - new_values.float()).square().sum((0, 2))
        value.append((wrong / new_values.float().square().sum((0, 2)).clamp(min=1e-12)).cpu())
    return torch.stack(cosine), torch.stack(value)


def summary(found: Sequence[ItemStudy]) -> dict:
    """What the study says, as plain numbers: see the keys."""
    layers = len(found[0].foretold)
    measures = {"error": "foretold", "key_cosine": "key_cosine", "value_error": "value_error"}
    foretelling = {
        name: [
            spearman(
                torch.cat([getattr(one, field)[layer] for one in found]),
                torch.cat([one.happened[layer] for one in found]),
            )
            for layer in range(layers)
        ]
        for name, field in measures.items()
    }
    changed = torch.tensor([not one.same["mapped only"] for one in found])
    names = sorted({name for one in found for name in one.kl})
    return {
        "questions": len(found),
        "spearman_checkpoint_to_true_error_by_layer": foretelling,
        "auroc_risk_to_changed_first_token": auroc(torch.tensor([one.risk for one in found]), changed),
        "spearman_risk_to_kl": spearman(
            torch.tensor([one.risk for one in found]), torch.tensor([one.kl["mapped only"] for one in found])
        ),
        "true_error_by_layer_and_depth": torch.stack([one.true_errors for one in found]).mean(0).tolist(),
        "variants": {
            name: {
                "kl_median": float(torch.tensor([one.kl[name] for one in found if name in one.kl]).median()),
                "kl_mean": float(torch.tensor([one.kl[name] for one in found if name in one.kl]).mean()),
                "same_first_token": float(
                    torch.tensor([one.same[name] for one in found if name in one.same]).float().mean()
                ),
            }
            for name in names
        },
    }
