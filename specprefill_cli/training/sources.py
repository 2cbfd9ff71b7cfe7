"""The source of training rows, loaded inside the worker process that uses it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specprefill_cli.prompting import load_template
from specprefill_cli.training.corpus import dev_grams, question_groups, stream_text
from specprefill_cli.training.questions import PromptFormat
from specprefill_cli.training.rows import RowMaker
from specprefill_cli.training.tokenizer import load_tokenizer


@dataclass(frozen=True)
class RowSource:
    """Called with a seed, loads text, questions and tokenizer, and returns a maker of rows."""

    data: Path
    tokenizer: Path
    characters_per_file: int
    context: int
    skipped_characters: int = 0

    def __call__(self, seed: int) -> RowMaker:
        forbidden = dev_grams(self.data)
        groups, dropped = question_groups(self.data, forbidden)
        passages = list(stream_text(self.data, self.characters_per_file, forbidden, self.skipped_characters))
        print(
            f"{len(passages):,} passages, {len(groups):,} contexts with {sum(len(g.questions) for g in groups):,} "
            f"questions; {dropped:,} rows dropped for sharing 8 words with the dev set",
            flush=True,
        )
        tokenizer = load_tokenizer(self.tokenizer)
        return RowMaker(tokenizer, prompt_format(), passages, groups, self.context, seed)


def prompt_format() -> PromptFormat:
    """Fixed texts of the template `tiny`, so that training uses the product's prompts."""
    prefix, before, after = load_template("tiny").text_parts()
    # The blank before the question belongs to the question's first token.
    return PromptFormat(prefix, before.removesuffix(" "), after)
