"""How far an answer drifts from that of full prefill: KL at each of its tokens, forced on another cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specprefill_cli.models.running.adapter import run
from specprefill_cli.models.running.cache import KvCacheState, rollback


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A greedy answer: tokens [T] without the stop token, and the log-probabilities [T + 1, V] before and after each."""

    tokens: Tensor
    log_probabilities: Tensor

    @property
    def margin(self) -> float:
        """The difference of the two largest log-probabilities of the first token."""
        first, second = self.log_probabilities[0].topk(2).values.tolist()
        return first - second


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A cache against full prefill. kl: KL(full || this) in nats before each token; same: greedy choices before one differs.

    margin: as in `Answer`; likeliest: log-probability of the likeliest first token
    """

    kl: Sequence[float]
    same: int
    margin: float
    likeliest: float

    @property
    def changed(self) -> bool:
        """Whether a greedy choice differs."""
        return self.same < len(self.kl)


def greedy_answer(
    model: PreTrainedModel, state: KvCacheState, logits: Tensor, position: int, stop_tokens: frozenset[int], most: int
) -> Answer:
    """Decode after a prompt, then roll the state back.

    logits: [V] of its last token; position: of the first token to decode; most: greatest number of tokens
    """
    length, rows, tokens = state.length, [logits.cpu()], list[int]()
    while (token := int(rows[-1].argmax())) not in stop_tokens and len(tokens) < most:
        tokens.append(token)
        rows.append(run(model, torch.tensor([token]), torch.tensor([position + len(tokens) - 1]), state).cpu())
    rollback(state, length)
    return Answer(tokens=torch.tensor(tokens, dtype=torch.long), log_probabilities=torch.stack(rows).log_softmax(-1))


def run_forced(model: PreTrainedModel, state: KvCacheState, suffix: Tensor, position: int, answer: Answer) -> Tensor:
    """Run suffix [S] and answer on a cache; leave it at the suffix's end. Returns the logits [T + 1, V] as in `Answer`.

    position: of the suffix's first token
    """
    tokens = torch.cat([suffix, answer.tokens])
    logits = run(model, tokens, position + torch.arange(len(tokens)), state, rows=len(answer.tokens) + 1)
    rollback(state, state.length - len(answer.tokens))
    return logits.cpu()


def drift(answer: Answer, logits: Tensor) -> Drift:
    """Compare logits [T + 1, V], as `run_forced` returns them, with the answer of full prefill."""
    expected, other = answer.log_probabilities, logits.log_softmax(-1)
    first, second = other[0].topk(2).values.tolist()
    equal = expected.argmax(-1) == other.argmax(-1)
    return Drift(
        kl=(expected.exp() * (expected - other)).sum(-1).clamp(min=0).tolist(),
        same=int(equal.long().cumprod(0).sum()),
        margin=first - second,
        likeliest=first,
    )
