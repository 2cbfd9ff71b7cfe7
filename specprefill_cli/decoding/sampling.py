"""From logits to tokens, and from tokens to text: sampling, verifying proposed tokens, whole characters, stop texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import PreTrainedTokenizerBase


def log_probabilities(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Logarithms [k] of the model's own probabilities of k tokens, on the device of the logits [k, V]: nothing waits."""
    chosen = torch.stack([row[token] for row, token in zip(logits.float(), tokens, strict=True)])
    return chosen - logits.float().logsumexp(-1)


class Sampler:
    """Draws token ids from logits; the same seed and logits give the same tokens."""

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, seed: int = 0) -> None:
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.greedy = temperature == 0
        # On the CPU, so that a seed means the same tokens on every device.
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: Tensor) -> int:
        """The next token id for logits [V]."""
        return int(logits.argmax()) if self.greedy else self.draw(self.probabilities(logits).cpu())

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution [..., V] that tokens are drawn from, on the device of the logits.

        After temperature (above 0), then top-k (0: all), then top-p (arXiv 1904.09751).
        """
        # The largest becomes 0, so that no temperature makes it infinite.
        scaled = (logits.float() - logits.float().amax(-1, keepdim=True)) / self.temperature
        if 0 < self.top_k < scaled.shape[-1]:
            scaled = scaled.masked_fill(scaled < scaled.topk(self.top_k).values[..., -1:], float("-inf"))
        probabilities = scaled.softmax(-1)
        if self.top_p < 1:
            ordered, places = probabilities.sort(descending=True, stable=True)
            # A token stays while the mass before it is below top_p, so that the first token always stays.
            outside = ordered.cumsum(-1) - ordered >= self.top_p
            probabilities = probabilities.masked_fill(torch.zeros_like(outside).scatter_(-1, places, outside), 0.0)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities

    def draw(self, probabilities: Tensor) -> int:
        """A token id from weights [V] on the CPU; they need not sum to 1."""
        return int(torch.multinomial(probabilities, 1, generator=self.generator))


@dataclass(frozen=True)
class Proposal:
    """Proposed tokens, and the distributions [k, V] they were drawn from, on the CPU.

    probabilities: None for a deterministic proposer (all mass on each token) and for greedy decoding
    entered: the proposer prefilled the prompt first, so that its time says nothing about drafting
    """

    proposer: str
    tokens: tuple[int, ...] = ()
    probabilities: Tensor | None = None
    entered: bool = False


NO_PROPOSAL = Proposal("")


def positive_part(probabilities: Tensor, proposal: Proposal, place: int) -> Tensor:
    """Weights [V] to replace a rejected token: positive part of target minus proposal (arXiv 2211.17192, 2.3)."""
    if proposal.probabilities is None:
        residual = probabilities.clone()
        residual[proposal.tokens[place]] = 0
    else:
        residual = (probabilities - proposal.probabilities[place]).clamp(min=0)
    # Equal distributions leave only rounding errors: then either is right.
    return residual if residual.sum() > 0 else probabilities


def verify(logits: Tensor, proposal: Proposal, sampler: Sampler) -> tuple[int, int]:
    """How many of k proposed tokens are accepted, and the token that follows; logits: [k + 1, V] before and after each.

    Token i is accepted with probability min(1, target_i / proposal_i); the first rejected token is replaced by a draw
    from the positive part of target minus proposal, and k accepted tokens are followed by a draw from the target.
    """
    count = len(proposal.tokens)
    if count == 0:
        return 0, sampler(logits[0])
    tokens = torch.tensor(proposal.tokens)
    if sampler.greedy:
        chosen = logits.argmax(-1).cpu()
        accepted = count_leading(chosen[:count] == tokens)
        return accepted, int(chosen[accepted])
    probabilities = sampler.probabilities(logits)
    # Copying all rows would take megabytes: only a number of each, and a single row, are needed.
    target = probabilities[:count].gather(1, tokens[:, None].to(logits.device))[:, 0].cpu()
    drawn = proposal.probabilities
    draft = torch.ones(count) if drawn is None else drawn.gather(1, tokens[:, None])[:, 0]
    accepted = count_leading(torch.rand(count, generator=sampler.generator) * draft < target)
    weights = probabilities[accepted].cpu()
    return accepted, sampler.draw(weights if accepted == count else positive_part(weights, proposal, accepted))


def count_leading(flags: Tensor) -> int:
    """How many flags are true before the first that is false."""
    return int(flags.long().cumprod(0).sum())


@dataclass(frozen=True)
class Round:
    """A pass of the target that verified a proposal: accepted tokens, seconds of proposing, and of the pass and choosing."""

    proposal: Proposal
    accepted: int
    propose_seconds: float = 0.0
    target_seconds: float = 0.0

    @property
    def drafted(self) -> int:
        return len(self.proposal.tokens)


class Detokenizer:
    """Gives the new text after each token; bytes of an unfinished UTF-8 character wait for the rest."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer.backend_tokenizer
        self.stream = DecodeStream(skip_special_tokens=True)
        # Tokens whose text was not returned yet.
        self.waiting: list[int] = []

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self.waiting.append(token)
        try:
            text = self.stream.step(self.tokenizer, token) or ""
        except Exception as error:
            # Byte tokens (Gemma, Llama 2) are decoded together; tokenizers raises a plain Exception where an unfinished
            # character would change text that was already returned.
            if "Invalid prefix" not in str(error):
                raise
            self.stream = DecodeStream(skip_special_tokens=True)
            text = "".join(self.stream.step(self.tokenizer, pending) or "" for pending in self.waiting)
        if text:
            self.waiting = []
        return text

    def finish(self) -> str:
        """The rest at the end: an unfinished character, shown as U+FFFD."""
        return self.tokenizer.decode(self.waiting, skip_special_tokens=True)


@dataclass
class StopFilter:
    """Cuts a text before its first stop text. Text that may begin a stop text is held back until more follows."""

    stop_texts: Sequence[str]
    held: str = ""
    stopped: bool = False

    def push(self, text: str) -> str:
        """The text that may be shown now."""
        text, self.held = self.held + text, ""
        places = [place for stop in self.stop_texts if (place := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return text[: min(places)]
        lengths = (size for stop in self.stop_texts for size in range(1, len(stop)) if text.endswith(stop[:size]))
        shown = len(text) - max(lengths, default=0)
        self.held = text[shown:]
        return text[:shown]
