"""What rows of the adapter are made from: training questions, passages and facts, with a part held out to measure on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from specprefill_cli.prompting import chat_parts, load_template
from specprefill_cli.training.blocks import BlockMaker
from specprefill_cli.training.corpus import ContextQuestions, dev_grams, question_groups, stream_text
from specprefill_cli.training.questions import PromptFormat
from specprefill_cli.training.recipe import Recipe
from specprefill_cli.training.renaming import names_in
from specprefill_cli.training.smollm2.chooser import DraftRanking
from specprefill_cli.training.smollm2.rows import ChatRow, ChatRowMaker, Mixture
from specprefill_cli.training.synthesis import Block, FactBook
from specprefill_cli.training.topics import Material
from specprefill_cli.training.written import written_documents

# One context in so many is held out, by a hash of its text.
HELD_OUT = 30
# Passages at the end of the text files that only measured rows are filled with.
HELD_OUT_PASSAGES = 200
# Share of the contexts that are used, of sets with many questions on little text or with doubtful answers.
SHARES = {"policyqa": 0.3, "qamr": 0.6}
BLANK = " "


@dataclass(frozen=True)
class ChatRowSource:
    """Loads what a process needs to make rows.

    data: folder with pretrain/, qa/ and dev/; model: folder of the target; characters_per_file: of each text file
    everyday: file of written documents with questions; None: rows without them
    """

    data: Path
    model: Path
    everyday: Path | None = None
    characters_per_file: int = 4_000_000
    mixture: Mixture = field(default_factory=Mixture)

    def makers(self, seed: int, held_out_seed: int = 977) -> tuple[ChatRowMaker, ChatRowMaker]:
        """A maker of training rows, and one of rows about contexts that training never sees."""
        forbidden = dev_grams(self.data)
        groups, _ = question_groups(self.data, forbidden)
        passages = list(stream_text(self.data, self.characters_per_file, forbidden))
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        template = chat_format(self.model)
        ranking = DraftRanking()
        training = [group for group in groups if not held_out(group) and used(group)]
        measured = [group for group in groups if held_out(group) and group.source.startswith("squad")]

        everyday = [] if self.everyday is None else written_documents(self.everyday)

        def maker(
            contexts: list[ContextQuestions], texts: list[str], stream: int, everyday: Sequence[Block] = ()
        ) -> ChatRowMaker:
            material = Material(texts, contexts, FactBook())
            recipe = Recipe(written=0.85, renamed=0.15, noisy=0.1, cloze=0.2)
            blocks = BlockMaker(material, names_in(texts), recipe, random.Random(stream))
            return ChatRowMaker(tokenizer, template, material, blocks, self.mixture, ranking, everyday)

        return maker(training, passages[:-HELD_OUT_PASSAGES], seed, everyday), maker(
            measured, passages[-HELD_OUT_PASSAGES:], held_out_seed
        )


def used(group: ContextQuestions) -> bool:
    """Whether a context belongs to the share of its set that is used."""
    return crc32(group.context[::-1].encode()) % 100 < 100 * SHARES.get(group.source.split("/")[0], 1.0)


def held_out(group: ContextQuestions) -> bool:
    """Whether a context is kept for measuring."""
    return crc32(group.context.encode()) % HELD_OUT == 0


def held_out_questions(data: Path) -> list[dict]:
    """Question rows as `evaluate` reads them, on contexts of SQuAD's kind that training never sees."""
    groups, _ = question_groups(data, dev_grams(data))
    return [
        {"id": f"{number}-{place}", "context": group.context, "question": question, "answers": [answer]}
        for number, group in enumerate(groups)
        if held_out(group) and group.source.startswith("squad")
        for place, (question, answer, _) in enumerate(group.questions)
    ]


def chat_format(model: Path) -> PromptFormat:
    """The fixed texts of the template `smollm2` in the model's chat format."""
    prefix, before, after = chat_parts(load_template("smollm2"), AutoTokenizer.from_pretrained(model))
    return PromptFormat(prefix, before.removesuffix(BLANK), after)


def measured_rows(maker: ChatRowMaker, questions: int) -> list[ChatRow]:
    """Rows with at least `questions` questions together, always the same for a fresh maker."""
    rows: list[ChatRow] = []
    while sum(int(row.segments.max()) for row in rows) < questions:
        rows.append(maker.row())
    return rows
