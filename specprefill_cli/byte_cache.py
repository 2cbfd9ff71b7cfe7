"""A cache in memory between questions: bounded in bytes, with eviction of the least recently used value."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

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
