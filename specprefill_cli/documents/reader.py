"""The interface of a file format's reader, its input, and its limits of size and time.

A reader runs in a daemon thread: `signal.alarm` exists neither on Windows nor outside the main thread, and a child process
starts slowly. Python cannot kill a thread, so an event asks a late reader to stop.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TypeVar

from specprefill_cli.documents.cleaning import clean_text
from specprefill_cli.errors import DocumentError, document_error, one_line

T = TypeVar("T")


class Abandoned(Exception):
    """Raised inside a parser once its caller has stopped waiting."""


def check_stop(stop: threading.Event | None) -> None:
    """Raise `Abandoned` once `stop` is set."""
    if stop is not None and stop.is_set():
        raise Abandoned


def run_with_deadline(
    work: Callable[[], T], stop: threading.Event, seconds: float, excused: Callable[[], float] = lambda: 0.0
) -> T:
    """Return the result of `work()`, or raise its error. Raises TimeoutError after `seconds` of wall-clock time.

    excused: seconds so far that do not count
    Sets `stop` when the caller stops waiting (deadline, Ctrl-C); long work should call `check_stop` regularly.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised again in the caller's thread
            outcome.set_exception(error)

    threading.Thread(target=run, name="document-reader", daemon=True).start()
    begin = time.monotonic()
    try:
        while (left := begin + seconds + excused() - time.monotonic()) > 0:
            wait([outcome], timeout=left)
            if outcome.done():
                break
        return outcome.result(timeout=0)
    finally:
        stop.set()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Guards against files that would exhaust memory or time. A file beyond a limit is refused, never cut.

    The defaults are far above what a prompt can hold and far below what would overload a laptop.
    """

    max_bytes: int = 256 * 2**20  # size of the file, in bytes
    max_pages: int = 5000  # pages, slides, sheets or chapters
    max_characters: int = 20_000_000  # characters of the extracted text
    max_seconds: float = 120.0  # wall-clock seconds for parsing
    max_unpacked_bytes: int = 512 * 2**20  # size of an office file when unpacked, in bytes
    max_xml_bytes: int = 200 * 2**20  # XML in an office file, in bytes: its trees take several times as much memory


LIMITS = Limits()
# Attached files in attached files.
DEEPEST_ATTACHMENT = 3


@dataclass
class SourceFile:
    """A file that is being read.

    name: the document's name, also used in messages
    stop: set when the caller stops waiting for the text
    step: called with the progress, if the number of pages is known
    page_count: number of pages if known beforehand, else 0
    texts: texts of the pages read so far; characters: their total length
    warnings: sentences about text that may be missing or wrong
    read_attached: reads the pages of an attached file into its own `SourceFile`; depth: number of files around this one
    excused_seconds: time that does not count against the limit: recognition of characters is slow
    """

    data: bytes
    name: str
    limits: Limits
    stop: threading.Event = field(default_factory=threading.Event)
    step: Callable[[str], None] = lambda _text: None
    page_count: int = 0
    texts: list[str] = field(default_factory=list)
    characters: int = 0
    warnings: list[str] = field(default_factory=list)
    read_attached: Callable[["SourceFile"], None] = lambda _file: None
    depth: int = 0
    excused_seconds: float = 0.0

    def attached(self, name: str, data: bytes) -> str:
        """The text of an attached file under its name; a warning for a file that cannot be read."""
        file = SourceFile(data, name, self.limits, self.stop, read_attached=self.read_attached, depth=self.depth + 1)
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
        """Build the error `name: cause; remedy`."""
        return document_error(self.name, cause, remedy)

    def add_page(self, text: str) -> None:
        """Add the text of the next page. Raises DocumentError beyond the limits, Abandoned once `stop` is set."""
        self.check_room(len(text))
        if max(self.page_count, len(self.texts) + 1) > self.limits.max_pages:
            raise self.error(f"more than the limit of {self.limits.max_pages:,} pages", "split it")
        self.texts.append(text)
        self.characters += len(text)
        if self.page_count:
            self.step(f"reading {self.name}: page {len(self.texts):,} of {self.page_count:,}")

    def check_room(self, characters: int) -> None:
        """Raise Abandoned once `stop` is set, and DocumentError if a page of this length exceeds the limits."""
        check_stop(self.stop)
        if self.characters + characters > self.limits.max_characters:
            reached = f" (reached on page {len(self.texts) + 1})" if self.texts else ""
            cause = f"more than the limit of {self.limits.max_characters:,} characters of text{reached}"
            raise self.error(cause, "split it into smaller files")

    def page_text(self, lines: Iterable[str]) -> str:
        """Join and clean the lines of a page. Raises the errors of `check_room`, before memory grows beyond the limits."""
        page_lines = []
        characters = 0
        for line in lines:
            characters += len(line) + 1
            self.check_room(characters)
            page_lines.append(line.rstrip())
        return clean_text("\n".join(page_lines)).strip("\n")


# Yields the text of each page in order, or raises `DocumentError`; any other error is reported as a damaged file.
Pages = Generator[str, None, None]
Reader = Callable[[SourceFile], Pages]
