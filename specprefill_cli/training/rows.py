"""Training rows: token ids, positions with gaps, which tokens count in the loss, and where the guided heads should look."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Encoding, Tokenizer

from specprefill_cli.training.cloze import cloze_block, thinned
from specprefill_cli.training.corpus import ContextQuestions
from specprefill_cli.training.positions import CHUNK, MOST_SHIFT, skipped_positions, thinned_positions
from specprefill_cli.training.renaming import names_in, renamed
from specprefill_cli.training.synthesis import (
    NOT_FOUND,
    Block,
    FactBook,
    Question,
    fact_block,
    key_value_block,
    table_block,
)
from specprefill_cli.training.tokenizer import BOS, EOS, PAD
from specprefill_cli.training.topics import Material, OneTopic, Scattered

CHARACTERS_PER_TOKEN = 3.9
QUESTION_TOKENS = 24
FIRST_TOKEN_WEIGHT = 3
CLOZE_SHARE = 0.5
RENAMED_SHARE = 0.4
NOISY_SHARE = 0.15
ABSENT_SHARE = 0.05
ONE_TOPIC_SHARE = 0.6


@dataclass(frozen=True)
class Format:
    """The fixed texts of the product's prompt template around document and question."""

    head: str
    before_question: str
    after_question: str


@dataclass(frozen=True)
class ShownDocument:
    """A document's text, its encoding, the character at which each token starts, and the place of each kept one in the row."""

    text: str
    encoding: Encoding
    starts: list[int]
    place_of: dict[int, int]


@dataclass
class Row:
    """One sequence of S tokens, padded at its end.

    positions: [S]
    answers:  indices of tokens whose successor counts in the loss
    regions:  (tokens that ask, start, end): the document tokens that these should attend to, as [start, end)
    pointers: (token, document token): the one that predicts a token of the answer, and where that stands
    """

    tokens: list[int]
    positions: np.ndarray
    answers: list[int] = field(default_factory=list)
    regions: list[tuple[list[int], int, int]] = field(default_factory=list)
    pointers: list[tuple[int, int]] = field(default_factory=list)


