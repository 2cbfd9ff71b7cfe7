"""Compares caches of a question's prompt with full prefill: first-token KL, changed answers, F1 and time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from specprefill_cli.answering.session import Session
from specprefill_cli.draft_kv.checkpoints import SlotKv, copy_slots
from specprefill_cli.draft_kv.mapped_cache import ALWAYS_EXACT, recompute_parts
from specprefill_cli.lab.evaluation.datasets import Item
from specprefill_cli.lab.evaluation.metrics import f1
from specprefill_cli.lab.study import controls
from specprefill_cli.lab.study.drift import Answer, drift, greedy_answer, run_forced
from specprefill_cli.lab.tables import Row
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.cache import layer_count, new_state
from specprefill_cli.models.running.passes import QueryCapture
from specprefill_cli.prefill.request import PrefillRequest
from specprefill_cli.settings import Settings

# Tokens of an answer that are compared, if nothing else is asked for.
ANSWER_TOKENS = 12
FULL = "full"
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class QuestionStudy:
    """Compares caches of a prompt with full prefill.

    native: the target's own KV of prefix and document; exact: slots that are always the target's own
    answer_tokens: greatest number of tokens of an answer
    queries: of the suffix, in full prefill; seconds: of the steps, without other programs' share of the processor
    results: by condition; kept: by scorer and keep ratio, whether the kept text holds the answer, None where that is unknown
    """

    item: Item
    request: PrefillRequest
    native: SlotKv
    exact: Tensor
    answer: Answer
    answer_tokens: int
    queries: QueryCapture
    seconds: dict[str, float]
    results: dict[str, Row] = field(default_factory=dict)
    kept: dict[str, dict[str, bool | None]] = field(default_factory=dict)

    def timed(self, step: str, work: Callable[[], Value]) -> Value:
        """Do the work, and keep its time."""
        return timed(self.seconds, step, self.request.clock.wait, work)

    def add(self, name: str, kv: SlotKv, seconds: float | None = None) -> None:
        """Compare a cache of prefix and document, or of some of their tokens.

        seconds: until this cache is there, where it can be made; then the answer's F1 is measured, too
        """
        request, state, prompt = self.request, controls.cache_of(kv), self.request.prompt
        suffix, place, model = prompt.tokens[prompt.document[1] :], prompt.document[1], request.target.model
        step = f"suffix of {name}"
        logits = self.timed(step, lambda: run_forced(model, state, suffix, place, self.answer))
        drifted = drift(self.answer, logits)
        row: Row = {
            "kl": drifted.kl[0],
            "kl_answer": sum(drifted.kl) / len(drifted.kl),
            "kl_tokens": drifted.kl,
            "changed": drifted.changed,
            "same": drifted.same,
            "margin": drifted.margin,
            "likeliest": drifted.likeliest,
            "tokens": len(kv.slots),
        }
        if seconds is not None:
            answer = self.answer
            if drifted.changed:
                stop_tokens = request.target.stop_tokens
                answer = greedy_answer(model, state, logits[0], prompt.length, stop_tokens, self.answer_tokens)
            row |= {"seconds": seconds + self.seconds[step], "f1": 100 * f1(self.text(answer), self.item.answers)}
        self.results[name] = row

    def text(self, answer: Answer) -> str:
        """An answer in words."""
        return str(self.request.target.tokenizer.decode(answer.tokens.tolist(), skip_special_tokens=True))

    def with_exact(self, kv: SlotKv) -> SlotKv:
        """A cache with the target's own KV in the slots that are always exact."""
        return controls.exchange_slots(kv, self.native, self.exact)

    def add_sparse(self, name: str, positions: Tensor, seconds: float) -> None:
        """Compare a prefill of some of the prefix's and document's tokens, positions [N]; seconds: before it."""
        request, state = self.request, new_state(len(positions))
        step = f"prefill of {name}"
        tokens, last = request.prompt.tokens[positions], layer_count(request.target.model) - 1
        self.timed(step, lambda: prefill(request.target.model, tokens, positions, len(tokens), state, last_layer=last))
        self.add(name, controls.copy_cache(state), seconds + self.seconds[step])

    def add_repaired(self, name: str, kv: SlotKv, slots: Tensor, seconds: float) -> None:
        """Compare a cache after recomputing slots [N]; seconds: before that."""
        state = controls.cache_of(kv)
        self.timed(name, lambda: recompute_parts(self.request, state, slots))
        self.add(name, controls.copy_cache(state), seconds + self.seconds[name])


def timed(seconds: dict[str, float], step: str, wait: Callable[[], None], work: Callable[[], Value]) -> Value:
    """Do the work on a device to wait for, and add this thread's time to `seconds`."""
    started = time.thread_time()
    result = work()
    wait()
    seconds[step] = seconds.get(step, 0.0) + time.thread_time() - started
    return result


@torch.inference_mode()
def full_prefill(session: Session, item: Item, settings: Settings, answer_tokens: int = ANSWER_TOKENS) -> QuestionStudy:
    """Prefill a question in full and decode up to `answer_tokens`: the reference of all other caches."""
    request = session.request(item.collection, item.question, settings)
    prompt, model, seconds = request.prompt, request.target.model, dict[str, float]()
    (start, end), positions = prompt.document, torch.arange(prompt.length)
    capture = QueryCapture(positions[end:])
    read = partial(prefill, model, prompt.tokens, positions, request.prefill_chunk, capture=capture)
    logits, state = timed(seconds, FULL, request.clock.wait, read)
    answer = greedy_answer(model, state, logits, prompt.length, request.target.stop_tokens, answer_tokens)
    study = QuestionStudy(
        item=item,
        request=request,
        native=copy_slots(state, positions[:end]),
        exact=positions[: max(start, ALWAYS_EXACT)],
        answer=answer,
        answer_tokens=answer_tokens,
        queries=capture,
        seconds=seconds,
    )
    study.results[FULL] = {"kl": 0.0, "kl_answer": 0.0, "changed": False, "margin": answer.margin, "tokens": end}
    study.results[FULL] |= {"seconds": seconds[FULL], "f1": 100 * f1(study.text(answer), item.answers)}
    return study
