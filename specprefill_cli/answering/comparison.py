"""Answers of a pair to the same question in several modes, on equal terms."""

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
    """Answer in each mode, in the order of `modes`; call `on_mode` before each.

    Several modes start without a cache, because a warm cache would save them different amounts of work. A single mode uses
    the session's cache. A mode that the prompt is too long for is a misfit if another mode answers. Raises what
    `Session.ask` raises, and KeyboardInterrupt if an answer was interrupted.
    """
    answers: list[ModeAnswer] = []
    # Logits [V] of the first token; None where the target does not give them.
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
            # Free the KV cache: the next mode needs its memory.
            del stream
        except PromptTooLong as error:
            misfits[mode] = str(error)
            if len(misfits) == len(modes):
                raise
    baseline_index = next((number for number, answer in enumerate(answers) if answer.mode == BASELINE), None)
    if baseline_index is not None:
        full, full_logits = answers[baseline_index].answer, logits[baseline_index]
        answers = [
            replace(
                answer,
                speedup=full.ttft_seconds / answer.answer.ttft_seconds,
                first_token_kl=None
                if full_logits is None or mode_logits is None
                else kl_divergence(full_logits, mode_logits),
                agreement=word_f1(answer.answer.answer, full.answer),
            )
            for answer, mode_logits in zip(answers, logits, strict=True)
        ]
    return Comparison(question=question, answers=answers, misfits=misfits)


def kl_divergence(reference: Tensor, logits: Tensor) -> float:
    """KL(reference || other) in nats between two logits [V]; tokens that the reference rules out count 0."""
    expected, other = reference.double().log_softmax(-1).cpu(), logits.double().log_softmax(-1).cpu()
    terms = torch.where(expected == -math.inf, 0.0, expected.exp() * (expected - other))
    return float(terms.sum().clamp(min=0.0))


def normalise_words(text: str) -> str:
    """Lower-case a text and remove punctuation, articles and extra blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def word_f1(answer: str, reference: str) -> float:
    """Word F1 of two texts after `normalise_words`, as in SQuAD (arXiv 1606.05250); 1 if neither has words."""
    words, expected = normalise_words(answer).split(), normalise_words(reference).split()
    overlap = sum((Counter(words) & Counter(expected)).values())
    return 2 * overlap / (len(words) + len(expected)) if overlap else float(words == expected)
