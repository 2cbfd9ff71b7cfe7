"""The conditions of the study: which layers and spans may be mapped, what repairs them, and `select` at several costs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.answering.session import Session
from specprefill_cli.draft_kv.checkpoints import SlotKv, copy_slots, relative_errors
from specprefill_cli.draft_kv.gate import RECOMPUTE, chunk_tokens, fates_by_risk, remaining_risk
from specprefill_cli.draft_kv.mapped_cache import MappedPrompt, inspect, score_and_map
from specprefill_cli.draft_kv.modes import DraftKvMode
from specprefill_cli.draft_kv.projection import find_map
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.evidence import answer_kept
from specprefill_cli.lab.study import controls
from specprefill_cli.lab.study.journal import measure_items, read_journal
from specprefill_cli.lab.study.question import ANSWER_TOKENS, QuestionStudy, full_prefill
from specprefill_cli.lab.tables import Row
from specprefill_cli.prefill.fates import Plan
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.prefill.scorers.base import Scores
from specprefill_cli.prefill.selection import select_scored
from specprefill_cli.settings import Settings

# Share of the prompt that is recomputed; shares of the document's chunks, by attention; keep ratios of `select`.
BUDGET, SHARES, KEEPS = 0.15, (0.1, 0.3), (0.1, 0.15, 0.3, 0.5)
MAPPED, RECOMPUTED, PAPER = "mapped", "riskiest recomputed", "paper"


def study_items(
    session: Session,
    chooser: Session,
    items: Sequence[Item],
    settings: Settings,
    path: Path,
    step: Callable[[str], None],
    answer_tokens: int = ANSWER_TOKENS,
) -> list[Row]:
    """Study every question that has no row in the file yet; return the rows.

    chooser: chooses the text of `select`; settings: of draft KV; answer_tokens: greatest number of an answer
    """
    made_with: Row = {
        "draft": session.pair.loaded_draft.name,
        "target": session.pair.loaded_target.name,
        "answer_tokens": answer_tokens,
        **{name: getattr(settings, name) for name in ("scorer", "look_ahead", "draft_window", "chunk_size")},
    }
    if any(row.get(name, value) != value for row in read_journal(path) for name, value in made_with.items()):
        raise SpecprefillError(f"{path}: holds figures of another pair or other settings; give another --out")
    numbers = {item.identifier: number for number, item in enumerate(items)}

    def measure(item: Item) -> Row:
        other = controls.other_document(items, numbers[item.identifier])
        if other is None:
            raise SpecprefillError("study: all questions are about the same text; give questions about two or more")
        wrong = full_prefill(session, other, settings, answer_tokens=0).native
        return made_with | study_question(full_prefill(session, item, settings, answer_tokens), chooser, wrong)

    return measure_items(path, items, measure, step)


@torch.inference_mode()
def study_question(study: QuestionStudy, chooser: Session, wrong: SlotKv) -> Row:
    """A question's figures. chooser: as in `study_items`; wrong: the target's own KV of another document."""
    request, document = study.request, study.request.prompt.document
    slots = torch.arange(document[1])
    scores, state = study.timed("draft and map", lambda: score_and_map(request, find_map(request, DraftKvMode.name)))
    raw = copy_slots(state, slots)
    mapped = study.with_exact(raw)
    wrong = study.with_exact(controls.splice_document(wrong, study.native, document))
    add_layers(study, mapped, wrong)
    errors, mass = attention_errors(study, mapped)
    add_spans(study, mapped, mass)
    inspected = study.timed("checkpoints", lambda: inspect(request, state, scores))
    important = add_selections(study, chooser, scores)
    signals = add_repairs(study, copy_slots(state, slots), wrong, inspected, important)
    computed = inspected.computed
    checkpoints = computed[(computed >= len(study.exact)) & (computed < document[1])]
    checked = (controls.keep_slots(kv, checkpoints) for kv in (raw, copy_slots(state, slots)))
    signals["checkpoints' KV error"] = float(key_value_errors(*checked)[:, 1:].mean())
    keys, values = key_value_errors(mapped, study.native)[:, :, slice(*document)].mean(-1).tolist()
    row: Row = {"id": study.item.identifier, "tokens": request.prompt.length, "answer": study.text(study.answer)}
    row |= {"results": study.results, "seconds": study.seconds, "signals": signals, "kept": study.kept}
    return row | {"errors": {"keys": keys, "values": values, "attention output": errors}}


def add_layers(study: QuestionStudy, mapped: SlotKv, wrong: SlotKv) -> None:
    """Accept the mapped KV of some layers, and compare it with no KV, zeros, and another document's KV."""
    native, count = study.native, len(mapped.layers)
    study.add("native", native)
    study.add(MAPPED, mapped, study.seconds["draft and map"])
    study.add("document dropped", controls.keep_slots(native, study.exact), 0.0)
    study.add("zeros", study.with_exact(controls.zero_kv(native)))
    study.add("another document", wrong)
    for quarter in (1, 2, 3):
        edge = count * quarter // 4
        for name, kv in ((MAPPED, mapped), ("another document", wrong)):
            study.add(f"{name} below layer {edge}", controls.exchange_layers(native, kv, range(edge)))
            study.add(f"{name} from layer {edge}", controls.exchange_layers(native, kv, range(edge, count)))
    study.add("every second layer mapped", controls.exchange_layers(native, mapped, range(1, count, 2)))
    pairs = list(zip(mapped.layers, native.layers, strict=True))
    study.add("keys mapped", SlotKv(native.slots, tuple((ours[0], own[1]) for ours, own in pairs)))
    study.add("values mapped", SlotKv(native.slots, tuple((own[0], ours[1]) for ours, own in pairs)))


