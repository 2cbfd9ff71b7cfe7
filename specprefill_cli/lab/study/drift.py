"""How far an answer drifts from that of full prefill: KL at every token of a forced continuation, and where they diverge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.lab.evaluation.statistics import mean_interval
from specprefill_cli.lab.tables import Row
from specprefill_cli.models.running.adapter import run
from specprefill_cli.models.running.cache import KvCacheState, rollback

TOKENS = 64
# Answers are compared after these numbers of tokens.
LENGTHS = (1, 4, 16, 64)


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The target's greedy continuation after full prefill: tokens [T], without stop tokens.

    log_probabilities: [T, V] before each token; choices: [T] the likeliest tokens, including stop tokens
    answer_tokens: number of tokens of the answer, including its stop token, at most T
    """

    tokens: Tensor
    log_probabilities: Tensor
    choices: Tensor
    answer_tokens: int
    stop_tokens: Tensor


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A prefill against full prefill, over the same forced tokens.

    kl: KL(full || this) in nats at each token; parted: tokens before the first differing greedy choice, None if none differs
    answer_changed: whether the greedy answer differs
    """

    kl: Sequence[float]
    parted: int | None
    answer_changed: bool


def continuation(
    model: PreTrainedModel, state: KvCacheState, logits: Tensor, stop_tokens: frozenset[int], count: int = TOKENS
) -> Continuation:
    """Continue greedily after the prompt, without stopping, then roll the state back. logits: [V] of its last token."""
    stop, length, position = torch.tensor(sorted(stop_tokens)), state.length, int(state.positions[-1]) + 1
    logits_rows, tokens = [logits.cpu()], []
    for number in range(count):
        tokens.append(int(without(logits_rows[-1], stop).argmax()))
        if number < count - 1:
            last = torch.tensor(tokens[-1:])
            logits_rows.append(run(model, last, torch.tensor([position + number]), state).cpu())
    rollback(state, length)
    stacked = torch.stack(logits_rows)
    choices = stacked.argmax(-1)
    ends = torch.isin(choices, stop).nonzero()[:, 0]
    return Continuation(
        tokens=torch.tensor(tokens),
        log_probabilities=stacked.log_softmax(-1),
        choices=choices,
        answer_tokens=int(ends[0]) + 1 if len(ends) else count,
        stop_tokens=stop,
    )


def drift(model: PreTrainedModel, state: KvCacheState, logits: Tensor, reference: Continuation) -> Drift:
    """Force the reference's tokens on another prefill of the same prompt, then roll its state back."""
    length, forced = state.length, reference.tokens[:-1]
    positions = int(state.positions[-1]) + 1 + torch.arange(len(forced))
    logits_rows = torch.cat([logits[None].cpu(), run(model, forced, positions, state, rows=len(forced)).cpu()])
    rollback(state, length)
    differing = (without(logits_rows, reference.stop_tokens).argmax(-1) != reference.tokens).nonzero()[:, 0]
    answer = slice(reference.answer_tokens)
    return Drift(
        kl=kl_rows(reference.log_probabilities, logits_rows.log_softmax(-1)).tolist(),
        parted=int(differing[0]) if len(differing) else None,
        answer_changed=bool((logits_rows.argmax(-1)[answer] != reference.choices[answer]).any()),
    )


def without(logits: Tensor, tokens: Tensor) -> Tensor:
    """Exclude some tokens from logits [..., V]."""
    return logits.index_fill(-1, tokens, float("-inf"))


def kl_rows(reference: Tensor, other: Tensor) -> Tensor:
    """KL(reference || other) [T] in nats of log-probabilities [T, V]."""
    return (reference.exp() * (reference - other)).sum(-1).clamp(min=0)


def drift_row(name: str, drifts: Sequence[Drift]) -> Row:
    """Figures of a variant over all questions: KL by token, mean KL with its 95 % interval, and shares of diverged answers."""
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
