"""The error of this package, and the rule that makes its message one safe line."""

from specprefill_cli.errors import SpecprefillError


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
