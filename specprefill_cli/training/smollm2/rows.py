"""Training rows of the adapter: a document, whole or thinned to chunks like in `select`, and several questions about it."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from specprefill_cli.prefill.fates import GAP_SHARE, shorten_gaps
from specprefill_cli.prefill.selection import complete_sentences, keep_chunks
from specprefill_cli.training.blocks import BlockMaker
from specprefill_cli.training.positions import CHUNK
from specprefill_cli.training.questions import PromptFormat, drop_ambiguous, known_id
from specprefill_cli.training.synthesis import NOT_FOUND, Block, Question, join_blocks
from specprefill_cli.training.topics import Scattered, draw_topic

END = "<|im_end|>"
# Given a document's text, a question and the character ranges [n, 2] of its tokens: chunk indices, the best first.
ChunkRanking = Callable[[str, str, np.ndarray], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """What rows are made of; ratios from 0 to 1.

    thinned: of rows whose document is thinned to the draft's choice; the others show it whole
    compact: of thinned rows whose gaps are shortened (`--positions compact`); the others keep their positions
    absent: of questions in a row that the shown text does not answer
    sentences: of thinned rows whose chunks bring the rest of the sentences that they cut
    everyday_share: of rows with a written everyday document, where there are such documents
    single_topic: of documents whose parts share a topic; written: of their parts that bring written questions
    questions: most of a row; chunks: fewest and most of a thinned document
    tokens: of a row at most
    """

    thinned: float = 0.55
    compact: float = 0.6
    absent: float = 0.1
    sentences: float = 0.75
    everyday_share: float = 0.5
    single_topic: float = 0.75
    written: float = 0.8
    questions: int = 6
    chunks: tuple[int, int] = (3, 14)
    tokens: int = 900


@dataclass(frozen=True, kw_only=True)
class ChatRow:
    """A row of S tokens: prefix and document, then questions with answers that do not see each other.

    tokens, positions: [S]; segments: [S], 0 for what all questions see, else the number of the question
    answers: [A] indices of the tokens that predict an answer's token; targets: [A] what they predict; weights: [A]
    """

    tokens: Tensor
    positions: Tensor
    segments: Tensor
    answers: Tensor
    targets: Tensor
    weights: Tensor

    def mask(self) -> Tensor:
        """Which tokens [S, S] each token attends to."""
        order = torch.arange(len(self.tokens))
        shared = (self.segments == 0)[None] | (self.segments[None] == self.segments[:, None])
        return shared & (order[None] <= order[:, None])


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The part of a document that a row shows.

    ids: [n] of the document's tokens; offsets: [n, 2] their characters; kept: [k] indices of those that are shown
    positions: [k] of the shown tokens; end: the position after them
    """

    text: str
    ids: np.ndarray
    offsets: np.ndarray
    kept: np.ndarray
    positions: np.ndarray
    end: int

    def holds(self, question: Question) -> bool:
        """Whether every token of the answer is shown."""
        first = bisect_right(self.offsets[:, 0], question.start) - 1
        last = bisect_left(self.offsets[:, 0], question.start + len(question.answer))
        return set(range(first, last)) <= set(self.kept.tolist())

    def mentions(self, answer: str) -> bool:
        """Whether the shown text has the answer's words anywhere; spans on the two sides of a gap are read apart."""
        edges = np.flatnonzero(np.diff(self.kept) > 1) + 1
        spans = (self.text[self.offsets[span[0], 0] : self.offsets[span[-1], 1]] for span in np.split(self.kept, edges))
        return any(answer.lower() in span.lower() for span in spans)


