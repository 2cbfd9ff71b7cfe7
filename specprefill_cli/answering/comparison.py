"""The same pair answering one question in several modes, each on the same terms."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specprefill_cli.answering.session import Session
from specprefill_cli.documents.document import Collection
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.record import BASELINE, Comparison, ModeAnswer
from specprefill_cli.settings import Settings

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def compare_modes(
    session: Session,
    collection: Collection,
    question: str,
    settings: Settings,
    modes: Sequence[str],
    on_mode: Callable[[str], None] = lambda _mode: None,
) -> Comparison:
    """Answer in each mode, in the order of `modes`; `on_mode` is called before each.

    Several modes start cold, because they find different work in a warm cache, or none. One mode alone uses the session's
    cache. A mode that the prompt is too long for is a misfit where another one answers. Raises what `Session.ask` raises,
    and KeyboardInterrupt when an answer was interrupted.
    """
    answers: list[ModeAnswer] = []
    # Of the first token, [V]; None where a target shows none.
    logits: list[Tensor | None] = []
    misfits: dict[str, str] = {}
    if len(modes) > 1:
        session = session.with_cache(None)
    for mode in modes:
        on_mode(mode)
        try:
            stream = session.ask(collection, question, settings.varied(mode=mode))
            answers.append(ModeAnswer(mode=mode, answer=stream.finished(), cells=stream.cells))
            logits.append(stream.prefilled.logits)
            # The next mode needs the memory of its KV.
            del stream
        except PromptTooLong as error:
            misfits[mode] = str(error)
            if len(misfits) == len(modes):
                raise
    baseline = next((number for number, answer in enumerate(answers) if answer.mode == BASELINE), None)
    if baseline is not None:
        full, full_logits = answers[baseline].answer, logits[baseline]
        answers = [
            replace(
                answer,
                speedup=full.ttft_seconds / answer.answer.ttft_seconds,
                first_token_kl=None if full_logits is None or other is None else kl_divergence(full_logits, other),
                agreement=word_f1(answer.answer.answer, full.answer),
            )
            for answer, other in zip(answers, logits, strict=True)
        ]
    return Comparison(question=question, answers=answers, misfits=misfits)


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
