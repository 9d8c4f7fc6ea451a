"""What was read for packs before: a hint, which whoever uses it compares with the journal first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from holdfast.ambient import renew_in_child

Known = tuple[str, str, str]
"""Tenant, stream, and the name that counts are kept under."""


class RecentCache:
    """Ends of lines in memory, those that were longest not asked for forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Known, Any] = OrderedDict()
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    def get(self, place: Known) -> Any:
        """What is known, or None."""
        with self._lock:
            if place in self._kept:
                self._kept.move_to_end(place)
            return self._kept.get(place)

    def put(self, place: Known, window: Any) -> None:
        """What is known now."""
        with self._lock:
            self._kept[place] = window
            self._kept.move_to_end(place)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()
