"""Errors that a user can mend: each is printed as one line and ends with its exit code."""

# Exit codes of what is no error of its own: some questions failed and the others did not; Ctrl-C.
SOME_FAILED = 3
INTERRUPTED = 130


class SpecprefillError(Exception):
    """Something failed for a reason that one line can name: what, where, and how to mend it.

    The command line prints the message without a traceback and exits with ``exit_code``.
    """

    exit_code = 1


class PromptTooLong(SpecprefillError):
    """A prompt that does not fit the context of a pair: another one may."""


class UsageError(SpecprefillError):
    """The call itself is wrong: an option out of range, an empty question, an unknown name."""

    exit_code = 2


def first_line(error: BaseException) -> str:
    """The first line of an error's message, shortened; its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