def attention_errors(study: QuestionStudy, mapped: SlotKv) -> tuple[list[float], Tensor]:
    """The relative error of the suffix's attention output by layer, and its attention [n] to each document token."""
    errors, masses, queries = [], [], study.queries
    for layer, pair in enumerate(zip(mapped.layers, study.native.layers, strict=True)):
        asked = queries.layer(layer).float()
        outputs = []
        for keys, values in pair:
            keys, values = (part.float().repeat_interleave(len(asked) // len(part), dim=0) for part in (keys, values))
            weights = (asked @ keys.transpose(1, 2) * queries.scaling[layer]).softmax(-1)
            outputs.append(weights @ values)
        errors.append(float(relative_errors([(outputs[0], outputs[1])]).mean()))
        masses.append(weights[..., slice(*study.request.prompt.document)].mean((0, 1)))
    return errors, torch.stack(masses).mean(0)


def add_spans(study: QuestionStudy, mapped: SlotKv, mass: Tensor) -> None:
    """Accept or exchange the most attended chunks. mass: [n] of the document's tokens."""
    size, document = study.request.chunk_size, study.request.prompt.document
    chunks = F.pad(mass, (0, -len(mass) % size)).view(-1, size).sum(1)
    for share in SHARES:
        is_top = torch.zeros(len(chunks), dtype=torch.bool)
        is_top[chunks.topk(max(1, round(share * len(chunks)))).indices] = True
        top, name = chunk_tokens(is_top, size, document), f"most attended {share:.0%}"
        study.add(f"{name} mapped", controls.exchange_slots(study.native, mapped, top))
        study.add(f"{name} native, rest mapped", controls.exchange_slots(mapped, study.native, top))
        kept = torch.unique(torch.cat([study.exact, top]))
        study.add(f"{name} native, rest dropped", controls.keep_slots(study.native, kept))


def add_repairs(
    study: QuestionStudy, checked: SlotKv, wrong: SlotKv, inspected: MappedPrompt, important: Tensor
) -> dict[str, float]:
    """Recompute part of the mapped cache, whose checkpoint tokens are computed; return signals of a changed answer.

    important: slots that `select` would keep
    """
    request = study.request
    (start, end), size = request.prompt.document, request.chunk_size
    before = study.seconds["draft and map"] + study.seconds["checkpoints"]
    risks = inspected.risks
    fates = fates_by_risk(risks, prompt_tokens=request.prompt.length, chunk_size=size, share=BUDGET)
    slots = chunk_tokens(fates == RECOMPUTE, size, request.prompt.document)
    accepted = controls.accepted_slots(request, fates, inspected.computed)
    study.add_repaired(RECOMPUTED, checked, slots, before)
    exchanged = controls.exchange_slots(checked, wrong, accepted)
    study.add_repaired(f"{RECOMPUTED}, rest another document's", exchanged, slots, before)
    kept = torch.arange(end)[~torch.isin(torch.arange(end), accepted)]
    study.add_sparse(f"{RECOMPUTED}, rest dropped", kept, before)
    important = important[len(study.exact) :]
    study.add_repaired("chosen recomputed", checked, important, before + study.seconds["chooser"])
    borders = (torch.arange(start, end, size)[:, None] + torch.arange(round(BUDGET * size))).flatten()
    borders = borders[(borders < end) & (borders >= len(study.exact))]
    study.add_repaired("chunks' first tokens recomputed", checked, borders, before)
    return {
        "remaining risk": remaining_risk(risks, fates),
        "checkpoints' attention-output error": float(inspected.errors[1:].mean()),
        "attention to accepted tokens": float(inspected.mass.mean(0)[accepted - start].sum()),
        "small margin of the first token": -study.results[RECOMPUTED]["margin"],
        "small probability of the first token": -study.results[RECOMPUTED]["likeliest"],
    }


def add_selections(study: QuestionStudy, chooser: Session, draft_scores: Scores) -> Tensor:
    """`select` at several keep ratios, with the text chosen by another session, and once by the pair's own draft.

    Returns the positions that the other session chooses for the budget.
    """
    item, own = study.item, study.request
    request = chooser.request(item.collection, item.question, chooser.settings)
    paper = replace(own, scorer=PAPER)
    scores = study.timed("chooser", lambda: SCORERS[request.scorer].score(request))
    paper_scores = study.timed(PAPER, lambda: SCORERS[PAPER].score(paper.without_caches()))
    study.timed("draft", lambda: SCORERS[own.scorer].score(own.without_caches()))
    for keep in KEEPS:
        study.add_sparse(f"select {keep:g}", chosen(study, request, scores, keep), study.seconds["chooser"])
    drafted = chosen(study, own, draft_scores, BUDGET)
    study.add_sparse(f"select {BUDGET:g} by {own.scorer}", drafted, study.seconds["draft"])
    study.add_sparse(f"select {BUDGET:g} by {PAPER}", chosen(study, paper, paper_scores, BUDGET), study.seconds[PAPER])
    for asked, importances in ((request, scores), (own, draft_scores), (paper, paper_scores)):
        study.kept[asked.scorer] = {
            f"{keep:g}": answer_kept(item, plan_of(asked, importances, keep), asked.prompt.offsets) for keep in KEEPS
        }
    return chosen(study, request, scores, BUDGET)


def plan_of(request: PrefillRequest, scores: Scores, keep: float) -> Plan:
    """The plan of `select` at a keep ratio."""
    return select_scored(replace(request, keep=keep), scores, capped=False).plan


def chosen(study: QuestionStudy, request: PrefillRequest, scores: Scores, keep: float) -> Tensor:
    """Slots, ascending, that `select` keeps of prefix and document, and those that are always exact."""
    positions = plan_of(request, scores, keep).kept_positions()
    return torch.unique(torch.cat([study.exact, positions[positions < request.prompt.document[1]]]))


def key_value_errors(mapped: SlotKv, native: SlotKv) -> Tensor:
    """Relative squared error of mapped keys and of mapped values: [2, layers, C], float32 on the CPU."""
    layers = zip(mapped.layers, native.layers, strict=True)
    pairs = (pair for ours, exact in layers for pair in zip(ours, exact, strict=True))
    return relative_errors(pairs).unflatten(0, (-1, 2)).transpose(0, 1)
