"""A bounded mapping that forgets the least recently used values first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Lru(Generic[KeyT, ValueT]):
    """Values by key, at most `most` of them, or of that total weight if `weigh` is given. The caller locks it."""

    def __init__(self, most: int, weigh: Callable[[ValueT], int] | None = None) -> None:
        self._most, self._weigh, self._weight = most, weigh, 0
        self._kept: OrderedDict[KeyT, ValueT] = OrderedDict()

    def get(self, key: KeyT) -> ValueT | None:
        """Return a value and mark it as used, or None."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        return None

    def put(self, key: KeyT, value: ValueT) -> None:
        """Keep a value as the most recently used one, dropping others to make room."""
        before = self._kept.pop(key, None)
        self._kept[key] = value
        if self._weigh is None:
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return
        self._weight += self._weigh(value) - (0 if before is None else self._weigh(before))
        while self._weight > self._most:
            self._weight -= self._weigh(self._kept.popitem(last=False)[1])

    def drop(self, key: KeyT) -> ValueT | None:
        """Remove and return a value, or None."""
        value = self._kept.pop(key, None)
        if value is not None and self._weigh is not None:
            self._weight -= self._weigh(value)
        return value

    def clear(self) -> None:
        """Remove everything."""
        self._kept.clear()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._kept)