class RowMaker:
    """Makes rows from passages of text, question groups and synthesised facts; one random stream per maker."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: Format,
        passages: Sequence[str],
        groups: Sequence[ContextQuestions],
        context: int,
        seed: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.material = Material(passages, groups, FactBook())
        self.names = names_in(passages)
        self.context = context
        self.rng = random.Random(seed)
        self.head = [tokenizer.token_to_id(BOS), *self.ids(template.head)]
        self.before = self.ids(template.before_question)
        self.after = self.ids(template.after_question)
        self.end = tokenizer.token_to_id(EOS)
        self.pad = tokenizer.token_to_id(PAD)
        self.strangers: deque[Question] = deque(maxlen=200)

    def positions(self, length: int) -> np.ndarray:
        return skipped_positions(length, len(self.head), self.context, self.rng)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def copy_row(self, length: int) -> Row:
        """Random tokens whose segments come back: the quickest lesson in copying from context."""
        tokens = [self.head[0]]
        answers: list[int] = []
        while len(tokens) < length:
            size = self.rng.randint(4, 40)
            if len(tokens) > 60 and self.rng.random() < 0.6:
                start = self.rng.randint(1, len(tokens) - size - 1) if len(tokens) > size + 2 else 1
                answers += range(len(tokens) + 1, min(len(tokens) + size, length) - 1)
                tokens += tokens[start : start + size]
            else:
                tokens += [self.rng.randrange(256, self.end) for _ in range(size)]
        tokens = tokens[:length]
        return Row(tokens, self.positions(length), [place for place in answers if place < length - 1])

    def text_row(self, length: int) -> Row:
        tokens = [self.head[0]]
        while len(tokens) < length:
            tokens += [*self.ids(self.rng.choice(self.material.passages)), self.end]
        return Row(tokens[:length], self.positions(length))

    def document_row(self, length: int, real: float) -> Row:
        """A document of blocks with questions after it; `real` is the share of rows made of question groups."""
        share = 0.45 if length <= 512 else 0.52 if length <= 1024 else 0.65 if length <= 2048 else 0.8
        room = int(length * share)
        gapped = self.rng.random() < 0.3
        # Question and answers stand behind the whole document, at positions that the context must hold.
        wanted = min(room * self.rng.uniform(1.5, 4.0), self.context - length - MOST_SHIFT) if gapped else room
        topic = (OneTopic if self.rng.random() < ONE_TOPIC_SHARE else Scattered)(self.material, self.rng)
        is_real = self.rng.random() < real
        blocks, strangers = self.blocks(int(wanted * CHARACTERS_PER_TOKEN), is_real, topic)
        separator = self.rng.choice(["\n\n", "\n\n", "\n"])
        text, questions = "", []
        for block in blocks:
            text += separator if text else ""
            questions += [question.moved(len(text)) for question in block.questions]
            text += block.text
        questions = unambiguous(questions)
        # What the document states of the same thing, in whatever words, answers a stranger's question too.
        strangers = [one for one in strangers if one.fact is None or one.fact not in topic.stated]
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        starts = [start for start, _ in encoding.offsets]
        if gapped:
            # A text of short tokens may be longer than its characters let expect.
            starts = starts[: self.context - length - MOST_SHIFT]
            end = encoding.offsets[len(starts) - 1][1]
            questions = [question for question in questions if question.start + len(question.answer) <= end]
        self.rng.shuffle(questions)
        kept = np.arange(len(starts))
        if gapped:
            kept = self.thin(starts, questions, room)
        # Blocks overshoot; what the questions need is not given away to the document.
        kept = kept[:room]
        tokens = self.head + [encoding.ids[index] for index in kept]
        row = Row(tokens, np.empty(0, dtype=np.int64))
        place_of = {int(index): place + len(self.head) for place, index in enumerate(kept)}
        self.ask(row, ShownDocument(text, encoding, starts, place_of), questions, strangers, length)
        if gapped:
            row.positions = thinned_positions(kept + len(self.head), length, len(self.head), self.context, self.rng)
        else:
            row.positions = self.positions(length)
        row.tokens += [self.pad] * (length - len(row.tokens))
        return row

    def thin(self, starts: list[int], questions: list[Question], room: int) -> np.ndarray:
        """Token indices of the chunks that hold answers, and of random others up to `room` tokens: as in `select`."""
        chunks = -(-len(starts) // CHUNK)
        gold = []
        for question in questions[: max(1, room // (6 * CHUNK))]:
            if question.start >= 0:
                chunk = (bisect_right(starts, question.start) - 1) // CHUNK
                gold += [chunk, max(0, chunk - 1)]
        others = list(range(chunks))
        self.rng.shuffle(others)
        chosen = sorted(list(dict.fromkeys(gold + others))[: max(1, room // CHUNK)])
        kept = (np.array(chosen)[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)
        return kept[kept < len(starts)]

    def blocks(self, characters: int, real: bool, topic: Scattered) -> tuple[list[Block], list[Question]]:
        """Blocks of about `characters` characters: real paragraphs with questions, or prose with facts and tables.

        And questions that they do not answer, under the same names.
        """
        book = self.material.book
        written: list[Block] = []
        made: list[Block] = []
        size = 0
        while size < characters:
            draw = self.rng.random()
            if real and draw < 0.8:
                written.append(self.real_block(topic.group()))
                size += len(written[-1].text) + 2
                continue
            if draw < 0.07:
                made.append(table_block(book, self.rng))
            elif draw < 0.17:
                made.append(key_value_block(book, self.rng))
            else:
                made.append(self.prose_block(topic, characters - size))
            size += len(made[-1].text) + 2
        neighbours = self.neighbours(topic, real) if isinstance(topic, OneTopic) else []
        if self.rng.random() < RENAMED_SHARE:
            both = renamed([*written, *neighbours], self.names, self.rng)
            written, neighbours = both[: len(written)], both[len(written) :]
        blocks = written + made
        self.rng.shuffle(blocks)
        strangers = [question for block in neighbours for question in block.questions]
        return blocks, strangers if neighbours else list(self.strangers)

    def prose_block(self, topic: Scattered, room: int) -> Block:
        """A passage of ordinary text, asked about itself or with synthesised facts woven in."""
        prose = topic.passage()
        smallest = min(len(prose), self.rng.randint(100, 1_400), max(100, room))
        prose = prose[: prose.find(" ", smallest)] if prose.find(" ", smallest) > 0 else prose
        wanted = max(1, round(len(prose) / self.rng.choice([50, 90, 160])))
        if self.rng.random() < CLOZE_SHARE:
            return cloze_block(prose, wanted, self.rng)
        return fact_block(self.material.book, topic.domain(), prose, wanted, self.rng, topic.stated)

    def real_block(self, group: ContextQuestions) -> Block:
        """A context with its written questions, some of them with words left out."""
        questions = [Question(*question) for question in group.questions]
        for place, question in enumerate(questions):
            if self.rng.random() < NOISY_SHARE:
                words = thinned(question.text.split(), 0.15, self.rng)
                questions[place] = Question(" ".join(words) or question.text, question.answer, question.start)
        return Block(group.context, tuple(questions))

    def neighbours(self, topic: OneTopic, real: bool) -> list[Block]:
        """What follows the document in its source, with questions: of its topic, and not answered by it."""
        if real:
            return [self.real_block(topic.group()) for _ in range(2)]
        return [cloze_block(topic.passage(), 4, self.rng) for _ in range(3)]

    def ask(
        self, row: Row, shown: ShownDocument, questions: list[Question], strangers: list[Question], length: int
    ) -> None:
        """Append questions with answers while they fit, and now and then one of `strangers`, which are not answered."""
        failures = 0
        for question in questions:
            if self.rng.random() < ABSENT_SHARE and strangers:
                stranger = self.rng.choice(strangers)
                if stranger.answer.lower() not in shown.text.lower():
                    absent = Question(stranger.text, NOT_FOUND, -1)
                    self.append(row, shown, absent, length)
            failures += not self.append(row, shown, question, length)
            # A long question that does not fit leaves room for a shorter one behind it.
            if failures > 3:
                break
        self.strangers.extend(questions[:2])

    def append(self, row: Row, shown: ShownDocument, question: Question, length: int) -> bool:
        """Append one question; False when the row is full. A question whose answer was cut away is skipped."""
        starts, place_of = shown.starts, shown.place_of
        inside = question.start >= 0
        first = bisect_right(starts, question.start) - 1 if inside else -1
        last = bisect_left(starts, question.start + len(question.answer)) if inside else -1
        if inside and any(index not in place_of for index in range(first, last)):
            return True
        asked = self.ids(" " + question.text)
        answer = self.tokenizer.encode(" " + question.answer, add_special_tokens=False)
        if len(row.tokens) + len(self.before) + len(asked) + len(self.after) + len(answer.ids) + 1 > length:
            return False
        asked_from = len(row.tokens) + len(self.before)
        row.tokens += self.before + asked + self.after
        predicts = len(row.tokens) - 1
        row.tokens += [*answer.ids, self.end]
        row.answers += range(predicts, predicts + len(answer.ids) + 1)
        if not inside:
            return True
        low, high = sentence_bounds(shown.text, question.start, len(question.answer))
        # The sentence around the answer, bounded so that it stays about a chunk wide.
        region = [
            place_of[index]
            for index in range(
                max(bisect_right(starts, low) - 1, first - 40), min(bisect_left(starts, high), last + 16)
            )
            if index in place_of
        ]
        # Up to the token that predicts the answer's first: it must find the passage too.
        queries = list(range(asked_from, predicts + 1))[-QUESTION_TOKENS:]
        row.regions.append((queries, min(region), max(region) + 1))
        for number, (start, _) in enumerate(answer.offsets):
            # Offsets count the blank before the answer; its first token begins at the answer itself.
            index = bisect_right(starts, question.start + max(0, start - 1)) - 1
            matches = number == 0 or shown.encoding.ids[index] == answer.ids[number]
            if index in place_of and matches:
                # The first token is the hard one: those behind it follow from the token before.
                row.pointers += [(predicts + number, place_of[index])] * (FIRST_TOKEN_WEIGHT if number == 0 else 1)
        return True


def unambiguous(questions: list[Question]) -> list[Question]:
    """Those questions that are asked with one answer only in the document."""
    answers: dict[str, set[str]] = defaultdict(set)
    for question in questions:
        answers[question.text.lower()].add(question.answer)
    return [question for question in questions if len(answers[question.text.lower()]) == 1]


def sentence_bounds(text: str, start: int, size: int) -> tuple[int, int]:
    """Character range of the sentence or line around an answer."""
    low = max(text.rfind(". ", 0, start), text.rfind("\n", 0, start))
    ends = [end for end in (text.find(". ", start + size), text.find("\n", start + size)) if end >= 0]
    return low + 1, min(ends) + 1 if ends else len(text)
