"""The interface of a file format's reader, its input, and its limits of size and time."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from importlib import import_module
from threading import Thread
from typing import Any

from specprefill_cli.documents.cleaning import clean_text
from specprefill_cli.errors import DocumentError, document_error, one_line, pip_command


@dataclass(kw_only=True)
class Limits:
    """Guards against files that would exhaust memory or time: a file beyond a limit is refused, never cut."""

    max_bytes: int = 256 * 2**20  # size of the file, in bytes
    max_characters: int = 20_000_000  # characters of the extracted text
    max_growth: int = 200 * 2**20  # bytes that an archive gains by unpacking: XML takes several times as much
    max_seconds: float = 120.0  # without a further page


LIMITS = Limits()
DEEPEST_ATTACHMENT = 3
STRUCK_WARNING = "struck text is left out"


@dataclass
class SourceFile:
    """A file that is being read; name: the document's name, also used in messages.

    step: called with the progress, if the number of pages is known beforehand: page_count, else 0
    texts: of the pages read so far, of `characters` together; warnings: about missing or wrong text
    read_attached: reads an attached file into its own `SourceFile`; depth: number of files around this one
    """

    data: bytes
    name: str
    step: Callable[[str], None] = lambda _text: None
    page_count: int = 0
    texts: list[str] = field(default_factory=list)
    characters: int = 0
    warnings: list[str] = field(default_factory=list)
    read_attached: Callable[["SourceFile"], None] = lambda _file: None
    depth: int = 0

    def attached(self, name: str, data: bytes) -> str:
        """The text of an attached file under its name; a warning for a file that cannot be read."""
        file = SourceFile(data, name, read_attached=self.read_attached, depth=self.depth + 1)
        try:
            if file.depth > DEEPEST_ATTACHMENT:
                raise file.error("attached too deep", "save it as a file")
            self.read_attached(file)
        except DocumentError as error:
            self.warnings.append(f"attachment {error}")
            return ""
        self.warnings += (f"attachment {name}: {warning}" for warning in file.warnings)
        return "\n\n".join(filter(None, [f"# Attachment: {one_line(name)}", *file.texts]))

    def error(self, cause: str, remedy: str) -> DocumentError:
        return document_error(self.name, cause, remedy)

    def package(self, name: str, kind: str, otherwise: str = "") -> Any:
        """Import a package that reads a kind of file. Raises DocumentError without it."""
        try:
            return import_module(name)
        except ImportError as error:
            remedy = f"install it with {pip_command(name)}{otherwise}"
            raise self.error(f"reading {kind} needs another package", remedy) from error

    def add_page(self, text: str) -> None:
        """Add the text of the next page. Raises DocumentError beyond the limits."""
        self.check_room(len(text))
        self.texts.append(text)
        self.characters += len(text)
        if self.page_count:
            self.step(f"reading {self.name}: page {len(self.texts):,} of {self.page_count:,}")

    def check_room(self, characters: int) -> None:
        """Raise DocumentError if a page of this length exceeds the limits."""
        if self.characters + characters > LIMITS.max_characters:
            reached = f" (reached on page {len(self.texts) + 1})" if self.texts else ""
            cause = f"more than the limit of {LIMITS.max_characters:,} characters of text{reached}"
            raise self.error(cause, "split it into smaller files")

    def page_text(self, lines: Iterable[str]) -> str:
        """Join and clean the lines of a page. Raises DocumentError before memory grows beyond the limits."""
        page_lines, characters = list[str](), 0
        for line in lines:
            characters += len(line) + 1
            self.check_room(characters)
            page_lines.append(line.rstrip())
        return clean_text("\n".join(page_lines)).strip("\n")


def read_in_time(read: Callable[[SourceFile], None], file: SourceFile) -> None:
    """Read a file in a daemon thread: Python cannot kill a late parser. Raises its errors, and DocumentError when it is late."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            read(file)
            outcome.set_result(None)
        except BaseException as error:  # raised again in the caller's thread
            outcome.set_exception(error)

    Thread(target=run, name="document-reader", daemon=True).start()
    pages = -1
    while not wait([outcome], LIMITS.max_seconds).done:
        if len(file.texts) == pages:
            late = f"no further page within {LIMITS.max_seconds:g} s ({pages:,} read)"
            raise file.error(late, "save it anew with another program")
        pages = len(file.texts)
    outcome.result()


# Yields the text of each page in order, or raises `DocumentError`; any other error is reported as a damaged file.
Pages = Generator[str, None, None]
Reader = Callable[[SourceFile], Pages]
