"""Prompt templates, and the prompts that they make from documents and question."""

import os
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2.exceptions import TemplateError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.files import packaged_folder, read_toml
from specprefill_cli.models.sources.tokenizers import encode_template, encode_text

# Placeholders for the variables: single words of letters, so that no chat template changes them.
MARKS = {"document": "SPECPREFILLDOCUMENTMARK", "question": "SPECPREFILLQUESTIONMARK"}


@dataclass(frozen=True)
class Template:
    """A prompt template: either plain `text`, or `system` and `user` messages for a tokenizer's chat template.

    whole: `user` for a question about the whole document; None: the same
    context: text below the document that is data as well and is never thinned
    """

    name: str
    text: str | None
    system: str | None
    user: str | None
    whole: str | None = None
    context: str = ""

    def for_whole(self) -> "Template":
        return replace(self, user=self.whole or self.user)

    def text_parts(self) -> tuple[str, str, str]:
        """The fixed texts before the document, between document and question, and after the question."""
        return split_at_marks(string.Template(self.text or "").substitute(MARKS))


def split_at_marks(text: str) -> tuple[str, str, str]:
    """The texts before, between and after the two marks."""
    prefix, _, following = text.partition(MARKS["document"])
    between, _, suffix = following.partition(MARKS["question"])
    return prefix, between, suffix


def load_template(name: str) -> Template:
    """Read a packaged template by name, or a `.toml` file. Raises UsageError if it is missing or faulty."""
    folder = packaged_folder("prompts")
    path = Path(name).expanduser() if name.endswith(".toml") else folder / f"{name}.toml"
    if not os.path.isfile(path):
        names = ", ".join(sorted(template.stem for template in folder.glob("*.toml")))
        raise UsageError(f"prompt '{name}': no such template; known are {names}, or give the path of a .toml file")
    entries = read_toml(path, f"prompt {path}")
    fault = template_fault(entries)
    if fault:
        raise UsageError(f"prompt {path}: {fault}")
    return Template(path.stem, entries.get("text"), entries.get("system"), entries.get("user"), entries.get("whole"))


def template_fault(entries: Mapping[str, Any]) -> str | None:
    """Describe the first fault in a template's keys, types and variables; None for a valid template."""
    unknown = sorted(set(entries) - {"description", "text", "system", "user", "whole"})
    if unknown:
        return f"unknown key '{unknown[0]}'; use description, text, or system and user, and whole"
    if ("text" in entries) == ("user" in entries) or ("text" in entries and entries.keys() & {"system", "whole"}):
        return "give exactly one of `text` (plain) and `user` (chat, which may have `system` and `whole`)"
    if not all(isinstance(value, str) for value in entries.values()):
        return "every value must be a string in quotes"
    if set(string.Template(entries.get("system", "")).get_identifiers()) & set(MARKS):
        return "`system` is fixed text; write $document and $question in `user`"
    for body in (string.Template(entries[key]) for key in ("text", "user", "whole") if key in entries):
        marks = re.findall("|".join(MARKS.values()), body.safe_substitute(MARKS))
        if not body.is_valid() or set(body.get_identifiers()) != set(MARKS) or marks != list(MARKS.values()):
            return "write $document and then $question, once each and no other variable; a dollar sign is $$"
    return None


@dataclass(frozen=True)
class Prompt:
    """A prompt in a tokenizer's tokens.

    tokens: [M] ids; document, question: token ranges [start, end) in the prompt
    offsets: [n, 2] character range of each document token in the document's text
    """

    tokens: Tensor
    document: tuple[int, int]
    question: tuple[int, int]
    offsets: np.ndarray

    @property
    def length(self) -> int:
        return len(self.tokens)


def chat_parts(template: Template, tokenizer: PreTrainedTokenizerBase) -> tuple[str, str, str]:
    """The chat template's text before the document, between document and question, and after the question."""
    if not tokenizer.chat_template:
        cause = f"{tokenizer.name_or_path} has no chat template"
        raise SpecprefillError(f"prompt '{template.name}': {cause}; use --prompt tiny or another plain one")
    user = string.Template(template.user or "").substitute(MARKS)
    system = [{"role": "system", "content": template.system}] if template.system else []
    fill = partial(
        tokenizer.apply_chat_template,
        tokenize=False,
        add_generation_prompt=True,
        # Without this, Qwen3 would reason aloud first; other templates ignore it.
        enable_thinking=False,
        # Llama 3 would insert today's date and so invalidate the caches every day; this date is its own default.
        date_string="26 Jul 2024",
    )
    try:
        try:
            text = str(fill([*system, {"role": "user", "content": user}]))
        except TemplateError:
            if not system:
                raise
            # Some templates refuse the system role: put its text at the start of the user's message.
            text = str(fill([{"role": "user", "content": f"{template.system}\n\n{user}"}]))
    except TemplateError as error:
        raise SpecprefillError(f"prompt '{template.name}': the model's chat template failed ({error})") from error
    if any(text.count(mark) != 1 for mark in MARKS.values()):
        cause = "the model's chat template does not show document and question once each"
        raise SpecprefillError(f"prompt '{template.name}': {cause}")
    return split_at_marks(text)


def encode_prompt(
    template: Template,
    document: str,
    question: str,
    tokenizer: PreTrainedTokenizerBase,
    opening: str = "",
    encode_document: Callable[[PreTrainedTokenizerBase, str], tuple[list[int], np.ndarray]] = encode_text,
) -> Prompt:
    """Fill a template, and tokenise it piece by piece, so that the token ranges of document and question are exact.

    Document, context and question are data: special tokens are parsed only in trusted pieces, the answer's `opening` included.
    Raises SpecprefillError if the tokenizer has no chat template, or its chat template loses a variable.
    """
    if template.text is None:
        prefix, between, suffix = chat_parts(template, tokenizer)
    else:
        prefix, between, suffix = template.text_parts()
        prefix = (tokenizer.bos_token or "") + prefix
    # A blank before the question belongs to the question's first token, as in running text.
    blank = " " if between.endswith(" ") else ""
    before = encode_template(tokenizer, prefix)
    document_tokens, offsets = encode_document(tokenizer, document)
    context_tokens, _ = encode_text(tokenizer, template.context)
    middle = [*context_tokens, *encode_template(tokenizer, between.removesuffix(" "))]
    question_tokens, _ = encode_text(tokenizer, blank + question.strip())
    after = encode_template(tokenizer, suffix + opening)
    document_end = len(before) + len(document_tokens)
    question_start = document_end + len(middle)
    return Prompt(
        tokens=torch.tensor([*before, *document_tokens, *middle, *question_tokens, *after], dtype=torch.long),
        document=(len(before), document_end),
        question=(question_start, question_start + len(question_tokens)),
        offsets=offsets,
    )
