"""Errors that a user can fix, and the commands that they name: each is a single line and sets the exit code."""

import sys

# Exit codes without an error class: some but not all questions failed; Ctrl-C; SIGTERM.
SOME_FAILED = 3
INTERRUPTED = 130
TERMINATED = 143


class SpecprefillError(Exception):
    """A failure that a single line explains: what, where, and the remedy. The command exits with `exit_code`."""

    exit_code = 1
    # The error's name in records, where it differs from the class name: an error that a server reported.
    name = ""


class Interrupted(SpecprefillError):
    """Ctrl-C or SIGTERM ended the command; the message says how far it got."""

    exit_code = INTERRUPTED


class PromptTooLong(SpecprefillError):
    """The prompt does not fit the pair's context; a shorter prompt may."""


class UsageError(SpecprefillError):
    """The call itself is wrong: an option out of range, an empty question, an unknown name."""

    exit_code = 2


def pip_command(*arguments: str) -> str:
    """The `pip install` command line for the current interpreter."""
    return f'"{sys.executable}" -m pip install {" ".join(arguments)}'


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters, or its type if there is no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


class DocumentError(SpecprefillError):
    """A document cannot be read; the message is a single line with name, cause and remedy. Exit code 1."""


def document_error(name: str, cause: str, remedy: str) -> DocumentError:
    """Build the error `name: cause; remedy` as a single line."""
    return DocumentError(one_line(f"{name}: {cause}; {remedy}"))


def one_line(text: str) -> str:
    """Escape every unprintable character: file names and parser messages must not break the line or the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
