"""Caches limited in bytes: in memory, and on disk for documents' texts, words and vectors."""

import os
import sqlite3
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from threading import Lock, RLock
from typing import Any, TypeVar

from specprefill_cli.files import own_path

FOLDER_VARIABLE = "SPECPREFILL_CACHE"
# Bytes of all values together, and the share of them that stays where they become more.
LIMIT_BYTES, SHARE_KEPT = 2**30, 0.9
# Seconds that a process waits for another one, and after which a use is noted again.
PATIENCE, USE_NOTED = 5.0, 86_400.0
# A file that a crash damages costs only the time to make it again.
SCHEMA = """
PRAGMA auto_vacuum = FULL; PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, source TEXT, size INTEGER, used REAL, value BLOB)
"""


@dataclass(frozen=True)
class Entry:
    """What is kept of a source. size: in bytes; used: when it was last used, in seconds of the epoch."""

    source: str
    size: int
    used: float


class DiskCache(AbstractContextManager["DiskCache"]):
    """Values by key in an SQLite file in $SPECPREFILL_CACHE, or in the platform's folder for caches.

    Several threads and processes may use it. Its errors are none of the program's: a damaged file is removed, and
    with a full disk or a file that is locked for long, nothing more is found or kept. The least recently used values
    make room for others.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path, self.limit_bytes = own_path(FOLDER_VARIABLE, "cache") / "documents.sqlite3", limit_bytes
        self.database: sqlite3.Connection | None = None
        self.failed, self.stored_bytes, self.lock = False, 0, Lock()

    def run(self, statement: str, *values: object) -> list[tuple]:
        """Run a statement of SQL and return its rows; none where the cache fails."""
        with self.lock:
            if self.failed:
                return []
            try:
                if self.database is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    # Texts of documents are for the user alone.
                    os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
                    self.database = sqlite3.connect(self.path, timeout=PATIENCE, check_same_thread=False)
                    self.database.executescript(SCHEMA)
                with self.database:
                    return self.database.execute(statement, values).fetchall()
            except (sqlite3.Error, OSError) as error:
                self.failed = True
                if self.database is not None:
                    self.database.close()
                if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                    with suppress(OSError):
                        self.path.unlink()
                return []

    def find(self, key: str) -> bytes | None:
        """The value of a key; None where it is missing or damaged."""
        for value, used in self.run("SELECT value, used FROM entries WHERE key = ?", key):
            if time.time() - used > USE_NOTED:
                self.run("UPDATE entries SET used = ? WHERE key = ?", time.time(), key)
            with suppress(zlib.error, TypeError):
                return zlib.decompress(value)
        return None

    def store(self, key: str, value: bytes, source: str) -> None:
        """Keep a value. source: the file that it is about, for `specprefill cache`."""
        packed = zlib.compress(value, 1)
        # A name may hold bytes that are no text.
        source = source.encode(errors="replace").decode()
        self.run("REPLACE INTO entries VALUES (?, ?, ?, ?, ?)", key, source, len(packed), time.time(), packed)
        self.stored_bytes += len(packed)
        # Adding up all sizes takes a while, so it is done now and then, and at the end.
        if self.stored_bytes > self.limit_bytes * (1 - SHARE_KEPT):
            self.shrink()

    def shrink(self) -> None:
        """Remove the least recently used values where all together exceed the limit."""
        self.stored_bytes = 0
        ((total,),) = self.run("SELECT SUM(size) FROM entries") or [(0,)]
        if (total or 0) > self.limit_bytes:
            older = "SELECT key, SUM(size) OVER (ORDER BY used DESC, key) AS total FROM entries"
            limit = int(self.limit_bytes * SHARE_KEPT)
            self.run(f"DELETE FROM entries WHERE key IN (SELECT key FROM ({older}) WHERE total > ?)", limit)

    def entries(self) -> list[Entry]:
        """What is kept, by source."""
        rows = self.run("SELECT source, SUM(size), MAX(used) FROM entries GROUP BY source ORDER BY source")
        return [Entry(*row) for row in rows]

    def __exit__(self, *_: object) -> None:
        if self.stored_bytes:
            self.shrink()
        if self.database is not None:
            self.database.close()


Value = TypeVar("Value")


class ByteCache(OrderedDict[Any, Value]):
    """Values by key, the least recently used first. Any thread may use it.

    capacity_bytes: limit of all values together; the newest value stays even if it is larger; 0 keeps nothing
    size: gives a value's bytes; a value may grow while it is kept
    """

    def __init__(self, capacity_bytes: int, size: Callable[[Value], int]) -> None:
        super().__init__()
        self.capacity_bytes, self.size = capacity_bytes, size
        self.lock = RLock()

    @property
    def bytes(self) -> int:
        return sum(map(self.size, list(self.values())))

    def find(self, key: Any) -> Value | None:
        """Return the value of a key, or None, and mark it as most recently used."""
        with self.lock:
            if key not in self:
                return None
            self.move_to_end(key)
            return self[key]

    def find_or(self, key: Any, compute: Callable[[], Value]) -> Value:
        """Return the value of a key; compute and store it if it is missing."""
        value = self.find(key)
        if value is None:
            value = compute()
            self.store(key, value)
        return value

    def store(self, key: Any, value: Value) -> None:
        """Add a value as the most recently used; evict others to make room."""
        if self.capacity_bytes:
            with self.lock:
                self.pop(key, None)
                self.evict(self.capacity_bytes - self.size(value))
                self[key] = value

    def evict(self, limit_bytes: float) -> None:
        """Evict the least recently used values until the rest takes at most `limit_bytes`."""
        with self.lock:
            while self and self.bytes > limit_bytes:
                self.popitem(last=False)
