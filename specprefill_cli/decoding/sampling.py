"""Choosing the next token: greedy, or from the distribution after temperature, top-k and top-p."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def distribution(logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Probabilities [..., V] after temperature, then top-k, then top-p (nucleus sampling, arXiv 1904.09751).

    temperature: above 0; `top_k` 0 and `top_p` 1 leave all tokens in
    """
    scaled = logits.float() / temperature
    if 0 < top_k < scaled.shape[-1]:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[..., -1:], float("-inf"))
    probabilities = scaled.softmax(-1)
    if top_p < 1:
        ordered, places = probabilities.sort(descending=True, stable=True)
        # A token stays while the mass before it is below top_p, so that the first token always stays.
        outside = ordered.cumsum(-1) - ordered >= top_p
        probabilities = probabilities.masked_fill(torch.zeros_like(outside).scatter_(-1, places, outside), 0.0)
        probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return probabilities


def log_probabilities(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Natural logarithms [k] of the model's own probabilities of k tokens, whatever the sampling; logits: [k, V].

    They stay on the device of the logits, so that nothing waits for them.
    """
    chosen = torch.stack([row[token] for row, token in zip(logits.float(), tokens, strict=True)])
    return chosen - logits.float().logsumexp(-1)


class Sampler:
    """Draws token ids from logits; the same seed and logits give the same tokens."""

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> None:
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        # On the CPU, so that a seed means the same tokens on every device.
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def __call__(self, logits: Tensor) -> int:
        """The next token id for logits [V]."""
        return int(logits.argmax()) if self.greedy else self.draw(self.probabilities(logits).cpu())

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution [..., V] that tokens are drawn from, on the device of the logits."""
        return distribution(logits, self.temperature, self.top_k, self.top_p)

    def draw(self, probabilities: Tensor) -> int:
        """A token id from weights [V] on the CPU; they need not sum to 1."""
        return int(torch.multinomial(probabilities, 1, generator=self.generator))

    def uniform(self, count: int) -> Tensor:
        """Numbers [count] drawn uniformly from [0, 1)."""
        return torch.rand(count, generator=self.generator)
