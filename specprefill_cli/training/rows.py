"""Training rows: token ids, positions with gaps, tokens that count in the loss, and targets of the guided heads."""

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from specprefill_cli.files import BUNDLED_FOLDER
from specprefill_cli.prompting import load_template
from specprefill_cli.training.blocks import BlockMaker, Recipe
from specprefill_cli.training.corpus import ContextQuestions, dev_grams, question_groups, stream_text
from specprefill_cli.training.positions import CHUNK, MAX_GAP_BEFORE_SUFFIX, skipped_positions, thinned_positions
from specprefill_cli.training.questions import (
    PAD,
    PromptFormat,
    QuestionWriter,
    Row,
    ShownDocument,
    drop_ambiguous,
    known_id,
)
from specprefill_cli.training.renaming import names_in
from specprefill_cli.training.synthesis import NOT_FOUND, Block, FactBook, Question, join_blocks
from specprefill_cli.training.topics import Material, draw_topic

CHARACTERS_PER_TOKEN = 3.9
# Of the draft, in tokens.
CONTEXT = 16_384
# (longest row, part of the row that its document takes).
DOCUMENT_RATIOS = ((512, 0.45), (1_024, 0.52), (2_048, 0.65), (1 << 30, 0.8))


class RowMaker:
    """Makes rows from passages of text, question groups and synthesised facts. All draws come from a single random stream."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: PromptFormat,
        passages: Sequence[str],
        groups: Sequence[ContextQuestions],
        seed: int = 0,
    ) -> None:
        self.recipe = Recipe()
        self.rng = random.Random(seed)
        self.material = Material(passages, groups, FactBook())
        self.block_maker = BlockMaker(self.material, names_in(passages), self.recipe, self.rng)
        self.writer = QuestionWriter(tokenizer, template)
        self.tokenizer = tokenizer
        self.pad = known_id(tokenizer, PAD)
        self.recent_questions: deque[Question] = deque(maxlen=200)

    def positions(self, length: int) -> np.ndarray:
        return skipped_positions(length, len(self.writer.prefix), CONTEXT, self.rng)

    def copy_row(self, length: int) -> Row:
        """Random tokens with repeated segments. They teach copying from the context fastest."""
        tokens = [self.writer.prefix[0]]
        answers: list[int] = []
        while len(tokens) < length:
            size = self.rng.randint(4, 40)
            if len(tokens) > 60 and self.rng.random() < 0.6:
                start = self.rng.randint(1, len(tokens) - size - 1) if len(tokens) > size + 2 else 1
                answers += range(len(tokens) + 1, min(len(tokens) + size, length) - 1)
                tokens += tokens[start : start + size]
            else:
                tokens += [self.rng.randrange(256, self.writer.end) for _ in range(size)]
        tokens = tokens[:length]
        return Row(tokens, self.positions(length), [index for index in answers if index < length - 1])

    def text_row(self, length: int) -> Row:
        """Passages of ordinary text, without questions."""
        tokens = [self.writer.prefix[0]]
        while len(tokens) < length:
            tokens += [*self.writer.ids(self.rng.choice(self.material.passages)), self.writer.end]
        return Row(tokens[:length], self.positions(length))

    def document_row(self, length: int, written_ratio: float) -> Row:
        """A document of blocks, followed by questions. Some documents keep only a part of their chunks, as in `select`.

        written_ratio: probability that most of the document's questions are written
        """
        room = int(length * next(ratio for longest, ratio in DOCUMENT_RATIOS if length <= longest))
        thinned = self.rng.random() < self.recipe.thinned
        # The context must hold the positions of all document tokens, and of the questions and answers after them.
        longest = CONTEXT - length - MAX_GAP_BEFORE_SUFFIX
        size = min(room * self.rng.uniform(1.5, 4.0), longest) if thinned else room
        document, unanswered = self.document(int(size * CHARACTERS_PER_TOKEN), written_ratio)
        encoding = self.tokenizer.encode(document.text, add_special_tokens=False)
        # Each access of `ids` copies the list.
        ids = encoding.ids
        # The document may have more tokens than its characters suggest.
        offsets = encoding.offsets[: longest if thinned else None]
        starts, end = [start for start, _ in offsets], offsets[-1][1]
        questions = [question for question in document.questions if question.start + len(question.answer) <= end]
        kept = self.kept_tokens(starts, questions, room) if thinned else np.arange(len(starts))
        # Blocks may overshoot, but the questions keep their room.
        kept = kept[:room]
        prefix = self.writer.prefix
        row = Row(prefix + [ids[index] for index in kept], np.empty(0, dtype=np.int64))
        row_index = {int(index): number + len(prefix) for number, index in enumerate(kept)}
        self.ask(row, ShownDocument(document.text, ids, starts, row_index), questions, unanswered, length)
        if thinned:
            row.positions = thinned_positions(kept + len(prefix), length, len(prefix), CONTEXT, self.rng)
        else:
            row.positions = self.positions(length)
        row.tokens += [self.pad] * (length - len(row.tokens))
        return row

    def document(self, characters: int, written_ratio: float) -> tuple[Block, list[Question]]:
        """Draw a document with its questions in random order, and questions that it does not answer."""
        topic = draw_topic(self.material, self.rng, self.recipe.single_topic)
        written = self.rng.random() < written_ratio
        blocks, unanswered = self.block_maker.blocks(characters, written, topic)
        document = join_blocks(blocks, self.rng.choice(["\n\n", "\n\n", "\n"]))
        questions = drop_ambiguous(document.questions)
        self.rng.shuffle(questions)
        # A stated fact answers foreign questions about it too.
        return Block(document.text, tuple(questions)), [
            question
            for question in (self.recent_questions if unanswered is None else unanswered)
            if question.fact is None or question.fact not in topic.stated
        ]

    def kept_tokens(self, starts: list[int], questions: list[Question], room: int) -> np.ndarray:
        """Choose whole chunks of up to `room` tokens: first those with answers, then random ones. Returns token indices."""
        max_chunks = max(1, room // CHUNK)
        gold: list[int] = []
        for question in questions[: max(1, room // (6 * CHUNK))]:
            if question.start >= 0:
                chunk = (bisect_right(starts, question.start) - 1) // CHUNK
                gold += [chunk, max(0, chunk - 1)]
        others = list(range(-(-len(starts) // CHUNK)))
        self.rng.shuffle(others)
        chosen = list(dict.fromkeys(gold + others))[:max_chunks]
        kept = (np.array(sorted(chosen))[:, None] * CHUNK + np.arange(CHUNK)).reshape(-1)
        return kept[kept < len(starts)]

    def ask(
        self,
        row: Row,
        document: ShownDocument,
        questions: Sequence[Question],
        unanswered: Sequence[Question],
        length: int,
    ) -> None:
        """Append questions while they fit. Some are followed by a question that the document does not answer."""
        failures = 0
        for question in questions:
            if self.rng.random() < self.recipe.absent and unanswered:
                foreign = self.rng.choice(unanswered)
                if foreign.answer.lower() not in document.text.lower():
                    self.writer.append(row, document, Question(foreign.text, NOT_FOUND, -1), length)
            failures += not self.writer.append(row, document, question, length)
            # A shorter question may fit after a long question that did not.
            if failures > 3:
                break
        self.recent_questions.extend(questions[:2])


def load_maker(data: Path, characters_per_file: int, skipped_characters: int = 0) -> RowMaker:
    """A maker of rows from text and questions of a folder."""
    forbidden = dev_grams(data)
    groups, dropped = question_groups(data, forbidden)
    passages = list(stream_text(data, characters_per_file, forbidden, skipped_characters))
    print(
        f"{len(passages):,} passages, {len(groups):,} contexts with {sum(len(g.questions) for g in groups):,} "
        f"questions; {dropped:,} rows dropped for sharing 8 words with the dev set",
        flush=True,
    )
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / "target" / "tokenizer.json"))
    return RowMaker(tokenizer, prompt_format(), passages, groups)


def prompt_format() -> PromptFormat:
    """Fixed texts of the template `tiny`, so that training uses the product's prompts."""
    return PromptFormat.of(*load_template("tiny").text_parts())
