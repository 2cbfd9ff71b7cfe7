"""What rows of the adapter are made from: training questions, passages and facts, with a part held out to measure on."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from specprefill_cli.answering.session import open_session
from specprefill_cli.documents.document import Collection, one_page_document
from specprefill_cli.prefill.importance import transfer
from specprefill_cli.prefill.prefix_cache import DocumentCache, PrefixCache
from specprefill_cli.prefill.registry import SCORERS
from specprefill_cli.prefill.selection import add_neighbours, chunk_scores, rank_chunks
from specprefill_cli.prompting import chat_parts, load_template
from specprefill_cli.settings import Settings
from specprefill_cli.training.blocks import BlockMaker, Recipe
from specprefill_cli.training.corpus import ContextQuestions, dev_grams, question_groups, stream_text, written_documents
from specprefill_cli.training.positions import CHUNK
from specprefill_cli.training.questions import PromptFormat
from specprefill_cli.training.renaming import names_in
from specprefill_cli.training.smollm2.rows import ChatRow, ChatRowMaker, Mixture
from specprefill_cli.training.synthesis import Block, FactBook
from specprefill_cli.training.topics import Material

# Every n-th context is held out, by a hash of its text.
HELD_OUT = 30
# Passages at the end of the text files that only fill measured rows.
HELD_OUT_PASSAGES = 200
HELD_OUT_SEED = 977
# Share of the contexts that are used, of sets with many questions on little text or with doubtful answers.
SHARES = {"policyqa": 0.3, "qamr": 0.6}
# Memory for documents that are asked about again.
CACHE_BYTES = 2**27


@dataclass(frozen=True)
class ChatRowSource:
    """Loads what a process needs to make rows.

    data: folder with pretrain/, qa/ and dev/; model: folder of the target; characters_per_file: of each text file
    everyday: file of written documents with questions
    """

    data: Path
    model: Path
    everyday: Path
    characters_per_file: int = 4_000_000
    mixture: Mixture = field(default_factory=Mixture)

    def makers(self, seed: int) -> tuple[ChatRowMaker, ChatRowMaker]:
        """Makers of training rows, and of rows about contexts that training never sees."""
        forbidden = dev_grams(self.data)
        groups, _ = question_groups(self.data, forbidden)
        passages = list(stream_text(self.data, self.characters_per_file, forbidden))
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        # The fixed texts of the template `smollm2` in the model's chat format.
        template = PromptFormat.of(*chat_parts(load_template("smollm2"), AutoTokenizer.from_pretrained(self.model)))
        ranking = DraftRanking()
        training = [group for group in groups if not is_held_out(group) and is_used(group)]
        measured = [group for group in groups if is_held_out(group) and group.source.startswith("squad")]

        def maker(
            contexts: list[ContextQuestions], texts: list[str], stream: int, everyday: Sequence[Block]
        ) -> ChatRowMaker:
            material = Material(texts, contexts, FactBook())
            recipe = Recipe(written=0.85, renamed=0.15, noisy=0.1, cloze=0.2)
            blocks = BlockMaker(material, names_in(texts), recipe, random.Random(stream))
            return ChatRowMaker(tokenizer, template, blocks, self.mixture, ranking, everyday)

        return (
            maker(training, passages[:-HELD_OUT_PASSAGES], seed, written_documents(self.everyday)),
            maker(measured, passages[-HELD_OUT_PASSAGES:], HELD_OUT_SEED, ()),
        )


class DraftRanking:
    """Ranks chunks of a tokenizer other than the draft's own; raises SpecprefillError where the pair is missing."""

    def __init__(self) -> None:
        self.settings = Settings(pair="tiny", mode="select", max_new_tokens=1, devices="cpu", scorer="blend")
        cache = DocumentCache(draft=PrefixCache(capacity_bytes=CACHE_BYTES))
        self.session = open_session(self.settings, draft=True, target_weights=False).with_cache(cache)

    def __call__(self, text: str, question: str, offsets: np.ndarray) -> Sequence[int]:
        """Indices of the document's chunks, the best first; offsets: [n, 2] character ranges of its tokens."""
        document = one_page_document("row", text)
        request = self.session.request(Collection((document,)), question, self.settings)
        scores = SCORERS[request.scorer].score(request)
        importance = transfer(scores.importance, request.draft_prompt.offsets, offsets)
        return rank_chunks(add_neighbours(chunk_scores(importance, CHUNK), scores.neighbours)).tolist()


def is_used(group: ContextQuestions) -> bool:
    """Whether a context belongs to the share of its set that is used."""
    return crc32(group.context[::-1].encode()) % 100 < 100 * SHARES.get(group.source.split("/")[0], 1.0)


def is_held_out(group: ContextQuestions) -> bool:
    """Whether a context is kept for measuring."""
    return crc32(group.context.encode()) % HELD_OUT == 0


def held_out_questions(data: Path) -> list[dict]:
    """Question rows as `evaluate` reads them, on contexts of SQuAD's kind that training never sees."""
    groups, _ = question_groups(data, dev_grams(data))
    return [
        {"id": f"{number}-{place}", "context": group.context, "question": question, "answers": [answer]}
        for number, group in enumerate(groups)
        if is_held_out(group) and group.source.startswith("squad")
        for place, (question, answer, _) in enumerate(group.questions)
    ]


def rows_to_measure(maker: ChatRowMaker, questions: int) -> list[ChatRow]:
    """Rows with at least `questions` questions together, always the same for a fresh maker."""
    rows: list[ChatRow] = []
    while sum(int(row.segments.max()) for row in rows) < questions:
        rows.append(maker.row())
    return rows
