"""A bounded dictionary that evicts the least recently used entry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Entries whose summed sizes stay within `capacity`; the latest one is kept whatever its size.

    size: of one value; by default every entry counts 1
    """

    def __init__(self, capacity: float, size: Callable[[Value], float] = lambda value: 1) -> None:
        self.capacity = capacity
        self.size = size
        self.entries: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value, now the most recently used; None where there is none."""
        if key in self.entries:
            self.entries.move_to_end(key)
        return self.entries.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Add or replace a value, and evict what exceeds the capacity."""
        self.entries[key] = value
        self.entries.move_to_end(key)
        while len(self.entries) > 1 and self.used > self.capacity:
            self.entries.popitem(last=False)

    def make_room(self, size: float) -> None:
        """Evict until a value of this size fits, or nothing is left."""
        while self.entries and self.used + size > self.capacity:
            self.entries.popitem(last=False)

    @property
    def used(self) -> float:
        """Summed sizes of all entries."""
        return sum(self.size(value) for value in self.entries.values())

    def __contains__(self, key: Key) -> bool:
        return key in self.entries
