"""Errors that a user can mend: each is printed as one line and ends with its exit code."""

# Exit codes that belong to no error: some questions failed and the others did not; Ctrl-C; SIGTERM.
SOME_FAILED = 3
INTERRUPTED = 130
TERMINATED = 143


class SpecprefillError(Exception):
    """A failure that one line explains: what, where, and the remedy.

    The command line prints the message without a traceback and exits with `exit_code`.
    """

    exit_code = 1
    # In records, where it is not that of the class: an error that a server has reported.
    name = ""


class Interrupted(SpecprefillError):
    """Ctrl-C or SIGTERM ended the command; the message says how far it came."""

    exit_code = INTERRUPTED


class PromptTooLong(SpecprefillError):
    """A prompt does not fit the context of the pair; another prompt may."""


class UsageError(SpecprefillError):
    """The call itself is wrong: an option out of range, an empty question, an unknown name."""

    exit_code = 2


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters; its type if there is no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


class DocumentError(SpecprefillError):
    """A document cannot be read; the message is one line with name, cause and remedy. Exit code 1."""


def document_error(name: str, cause: str, remedy: str) -> DocumentError:
    """Build the error `name: cause; remedy` as one line."""
    return DocumentError(one_line(f"{name}: {cause}; {remedy}"))


def one_line(text: str) -> str:
    """Write every character of `text` that cannot be printed as its escape.

    File names and parser messages are untrusted: a line break, a terminal escape or a lone surrogate in them must
    break neither the line nor the terminal nor the output's encoding.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
