"""How far an answer drifts from that of full prefill: KL at every token of a forced continuation, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.lab.evaluation.statistics import mean_interval
from specprefill_cli.lab.tables import Row
from specprefill_cli.models.adapter import run
from specprefill_cli.models.cache import PrefillState, rollback

TOKENS = 64
# After how many tokens the answers are compared.
LENGTHS = (1, 4, 16, 64)


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What the target goes on with after full prefill: greedy tokens [T], stop tokens left out, and what led to them.

    log_probabilities: [T, V] before each token; choices: [T] the likeliest tokens, stop tokens included
    answer_tokens: how many tokens decide the answer, its stop token included, at most T
    """

    tokens: Tensor
    log_probabilities: Tensor
    choices: Tensor
    answer_tokens: int
    stop_tokens: Tensor


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A prefill against full prefill, over the same forced tokens.

    kl: KL(full || this) in nats at each token; parted: tokens before the first other greedy choice, None without one
    answer_changed: whether its greedy answer is another one
    """

    kl: Sequence[float]
    parted: int | None
    answer_changed: bool


def continuation(
    model: PreTrainedModel, state: PrefillState, logits: Tensor, stop_tokens: frozenset[int], count: int = TOKENS
) -> Continuation:
    """Continue greedily after the prompt, without stopping; the state is left as it was. logits: [V] of its last token."""
    stop, length, position = torch.tensor(sorted(stop_tokens)), state.length, int(state.positions[-1]) + 1
    rows, tokens = [logits.cpu()], []
    for number in range(count):
        tokens.append(int(without(rows[-1], stop).argmax()))
        if number < count - 1:
            last = torch.tensor(tokens[-1:])
            rows.append(run(model, last, torch.tensor([position + number]), state).cpu())
    rollback(state, length)
    stacked = torch.stack(rows)
    choices = stacked.argmax(-1)
    ends = torch.isin(choices, stop).nonzero()[:, 0]
    return Continuation(
        tokens=torch.tensor(tokens),
        log_probabilities=stacked.log_softmax(-1),
        choices=choices,
        answer_tokens=int(ends[0]) + 1 if len(ends) else count,
        stop_tokens=stop,
    )


def drift(model: PreTrainedModel, state: PrefillState, logits: Tensor, reference: Continuation) -> Drift:
    """Force the reference's tokens on another prefill of the same prompt; its state is left as it was."""
    length, forced = state.length, reference.tokens[:-1]
    positions = int(state.positions[-1]) + 1 + torch.arange(len(forced))
    rows = torch.cat([logits[None].cpu(), run(model, forced, positions, state, rows=len(forced)).cpu()])
    rollback(state, length)
    other = (without(rows, reference.stop_tokens).argmax(-1) != reference.tokens).nonzero()[:, 0]
    answer = slice(reference.answer_tokens)
    return Drift(
        kl=kl_rows(reference.log_probabilities, rows.log_softmax(-1)).tolist(),
        parted=int(other[0]) if len(other) else None,
        answer_changed=bool((rows.argmax(-1)[answer] != reference.choices[answer]).any()),
    )


def without(logits: Tensor, tokens: Tensor) -> Tensor:
    """Logits [..., V] with some tokens excluded."""
    return logits.index_fill(-1, tokens, float("-inf"))


def kl_rows(reference: Tensor, other: Tensor) -> Tensor:
    """KL(reference || other) [T] in nats of log-probabilities [T, V]."""
    return (reference.exp() * (reference - other)).sum(-1).clamp(min=0)


def drift_row(name: str, drifts: Sequence[Drift]) -> Row:
    """Figures of one variant over all questions: mean KL by token with its 95 % interval over all, and parted shares."""
    mean, low, high = mean_interval([fmean(drift.kl) for drift in drifts])
    return {
        "name": name,
        "n": len(drifts),
        "kl_by_token": [fmean(kl) for kl in zip(*(drift.kl for drift in drifts), strict=True)],
        "kl_mean": mean,
        "kl_low": low,
        "kl_high": high,
        "parted_after": {
            str(length): fmean(drift.parted is not None and drift.parted < length for drift in drifts)
            for length in LENGTHS
        },
        "answer_changed": fmean(drift.answer_changed for drift in drifts),
    }
