"""Prompt templates: files with named variables, the user's folder before the package's."""

from __future__ import annotations

import os
import re
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jinja2.exceptions import TemplateError
from torch import Tensor

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.models.tokenizers import encode_template, encode_text
from specprefill_cli.resources import packaged_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DocumentEncoder = Callable[["PreTrainedTokenizerBase", str], tuple[list[int], np.ndarray]]
# Placeholders for the variables, which no chat template changes: one word of letters only.
MARKS = {"document": "SPECPREFILLDOCUMENTMARK", "question": "SPECPREFILLQUESTIONMARK"}


@dataclass(frozen=True)
class Template:
    """A prompt template: either plain `text`, or `system` and `user` messages for a tokenizer's chat template."""

    name: str
    text: str | None
    system: str | None
    user: str | None

    def text_parts(self) -> tuple[str, str, str]:
        """The fixed texts before the document, between document and question, and after the question."""
        return split_at_marks(string.Template(self.text or "").substitute(MARKS))


def split_at_marks(text: str) -> tuple[str, str, str]:
    """The texts before, between and after the two marks."""
    prefix, _, rest = text.partition(MARKS["document"])
    between, _, suffix = rest.partition(MARKS["question"])
    return prefix, between, suffix


def load_template(name: str, folders: Sequence[Path] = ()) -> Template:
    """Read a template by name from the first folder that has it, else from the package; a path is read as it is.

    Raises UsageError when there is none of that name, and SpecprefillError when the file is not a valid template.
    """
    folders = [*folders, packaged_folder("prompts")]
    places = [Path(name).expanduser()] if name.endswith(".toml") else [folder / f"{name}.toml" for folder in folders]
    for path in places:
        if os.path.isfile(path):
            return parse_template(path)
    names = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise UsageError(
        f"prompt '{name}': no such template; known are {', '.join(names)}, or give the path of a .toml file"
    )


def parse_template(path: Path) -> Template:
    """Read a template file. Raises SpecprefillError, naming the file, where it is not a valid template."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecprefillError(f"prompt {path}: not valid TOML ({error}); fix the file") from error
    except OSError as error:
        raise SpecprefillError(
            f"prompt {path}: cannot be read ({error.strerror or error}); check its permissions"
        ) from error
    fault = key_fault(values) or variable_fault(values)
    if fault:
        raise SpecprefillError(f"prompt {path}: {fault}")
    return Template(path.stem, values.get("text"), values.get("system"), values.get("user"))


def key_fault(values: Mapping[str, Any]) -> str | None:
    """What is wrong with a template's keys and types, or None."""
    unknown = sorted(set(values) - {"description", "text", "system", "user"})
    if unknown:
        return f"unknown key '{unknown[0]}'; use description, text, or system and user"
    if ("text" in values) == ("user" in values) or {"text", "system"} <= set(values):
        return "give exactly one of `text` (plain) and `user` (chat, which may have `system`)"
    if not all(isinstance(value, str) for value in values.values()):
        return "every value must be a string in quotes"
    return None


def variable_fault(values: Mapping[str, str]) -> str | None:
    """What is wrong with the variables in a template's texts, or None."""
    body = string.Template(values.get("text", values.get("user", "")))
    if set(string.Template(values.get("system", "")).get_identifiers()) & set(MARKS):
        return "`system` is fixed text; write $document and $question in `user`"
    marks = re.findall("|".join(MARKS.values()), body.safe_substitute(MARKS))
    if not body.is_valid() or set(body.get_identifiers()) != set(MARKS) or marks != list(MARKS.values()):
        return "write $document and then $question, once each and no other variable; a dollar sign is $$"
    return None


@dataclass(frozen=True)
class PromptText:
    """A prompt as text: trusted pieces, in which special tokens are parsed, around document and question, which are data."""

    prefix: str
    document: str
    before_question: str
    question: str
    suffix: str


@dataclass(frozen=True)
class Prompt:
    """A prompt in the tokens of one tokenizer.

    tokens: [M] ids; document, question: token ranges [start, end) in them
    offsets: [n, 2] character range in the document's text of each document token
    """

    tokens: Tensor
    document: tuple[int, int]
    question: tuple[int, int]
    offsets: np.ndarray

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return len(self.tokens)


def render(
    template: Template, document: str, question: str, tokenizer: PreTrainedTokenizerBase, opening: str = ""
) -> PromptText:
    """Fill a template; messages go through the tokenizer's chat template, which is split at the variables.

    opening: trusted text that the answer is made to begin with, appended to the suffix

    Raises SpecprefillError when the tokenizer has no chat template or loses a variable.
    """
    if template.text is not None:
        prefix, between, suffix = template.text_parts()
        prefix = (tokenizer.bos_token or "") + prefix
    else:
        prefix, between, suffix = chat_parts(template, tokenizer)
    # A blank before the question belongs to its first token, as it does in running text.
    blank = " " if between.endswith(" ") else ""
    return PromptText(prefix, document, between.removesuffix(" "), blank + question.strip(), suffix + opening)


def chat_parts(template: Template, tokenizer: PreTrainedTokenizerBase) -> tuple[str, str, str]:
    """The chat template's text before the document, between document and question, and after the question."""
    if not tokenizer.chat_template:
        raise SpecprefillError(
            f"prompt '{template.name}': {tokenizer.name_or_path} has no chat template; use --prompt tiny or another plain one"
        )
    user = string.Template(template.user or "").substitute(MARKS)
    system = [{"role": "system", "content": template.system}] if template.system else []
    fill = partial(
        tokenizer.apply_chat_template,
        tokenize=False,
        add_generation_prompt=True,
        # Qwen3 would reason aloud first; other templates ignore this.
        enable_thinking=False,
        # Llama 3 would insert today's date, which invalidates caches daily; this is its own default.
        date_string="26 Jul 2024",
    )
    try:
        try:
            text = str(fill([*system, {"role": "user", "content": user}]))
        except TemplateError:
            if not system:
                raise
            # Some templates refuse the system role: its text then opens the user's message.
            text = str(fill([{"role": "user", "content": f"{template.system}\n\n{user}"}]))
    except TemplateError as error:
        raise SpecprefillError(f"prompt '{template.name}': the model's chat template failed ({error})") from error
    if any(text.count(mark) != 1 for mark in MARKS.values()):
        raise SpecprefillError(
            f"prompt '{template.name}': the model's chat template does not show document and question once each"
        )
    return split_at_marks(text)


def encode_prompt(
    text: PromptText, tokenizer: PreTrainedTokenizerBase, encode_document: DocumentEncoder = encode_text
) -> Prompt:
    """Token ids of a prompt, piece by piece, so that the token ranges of document and question are exact.

    encode_document: `encode_text`, or a cache of it
    """
    prefix = encode_template(tokenizer, text.prefix)
    document, offsets = encode_document(tokenizer, text.document)
    before = encode_template(tokenizer, text.before_question)
    question, _ = encode_text(tokenizer, text.question)
    after = encode_template(tokenizer, text.suffix)
    end = len(prefix) + len(document)
    question_start = end + len(before)
    tokens = torch.tensor([*prefix, *document, *before, *question, *after], dtype=torch.long)
    return Prompt(tokens, (len(prefix), end), (question_start, question_start + len(question)), offsets)
