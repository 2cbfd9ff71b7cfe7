"""The same pair answering one question in several modes, each on the same terms."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specprefill_cli.answering.draft_side import dry_run
from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.prefill.prefix_cache import document_cache
from specprefill_cli.record import BASELINE, Cell, DryRun, Record
from specprefill_cli.settings import Settings

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True)
class ModeAnswer:
    """One mode's answer, with its cells for the page, and its difference from `full` (None where that did not run).

    asked: the mode that the user named; the answer names the one that `auto` took
    speedup: TTFT of `full` over this one's; first_token_kl: KL(full || mode) of the first token's distributions, in nats
    agreement: F1 of the words of both answers, 1 where they are the same
    """

    asked: str
    answer: Record
    cells: list[Cell]
    speedup: float | None = None
    first_token_kl: float | None = None
    agreement: float | None = None


class Comparison:
    """A session and the documents that it is asked about, in one mode after the other.

    Where modes are compared, each starts cold, because they find different work in a warm cache, or none. One mode alone
    reuses what earlier questions about the same documents left, unless cold

    misfits: modes that the last question's prompt was too long for, with the reason
    """

    def __init__(self, session: Session, collection: Collection, cold: bool = False) -> None:
        self.session = session
        self.collection = collection
        self.cache = None if cold else document_cache(session.settings.memory_cache, session.pair)
        self.misfits: dict[str, str] = {}

    def ask(
        self,
        question: str,
        settings: Settings,
        modes: Sequence[str],
        on_mode: Callable[[str], None] = lambda _mode: None,
    ) -> list[ModeAnswer]:
        """The answers in each mode, in the order of `modes`; `on_mode` is called before each.

        A mode that the prompt is too long for goes to `misfits` where another one answers. Raises what `Session.ask` raises,
        and KeyboardInterrupt when an answer was interrupted.
        """
        # With the logits [V] of the first token, None where a target shows none.
        answers: list[tuple[ModeAnswer, Tensor | None]] = []
        self.misfits = {}
        session = self.session.with_cache(self.cache if len(modes) == 1 else None)
        for mode in modes:
            on_mode(mode)
            try:
                stream = session.ask(self.collection, question, settings.varied(mode=mode))
                answer = ModeAnswer(asked=mode, answer=stream.finished(), cells=stream.cells)
                answers.append((answer, stream.prefilled.logits))
                # The next mode needs the memory of its KV.
                del stream
            except PromptTooLong as error:
                self.misfits[mode] = str(error)
                if len(self.misfits) == len(modes):
                    raise
        full, full_logits = next((pair for pair in answers if pair[0].asked == BASELINE), (None, None))
        if full is None:
            return [answer for answer, _ in answers]
        return [
            replace(
                answer,
                speedup=full.answer.ttft_seconds / answer.answer.ttft_seconds,
                first_token_kl=None if full_logits is None or logits is None else kl_divergence(full_logits, logits),
                agreement=word_f1(answer.answer.answer, full.answer.answer),
            )
            for answer, logits in answers
        ]

    def plan(self, question: str, settings: Settings) -> DryRun:
        """A dry run for a question."""
        return dry_run(self.session, self.collection, question, settings)


def kl_divergence(reference: Tensor, logits: Tensor) -> float:
    """KL(reference || other) in nats between the distributions of two logits [V]; tokens that the reference rules out count 0."""
    expected, other = reference.double().log_softmax(-1).cpu(), logits.double().log_softmax(-1).cpu()
    terms = torch.where(expected == -math.inf, 0.0, expected.exp() * (expected - other))
    return float(terms.sum().clamp(min=0.0))


def normalise(text: str) -> str:
    """Lower-case text without punctuation, articles and extra blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def word_f1(answer: str, reference: str) -> float:
    """F1 of the words of two normalised texts, as SQuAD counts it (arXiv 1606.05250); 1 if both have none."""
    words, expected = normalise(answer).split(), normalise(reference).split()
    overlap = sum((Counter(words) & Counter(expected)).values())
    return 2 * overlap / (len(words) + len(expected)) if overlap else float(words == expected)
