"""Measures draft KV on questions: true errors by layer, repairs, and drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from specprefill_cli.answering.session import Session
from specprefill_cli.answering.tasks import kl_divergence
from specprefill_cli.distributed.ranks import ALONE
from specprefill_cli.draft_kv.checkpoints import SlotKv, chunk_risks, relative_errors
from specprefill_cli.draft_kv.gate import RECOMPUTE, chunk_tokens, fates_by_risk
from specprefill_cli.draft_kv.mapped_cache import inspect, repair, score_and_map
from specprefill_cli.draft_kv.modes import DraftKvMode
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.session import check_context
from specprefill_cli.lab.study import controls
from specprefill_cli.lab.study.drift import Continuation, Drift, continuation, drift
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.cache import KvCacheState
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.record import BASELINE
from specprefill_cli.settings import Settings

BUDGETS = (0.0, 0.05, 0.15, 0.3, 0.5)
# The reference's budget, as a share of the prompt.
REFERENCE_BUDGET = 0.15
MAPPED_ONLY, REST_DROPPED = "mapped only", "same tokens, rest dropped"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A prefill against full prefill: KL(full || this) of the first token, whether the likeliest token is the same, and drift."""

    kl: float
    same: bool
    drift: Drift


@dataclass(frozen=True, kw_only=True)
class ItemStudy:
    """A question's figures; all tensors on the CPU.

    key_errors, value_errors: [layers] relative squared error of mapped KV; trials: by variant
    """

    key_errors: Tensor
    value_errors: Tensor
    trials: dict[str, Trial]


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Compares prefills of a prompt with full prefill: its logits [V] and its continuation."""

    request: PrefillRequest
    logits: Tensor
    reference: Continuation
    results: dict[str, Trial] = field(default_factory=dict)

    def add(self, name: str, logits: Tensor, state: KvCacheState) -> None:
        """Compare a prefill: logits [V] of its last token, and its cache."""
        self.results[name] = Trial(
            kl=kl_divergence(self.logits, logits),
            same=bool(logits.argmax() == self.logits.argmax()),
            drift=drift(self.request.target.model, state, logits, self.reference),
        )

    def repair(self, name: str, kv: SlotKv, fates: Tensor | None = None) -> None:
        """Compare a copy of a cache after recomputing chunks by their fates [chunks]; None: recompute nothing."""
        self.add(name, *repair_copy(self.request, kv, fates))


def questions_that_fit(
    session: Session, items: Sequence[Item], settings: Settings
) -> tuple[list[Item], list[tuple[Item, PromptTooLong]]]:
    """Split questions into those whose prompts fit the pair in the settings' mode, and the others with the reason.

    Raises PromptTooLong if no question fits.
    """
    fitting, left_out = [], []
    for item in items:
        try:
            check_context(session.request(item.collection, item.question, settings), settings)
            fitting.append(item)
        except PromptTooLong as error:
            left_out.append((item, error))
    if left_out and not fitting:
        raise left_out[0][1]
    return fitting, left_out


def study(session: Session, items: Sequence[Item], settings: Settings, step: Callable[[str], None]) -> list[ItemStudy]:
    """Study every question, with the document of another question as the wrong document."""
    studies = []
    for number, item in enumerate(items):
        step(f"studying {number} of {len(items)}")
        other_item = controls.other_document(items, number)
        wrong = controls.mapped_kv(session, other_item, settings) if other_item is not None else None
        studies.append(study_item(session.request(item.collection, item.question, settings), wrong))
    return studies


@torch.inference_mode()
def study_item(request: PrefillRequest, wrong: SlotKv | None) -> ItemStudy:
    """Study a question; wrong: the mapped KV of another document."""
    prompt, model = request.prompt, request.target.model
    full = MODES[BASELINE].prefill(request)
    reference = continuation(model, full.state, full.logits, request.target.stop_tokens)
    trials = Trials(request=request, logits=full.logits, reference=reference)
    kv_map = find_map(request, DraftKvMode.name)
    scores, state = score_and_map(request, kv_map)
    mapped, native = controls.copy_cache(state), controls.copy_cache(full.state)
    key_errors, value_errors = key_value_errors(mapped, native)[:, :, slice(*prompt.document)].mean(-1)
    inspection = inspect(request, state, scores.importance)
    risks = chunk_risks(inspection.mass, inspection.errors, request.chunk_size)
    checked = controls.copy_cache(state)
    other_contents: dict[str, controls.Contents] = {"zeros": controls.zero_kv}
    if wrong is not None:
        other_contents["wrong document"] = partial(controls.splice_document, wrong)
    for name, kv in ((MAPPED_ONLY, mapped), ("native", native)):
        trials.repair(name, kv)
    for name, contents in other_contents.items():
        trials.repair(name, contents(mapped, prompt.document))
    for budget in BUDGETS:
        fates = fates_at(request, risks, budget)
        trials.repair(f"recompute {budget:g}", checked, fates)
        if budget:
            trials.repair(f"recompute {budget:g} at random", checked, controls.shuffle_fates(request, fates))
    fates = fates_at(request, risks, REFERENCE_BUDGET)
    accepted = controls.accepted_slots(request, fates, inspection.computed)
    for name, contents in other_contents.items():
        replaced = controls.exchange_slots(checked, contents(checked, prompt.document), accepted)
        trials.repair(f"recompute {REFERENCE_BUDGET:g}, {name} accepted", replaced, fates)
    is_kept = torch.ones(prompt.length, dtype=torch.bool)
    is_kept[accepted] = False
    positions = is_kept.nonzero()[:, 0]
    trials.add(REST_DROPPED, *prefill(model, prompt.tokens[positions], positions, request.prefill_chunk))
    return ItemStudy(key_errors=key_errors, value_errors=value_errors, trials=trials.results)


def key_value_errors(mapped: SlotKv, native: SlotKv) -> Tensor:
    """Relative squared error of mapped keys and of mapped values: [2, layers, C], float32 on the CPU."""
    layers = zip(mapped.layers, native.layers, strict=True)
    pairs = (pair for ours, exact in layers for pair in zip(ours, exact, strict=True))
    return relative_errors(pairs, ALONE).unflatten(0, (-1, 2)).transpose(0, 1)


def fates_at(request: PrefillRequest, risks: Tensor, budget: float) -> Tensor:
    """Fates [chunks] that recompute the riskiest chunks up to a budget; risks: [chunks]."""
    return fates_by_risk(risks, prompt_tokens=request.prompt.length, chunk_size=request.chunk_size, share=budget)


def repair_copy(request: PrefillRequest, kv: SlotKv, fates: Tensor | None = None) -> tuple[Tensor, KvCacheState]:
    """Make a cache from a copy, recompute chunks by their fates [chunks], and return first-token logits [V] and the cache.

    fates: None: recompute nothing
    """
    state, slots = controls.cache_of(kv), torch.arange(0)
    if fates is not None:
        slots = chunk_tokens(fates == RECOMPUTE, request.chunk_size, request.prompt.document)
    return repair(request, state, slots), state
