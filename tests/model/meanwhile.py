"""Something else happens between two calls of a port: every such moment of an operation, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.ports.journal import Journal


class Meanwhile:
    """A journal that lets somebody else act once, just before the n-th call of it.

    Not within a snapshot of a journal in memory, which keeps others out for so long: then it is just afterwards.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._at = self._inside = 0
        self._act: Callable[[], object] = lambda: None
        self.calls = 0

    def after(self, calls: int, act: Callable[[], object]) -> None:
        """From now on: act before that many calls more are over."""
        self.calls, self._at, self._act = 0, calls, act

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._journal, name)
        if not callable(value) or name in ("close", "renew", "renewals"):
            return value

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._count()
            return value(*args, **kwargs)

        return counted

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self._count()
        with self._journal.snapshot():
            self._inside += 1
            try:
                yield
            finally:
                self._inside -= 1
        self._count(0)

    def _count(self, calls: int = 1) -> None:
        self.calls += calls
        if self._at and self.calls >= self._at and not self._inside:
            self._at = 0
            self._act()