class ChatRowMaker:
    """Makes rows in the prompt format of `smollm2`; all draws come from a single stream."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: PromptFormat,
        block_maker: BlockMaker,
        mixture: Mixture,
        rank_chunks: ChunkRanking,
        everyday: Sequence[Block] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.block_maker = block_maker
        self.mixture = mixture
        self.rank_chunks = rank_chunks
        self.everyday = everyday
        self.rng: random.Random = block_maker.rng
        self.prefix = self.ids(template.prefix)
        self.before = self.ids(template.before_question)
        self.after = self.ids(template.after_question)
        self.end = known_id(tokenizer, END)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def row(self) -> ChatRow:
        """The next row; documents without a question that fits are drawn again."""
        while True:
            if self.everyday and self.rng.random() < self.mixture.everyday_share:
                made = self.everyday_row(self.rng.choice(self.everyday))
            else:
                made = self.thinned_row() if self.rng.random() < self.mixture.thinned else self.full_row()
            if made is not None:
                return made

    def full_row(self) -> ChatRow | None:
        """A written context, alone or with up to two others, shown whole; the row asks about it."""
        topic = self.topic()
        contexts = [self.block_maker.context_block(topic.group()) for _ in range(self.rng.choice([1, 1, 1, 2, 3]))]
        order = [contexts[0], *(Block(block.text) for block in contexts[1:])]
        self.rng.shuffle(order)
        document = join_blocks(order, "\n\n")
        shown = self.show_document(document.text, None)
        # Foreign questions come from what follows in the topic's source, or from random contexts.
        foreign = self.block_maker.neighbours(topic, True)
        return self.add_questions(shown, document, [question for block in foreign for question in block.questions])

    def thinned_row(self) -> ChatRow | None:
        """A long document, of which the row shows the draft's choice for some of its questions."""
        topic = self.topic()
        characters = int(self.rng.uniform(4_000, 16_000))
        blocks, foreign = self.block_maker.blocks(characters, self.rng.random() < self.mixture.written, topic)
        document = join_blocks(blocks, self.rng.choice(["\n\n", "\n\n", "\n"]))
        questions = drop_ambiguous(document.questions)
        self.rng.shuffle(questions)
        chosen = questions[: self.rng.randint(1, 3)]
        if not chosen:
            return None
        near = self.rng.choice(questions[: self.mixture.questions])
        nearby = [question for question in questions if abs(question.start - near.start) < 400]
        shown = self.show_document(document.text, chosen)
        return self.add_questions(shown, Block(document.text, (*chosen, *nearby)), foreign or [])

    def everyday_row(self, document: Block) -> ChatRow | None:
        """A written document, of which the row shows the draft's choice for up to three questions."""
        answered = [question for question in document.questions if question.start >= 0]
        chosen = self.rng.sample(answered, min(self.rng.randint(1, 3), len(answered)))
        return self.add_questions(self.show_document(document.text, chosen), document, []) if chosen else None

    def topic(self) -> Scattered:
        return draw_topic(self.block_maker.material, self.rng, self.mixture.single_topic)

    def show_document(self, text: str, questions: Sequence[Question] | None) -> Shown:
        """A document as it is shown: the draft's chunks for some questions; None: whole."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids, offsets = np.array(encoding.ids), np.array(encoding.offsets)
        if questions is None:
            kept = np.arange(len(ids))[: self.mixture.tokens]
            positions, end = len(self.prefix) + kept, len(self.prefix) + len(kept)
        else:
            kept = self.kept_tokens(text, offsets, questions)
            positions, end = self.thinned_positions(kept, len(ids))
        return Shown(text=text, ids=ids, offsets=offsets, kept=kept, positions=positions, end=end)

    def kept_tokens(self, text: str, offsets: np.ndarray, questions: Sequence[Question]) -> np.ndarray:
        """Indices of the tokens in the draft's chunks for some questions, as `select` keeps them."""
        count = self.rng.randint(*self.mixture.chunks)
        rankings = [self.rank_chunks(text, question.text, offsets) for question in questions]
        # The best chunk of each question, then the second-best of each.
        order = dict.fromkeys(chunk for chunks in zip_longest(*rankings) for chunk in chunks if chunk is not None)
        in_sentences = self.rng.random() < self.mixture.sentences
        widen = partial(complete_sentences, text, offsets) if in_sentences else lambda start, end: (start, end)
        shown, _ = keep_chunks(torch.tensor(list(order)), count * CHUNK, len(offsets), CHUNK, widen)
        return shown.nonzero()[:, 0].numpy()

    def thinned_positions(self, kept: np.ndarray, tokens: int) -> tuple[np.ndarray, int]:
        """Positions [k] of kept document tokens, and the position after the document."""
        first = len(self.prefix)
        if self.rng.random() >= self.mixture.compact:
            return first + kept, first + tokens
        places = torch.cat([torch.arange(first), first + torch.from_numpy(kept)])
        shortened = shorten_gaps(places, first + tokens, len(places) + GAP_SHARE * len(places))
        return shortened.positions[first:].numpy(), shortened.end

    def add_questions(self, shown: Shown, document: Block, foreign: Sequence[Question]) -> ChatRow | None:
        """A row of the shown text with questions that it answers, and some that it does not; None where none fits."""
        answered, absent = [], []
        for question in dict.fromkeys(drop_ambiguous(document.questions)):
            if question.start >= 0 and shown.holds(question):
                answered.append(question)
            elif not shown.mentions(question.answer):
                absent.append(question)
        absent += [question for question in foreign if not shown.mentions(question.answer)]
        if not answered:
            return None
        self.rng.shuffle(answered)
        answered = answered[: self.mixture.questions]
        ratio = self.mixture.absent / (1 - self.mixture.absent)
        count = min(int(len(answered) * ratio + self.rng.random()), len(absent))
        refused = [Question(question.text, NOT_FOUND, -1) for question in self.rng.sample(absent, count)]
        return self.assemble(shown, answered + refused)

    def assemble(self, shown: Shown, questions: Sequence[Question]) -> ChatRow | None:
        """The row of a shown document and its questions, as many as have room."""
        tokens = [*self.prefix, *shown.ids[shown.kept].tolist()]
        positions = [*range(len(self.prefix)), *shown.positions.tolist()]
        segments = [0] * len(tokens)
        answers: list[int] = []
        weights: list[float] = []
        for number, question in enumerate(questions, 1):
            question_ids = [*self.before, *self.ids(" " + question.text), *self.after]
            answer = [*self.ids(question.answer), self.end]
            first, size = len(tokens) + len(question_ids), len(question_ids) + len(answer)
            if len(tokens) + size > self.mixture.tokens:
                break
            answers += range(first - 1, first + len(answer) - 1)
            # Between equal weights of questions and equal weights of tokens: long answers count more, but not in proportion.
            weights += [len(answer) ** -0.5] * len(answer)
            tokens += question_ids + answer
            positions += range(shown.end, shown.end + size)
            segments += [number] * size
        if not answers:
            return None
        ids = torch.tensor(tokens)
        predicting = torch.tensor(answers)
        return ChatRow(
            tokens=ids,
            positions=torch.tensor(positions),
            segments=torch.tensor(segments),
            answers=predicting,
            targets=ids[predicting + 1],
            weights=torch.tensor(weights),
        )
