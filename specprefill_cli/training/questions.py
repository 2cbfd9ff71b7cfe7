"""Questions and answers after the document of a training row, and targets of the guided heads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Encoding, Tokenizer

from specprefill_cli.training.synthesis import Question

# Special tokens of the bundled tokenizer.
BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
QUESTION_TOKENS = 24
FIRST_TOKEN_WEIGHT = 3


def known_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token. Raises ValueError if the tokenizer lacks it."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"the tokenizer lacks {token}")
    return number


@dataclass(frozen=True)
class PromptFormat:
    """Fixed texts of the product's prompt template around document and question."""

    prefix: str
    before_question: str
    after_question: str

    @classmethod
    def of(cls, prefix: str, before: str, after: str) -> PromptFormat:
        """The format of a template's texts; the blank before the question belongs to the question's first token."""
        return cls(prefix, before.removesuffix(" "), after)


@dataclass(frozen=True)
class ShownDocument:
    """A document's text and token ids. starts: first character of each token; row_index: of each kept token."""

    text: str
    ids: list[int]
    starts: list[int]
    row_index: dict[int, int]


@dataclass
class Row:
    """A sequence of S tokens, padded at its end.

    positions: [S]
    answers:  indices of tokens that predict a token of an answer
    regions:  (indices of a question's tokens, start, end): document tokens [start, end) that these should attend to
    pointers: (index of a token that predicts a token of the answer, index of the document token to copy)
    """

    tokens: list[int]
    positions: np.ndarray
    answers: list[int] = field(default_factory=list)
    regions: list[tuple[list[int], int, int]] = field(default_factory=list)
    pointers: list[tuple[int, int]] = field(default_factory=list)


class QuestionWriter:
    """Appends questions and answers to rows, in the prompt's format."""

    def __init__(self, tokenizer: Tokenizer, template: PromptFormat) -> None:
        self.tokenizer = tokenizer
        self.prefix = [known_id(tokenizer, BOS), *self.ids(template.prefix)]
        self.before = self.ids(template.before_question)
        self.after = self.ids(template.after_question)
        self.end = known_id(tokenizer, EOS)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def append(self, row: Row, document: ShownDocument, question: Question, length: int) -> bool:
        """Append a question with its answer. Returns False where the row is full. Skips questions with a dropped answer."""
        starts, row_index = document.starts, document.row_index
        answered = question.start >= 0
        first = bisect_right(starts, question.start) - 1 if answered else -1
        last = bisect_left(starts, question.start + len(question.answer)) if answered else -1
        if answered and any(index not in row_index for index in range(first, last)):
            return True
        question_ids = self.ids(" " + question.text)
        answer = self.tokenizer.encode(" " + question.answer, add_special_tokens=False)
        tokens = [*self.before, *question_ids, *self.after]
        if len(row.tokens) + len(tokens) + len(answer.ids) + 1 > length:
            return False
        question_start = len(row.tokens) + len(self.before)
        row.tokens += tokens
        predicting = len(row.tokens) - 1
        row.tokens += [*answer.ids, self.end]
        row.answers += range(predicting, predicting + len(answer.ids) + 1)
        if answered:
            # The token that predicts the answer's first token must find the passage too.
            queries = list(range(question_start, predicting + 1))[-QUESTION_TOKENS:]
            row.regions.append((queries, *region(document, question, first, last)))
            row.pointers += pointers(document, question, answer, predicting)
        return True


def region(document: ShownDocument, question: Question, first: int, last: int) -> tuple[int, int]:
    """Row indices [start, end) of the sentence with the answer. first, last: document tokens [first, last) of the answer."""
    low, high = sentence_bounds(document.text, question.start, len(question.answer))
    # The bounds keep the region of a long sentence about a chunk wide.
    start = max(bisect_right(document.starts, low) - 1, first - 40)
    end = min(bisect_left(document.starts, high), last + 16)
    indices = [document.row_index[index] for index in range(start, end) if index in document.row_index]
    return min(indices), max(indices) + 1


def pointers(document: ShownDocument, question: Question, answer: Encoding, predicting: int) -> list[tuple[int, int]]:
    """Pairs (token that predicts a token of the answer, document token to copy). predicting: the first of these tokens."""
    pairs: list[tuple[int, int]] = []
    answer_ids = answer.ids
    for number, (start, _) in enumerate(answer.offsets):
        # Offsets count the blank before the answer; its first token begins at the answer itself.
        index = bisect_right(document.starts, question.start + max(0, start - 1)) - 1
        matches = number == 0 or document.ids[index] == answer_ids[number]
        if index in document.row_index and matches:
            # The first token is the hardest to predict: the others follow from the token before.
            weight = FIRST_TOKEN_WEIGHT if number == 0 else 1
            pairs += [(predicting + number, document.row_index[index])] * weight
    return pairs


def drop_ambiguous(questions: Sequence[Question]) -> list[Question]:
    """Drop questions with several answers in the document."""
    answers: dict[str, set[str]] = defaultdict(set)
    for question in questions:
        answers[question.text.lower()].add(question.answer)
    return [question for question in questions if len(answers[question.text.lower()]) == 1]


def sentence_bounds(text: str, start: int, size: int) -> tuple[int, int]:
    """Character range of the sentence or line around an answer."""
    low = max(text.rfind(". ", 0, start), text.rfind("\n", 0, start))
    ends = [end for end in (text.find(". ", start + size), text.find("\n", start + size)) if end >= 0]
    return low + 1, min(ends) + 1 if ends else len(text)
