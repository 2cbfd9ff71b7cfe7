"""Prompt templates: files with named variables, the user's folder before the package's."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specprefill_cli.errors import SpecprefillError, UsageError
from specprefill_cli.resources import packaged_folder

VARIABLES = ("document", "question")


@dataclass(frozen=True)
class Template:
    """A prompt template: either plain `text`, or `system` and `user` messages for a tokenizer's chat template."""

    name: str
    text: str | None
    system: str | None
    user: str | None
    description: str = ""

    def text_parts(self) -> tuple[str, str, str]:
        """The fixed texts before the document, between document and question, and after the question."""
        return split_at_variables(self.text if self.text is not None else self.user or "")


def split_at_variables(text: str) -> tuple[str, str, str]:
    head, _, rest = text.partition("$document")
    between, _, after = rest.partition("$question")
    return head, between, after


def load_template(name: str, folders: Sequence[Path] = ()) -> Template:
    """Read a template by name from the first folder that has it, else from the package; a path is read as it is.

    Raises UsageError when there is none of that name, and SpecprefillError when the file is not a valid template.
    """
    places = [Path(name)] if name.endswith(".toml") else [folder / f"{name}.toml" for folder in template_folders(folders)]
    for path in places:
        if path.is_file():
            return parse_template(path)
    known = sorted({path.stem for folder in template_folders(folders) for path in folder.glob("*.toml")})
    raise UsageError(f"prompt '{name}': no such template; known are {', '.join(known)}, or give the path of a .toml file")


def template_folders(folders: Sequence[Path]) -> list[Path]:
    return [*folders, packaged_folder("prompts")]


def parse_template(path: Path) -> Template:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecprefillError(f"prompt {path}: not valid TOML ({error}); mend the file") from error
    unknown = sorted(set(values) - {"description", "text", "system", "user"})
    if unknown:
        raise SpecprefillError(f"prompt {path}: unknown key '{unknown[0]}'; use description, text, or system and user")
    if ("text" in values) == ("user" in values):
        raise SpecprefillError(f"prompt {path}: give either `text` (plain) or `user` (chat), not both and not neither")
    body = values.get("text", values.get("user"))
    try:
        used = string.Template(body).get_identifiers()
    except ValueError as error:
        raise SpecprefillError(f"prompt {path}: {error}; write a dollar sign as $$") from error
    for variable in VARIABLES:
        if used.count(variable) != 1 or body.count(f"${variable}") != 1:
            raise SpecprefillError(f"prompt {path}: the variable ${variable} is missing; it must occur once")
    strangers = [name for name in used if name not in VARIABLES]
    if strangers:
        raise SpecprefillError(f"prompt {path}: unknown variable ${strangers[0]}; known are $document and $question")
    if body.index("$document") > body.index("$question"):
        raise SpecprefillError(f"prompt {path}: $question must come after $document, so that the document can be reused")
    return Template(path.stem, values.get("text"), values.get("system"), values.get("user"), values.get("description", ""))
