"""Lines of the input that arrive while earlier ones are answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

# Bytes read from a pipe at a time, if it holds so many.
PIECE = 2**16


@dataclass(frozen=True)
class Line:
    """The next line of the input has arrived; empty: there is none."""

    text: bytes


# Takes what puts a line into the inbox of a loop; the function that it returns asks for one line.
Source = Callable[[Callable[[Any], None]], Callable[[], None]]


def arriving(lines: Iterable[bytes]) -> Source:
    """A source whose lines are there when they are asked for, or else are all that there is to wait for."""

    def source(put: Callable[[Line], None]) -> Callable[[], None]:
        iterator = iter(lines)
        return lambda: put(Line(next(iterator, b"")))

    return source


def awaited(lines: Iterable[bytes]) -> Source:
    """A source whose lines come late, while other events are waited for: a thread reads them."""

    def source(put: Callable[[Line], None]) -> Callable[[], None]:
        requests = threading.Semaphore(0)

        def read() -> None:
            for line in lines:
                requests.acquire()
                put(Line(line))
            requests.acquire()
            put(Line(b""))

        threading.Thread(target=read, name="input", daemon=True).start()
        return requests.release

    return source


def lines_of(stream: BinaryIO) -> Source:
    """The lines of a file, or of a pipe or terminal whose writer may wait for answers."""
    if stream.seekable():
        return arriving(iter(stream.readline, b""))
    return awaited(lines_of_pipe(stream))


def lines_of_pipe(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a pipe, past its buffer: no program could end while a thread waits inside that."""
    raw, rest = getattr(stream, "raw", stream), b""
    while piece := raw.read(PIECE):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest
