"""The check behind an answer: a second question to the target, over the KV of the first, whether the document answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specprefill_cli.decoding.runner import SequenceRunner
from specprefill_cli.models.passes import ForwardGenerator
from specprefill_cli.models.tokenizers import encode_text
from specprefill_cli.prompting import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHECK = "\n\nDoes the document state the answer to exactly this question? Answer yes or no."
YES, NO = ("yes", "Yes", "YES"), ("no", "No", "NO")


def denial(runner: SequenceRunner, prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> ForwardGenerator[float]:
    """Ask the target whether the document answers the question; return the log-odds that it says no.

    The question stays in the cache, and the check takes the place of the answer and of what precedes it.
    runner: of the target, at any place of the answer; only its prompt remains
    """
    suffix = prompt.tokens[prompt.question[1] :].tolist()
    runner.rollback(-len(suffix))
    logits = (yield from runner.read([*encode_text(tokenizer, CHECK)[0], *suffix]))[-1]
    yes, no = ([encode_text(tokenizer, word)[0][0] for word in words] for words in (YES, NO))
    return float(logits[no].logsumexp(0) - logits[yes].logsumexp(0))
