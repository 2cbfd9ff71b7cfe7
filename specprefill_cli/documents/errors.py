"""The error of this package, and the rule that makes its message one safe line."""

from specprefill_cli.errors import SpecprefillError


class DocumentError(SpecprefillError):
    """A document cannot be read; the message is one line: what, where, how to mend it. Exit code 1."""


def document_error(where: str, what: str, mend: str = "") -> DocumentError:
    """The error ``where: what; mend`` as one line; ``where`` is the document's name, ``mend`` may be empty."""
    message = f"{where}: {what}; {mend}" if mend else f"{where}: {what}"
    return DocumentError(one_line(message))


def one_line(text: str) -> str:
    """``text`` with every character that cannot be printed written as its escape.

    File names and parser messages come from outside: a line break, a terminal escape or a byte that is not
    UTF-8 (a lone surrogate) in them must neither break the line nor the terminal nor the output's encoding.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
