"""Proposers of tokens for the target to verify: the text so far (`lookup`), or the draft model (`draft`); what is refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specprefill_cli.decoding.runner import SequenceRunner
from specprefill_cli.decoding.sampling import Proposal, Sampler
from specprefill_cli.errors import UsageError
from specprefill_cli.models.loaded import LoadedPair
from specprefill_cli.models.machine.cost import cost_of
from specprefill_cli.models.running.adapter import prefill
from specprefill_cli.models.running.passes import ForwardGenerator
from specprefill_cli.prefill.request import PrefillRequest, PrefillResult
from specprefill_cli.settings import AUTO, OFF, Settings

# Longest suffix of the answer that `lookup` searches for in the text; the shortest has two tokens.
LONGEST_MATCH = 8


class LookupProposer:
    """Searches prompt and answer for the answer's last tokens, and proposes what followed: an answer often quotes.

    seen: [n] prompt tokens in the target's cache, in order: it can quote no others
    entry_passes: cost of getting ready for its first proposal; token_passes: assumed cost of a token; in target passes
    """

    name = "lookup"
    entry_passes = 0.0
    token_passes = 0.0

    def __init__(self, seen: Tensor) -> None:
        self.seen = seen.numpy()

    def propose(self, answer: Sequence[int], count: int) -> ForwardGenerator[Proposal]:
        """Propose up to `count` (at least 1) tokens after an answer that is not empty; possibly none."""
        yield from ()
        text = np.concatenate([self.seen, answer])
        return Proposal(self.name, tuple(continuation(text, len(answer), count).tolist()))

    def rollback(self, length: int) -> None:
        """Nothing to do: it sees accepted tokens only."""


def continuation(text: np.ndarray, answer_length: int, count: int) -> np.ndarray:
    """Up to `count` tokens that followed an earlier occurrence of the last tokens of `text` [n], at most `answer_length`.

    The longest match wins, of several the latest. A match that runs into the end of the text repeats with its period.
    """
    start = 0
    match_ends = np.flatnonzero(text[:-1] == text[-1])
    for length in range(2, min(LONGEST_MATCH, answer_length) + 1):
        match_ends = match_ends[match_ends >= length - 1]
        match_ends = match_ends[text[match_ends - length + 1] == text[-length]]
        if len(match_ends) == 0:
            break
        start = match_ends[-1] + 1
    return np.resize(text[start : start + count], count) if start else text[:0]


@dataclass(eq=False)
class DraftProposer:
    """Decodes ahead of the target: draws from the draft's distribution, with the target's sampling parameters.

    open_runner: opens the draft after the prompt; called at the first proposal, since it prefills
    entry_passes: cost of that in target passes, 0 afterwards; token_passes: assumed cost of a drafted token
    vocabulary: size V of the target's logits; longest_answer: tokens of answer that the draft's context holds
    """

    name = "draft"
    open_runner: Callable[[], SequenceRunner]
    sampler: Sampler
    stop_tokens: frozenset[int]
    vocabulary: int
    longest_answer: int
    entry_passes: float = 0.0
    token_passes: float = 0.5
    runner: SequenceRunner | None = None

    def propose(self, answer: Sequence[int], count: int) -> ForwardGenerator[Proposal]:
        """Propose up to `count` (at least 1) tokens after an answer that is not empty; none where its context is full."""
        count = min(count, self.longest_answer - len(answer))
        if count < 1:
            return Proposal(self.name)
        entered = self.entry_passes > 0
        if self.runner is None:
            self.runner, self.entry_passes = self.open_runner(), 0.0
        tokens: list[int] = []
        distributions: list[Tensor] = []
        unread = answer[self.runner.length :]
        while len(tokens) < count and not (tokens and tokens[-1] in self.stop_tokens):
            logits = (yield from self.runner.read(unread))[-1]
            # Models that share a tokenizer may still pad their vocabularies to different sizes.
            logits = F.pad(logits, (0, self.vocabulary - len(logits)), value=float("-inf"))
            if self.sampler.greedy:
                tokens.append(int(logits.argmax()))
            else:
                distributions.append(self.sampler.probabilities(logits).cpu())
                tokens.append(self.sampler.draw(distributions[-1]))
            unread = tokens[-1:]
        return Proposal(self.name, tuple(tokens), torch.stack(distributions) if distributions else None, entered)

    def rollback(self, length: int) -> None:
        if self.runner is not None:
            self.runner.rollback(length)


Proposer = LookupProposer | DraftProposer


def draft_proposer(
    request: PrefillRequest, prefilled: PrefillResult, sampler: Sampler, stop_tokens: frozenset[int]
) -> DraftProposer:
    """The draft after the prompt: before its first proposal it reads what the target's cache holds."""
    draft, length = request.draft, prefilled.answer_position
    # The state grows while decoding; these are its slots now.
    tokens, positions = request.prompt.tokens[prefilled.seen_tokens], prefilled.state.positions

    def open_runner() -> SequenceRunner:
        _, state = prefill(draft.model, tokens, positions, request.prefill_chunk)
        return SequenceRunner(draft.model, state, length)

    small, large = cost_of(draft), cost_of(request.pair.target)
    # Ranks divide the target's pass.
    share = request.pair.ranks.size
    target_pass = large.pass_flops(1, length) + large.overhead_flops()
    # Short passes are bound by their number of layers as often as by their arithmetic.
    token_pass = share * small.pass_flops(1, length) / large.pass_flops(1, length)
    return DraftProposer(
        open_runner,
        sampler,
        stop_tokens,
        vocabulary=prefilled.logits.shape[-1],
        longest_answer=draft.context - length,
        entry_passes=share * small.prefill_with_overhead(len(tokens)) / target_pass,
        token_passes=max(small.layers / large.layers, token_pass),
    )


def names_draft(settings: Settings) -> bool:
    """Whether the user chose the draft to propose tokens."""
    return settings.speculate != OFF and settings.proposer == DraftProposer.name


def check_proposer(settings: Settings, pair: LoadedPair) -> None:
    """Raises UsageError where the draft is named as proposer and cannot propose the target's tokens."""
    if not names_draft(settings):
        return
    if pair.draft is None:
        raise UsageError("--proposer draft: no draft is loaded; use --proposer lookup, or --speculate off")
    if not pair.same_tokenizer:
        raise UsageError(
            f"--proposer draft: {pair.draft.name} and {pair.target.name} have different tokenizers; use --proposer "
            "lookup, --speculate off, or a --draft with the target's tokenizer"
        )


def draft_may_propose(settings: Settings, pair: LoadedPair) -> bool:
    """Whether the draft may run while decoding."""
    is_wanted = settings.speculate != OFF and settings.proposer in (AUTO, DraftProposer.name)
    return is_wanted and settings.max_new_tokens > 1 and pair.same_tokenizer


def proposer_warnings(settings: Settings, request: PrefillRequest, length: int) -> tuple[str, ...]:
    """A warning where the draft was named as proposer, and its context has no room from position `length` on."""
    if not names_draft(settings) or length < request.draft.context:
        return ()
    draft = request.draft
    return (
        f"--proposer draft: the prompt's {length:,} tokens fill {draft.name}'s context of {draft.context:,}; nothing is "
        "proposed: use --proposer lookup",
    )
