"""The blocks of a training document: written questions with their contexts, prose, facts, tables and lists."""

import random
from dataclasses import dataclass, replace

from specprefill_cli.training.cloze import cloze_block, thin_words
from specprefill_cli.training.corpus import ContextQuestions
from specprefill_cli.training.renaming import Names, rename_blocks
from specprefill_cli.training.synthesis import Block, Question, fact_block, key_value_block, table_block
from specprefill_cli.training.topics import Material, Scattered, SingleTopic


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Ratios from 0 to 1, with the defaults of the shipped recipe.

    written: of contexts with written questions among the blocks of a document that has them
    renamed: of documents with replaced names and numbers; noisy: of written questions that lose words
    cloze: of passages with cloze questions; the others have synthesised facts woven in
    absent: of answerable questions that are followed by an unanswerable question
    single_topic: of documents whose blocks share a topic
    thinned: of documents of which only some chunks are shown
    """

    written: float = 0.8
    renamed: float = 0.4
    noisy: float = 0.15
    cloze: float = 0.5
    absent: float = 0.05
    single_topic: float = 0.6
    thinned: float = 0.3


@dataclass(frozen=True)
class BlockMaker:
    """Draws the blocks of documents; `rng` is the random stream of the rows."""

    material: Material
    names: Names
    recipe: Recipe
    rng: random.Random

    def blocks(self, characters: int, written: bool, topic: Scattered) -> tuple[list[Block], list[Question] | None]:
        """Draw blocks of about `characters` characters, and unanswerable questions on their topic (None: no topic).

        written: whether most blocks are contexts with written questions; else all are prose, facts, tables and lists
        """
        contexts: list[Block] = []
        others: list[Block] = []
        size = 0
        while size < characters:
            draw = self.rng.random()
            if written and draw < self.recipe.written:
                block = self.context_block(topic.group())
                contexts.append(block)
            else:
                block = self.other_block(draw, topic, characters - size)
                others.append(block)
            size += len(block.text) + 2
        neighbours = self.neighbours(topic, written) if isinstance(topic, SingleTopic) else []
        if self.rng.random() < self.recipe.renamed:
            # One call, so that the document and its neighbours' questions get the same names.
            renamed = rename_blocks([*contexts, *neighbours], self.names, self.rng)
            contexts, neighbours = renamed[: len(contexts)], renamed[len(contexts) :]
        blocks = contexts + others
        self.rng.shuffle(blocks)
        unanswered = [question for block in neighbours for question in block.questions]
        return blocks, unanswered if neighbours else None

    def other_block(self, draw: float, topic: Scattered, room: int) -> Block:
        """Draw a table, a list or prose. draw: random number from 0 to 1 that chooses between them."""
        if draw < 0.07:
            return table_block(self.material.book, self.rng)
        if draw < 0.17:
            return key_value_block(self.material.book, self.rng)
        return self.prose_block(topic, room)

    def prose_block(self, topic: Scattered, room: int) -> Block:
        """Draw a passage of text, with cloze questions about it or with synthesised facts woven in."""
        prose = topic.passage()
        shortest = min(len(prose), self.rng.randint(100, 1_400), max(100, room))
        end = prose.find(" ", shortest)
        prose = prose[:end] if end > 0 else prose
        count = max(1, round(len(prose) / self.rng.choice([50, 90, 160])))
        if self.rng.random() < self.recipe.cloze:
            return cloze_block(prose, count, self.rng)
        return fact_block(self.material.book, topic.domain(), prose, count, self.rng, topic.stated)

    def context_block(self, group: ContextQuestions) -> Block:
        """A context with its written questions. Some of them lose words."""
        questions = [Question(*question) for question in group.questions]
        for index, question in enumerate(questions):
            if self.rng.random() < self.recipe.noisy:
                words = thin_words(question.text.split(), 0.15, self.rng)
                questions[index] = replace(question, text=" ".join(words) or question.text)
        return Block(group.context, tuple(questions))

    def neighbours(self, topic: Scattered, written: bool) -> list[Block]:
        """Blocks that follow the document in its source. Their questions fit its topic, but it does not answer them."""
        if written:
            return [self.context_block(topic.group()) for _ in range(2)]
        return [cloze_block(topic.passage(), 4, self.rng) for _ in range(3)]
