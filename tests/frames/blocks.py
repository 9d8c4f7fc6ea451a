"""What the tests of blocks share: a client on a journal that can be full, and ways to look.

Everything runs on clocks that are moved by hand: nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.connect import assemble_env
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.batches import AppendResult, Batch
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock

SCOPE = "actor/main"
Holdfast = holdfast.Holdfast


class Flaky:
    """A journal whose disk can be full."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append(self, batch: Batch) -> AppendResult:
        if self.error is not None:
            raise self.error
        appended: AppendResult = self._journal.append(batch)
        return appended


def client(journal: Any = None, clock: FrozenClock | None = None, lease_ms: int = 10_000) -> Holdfast:
    return Holdfast(assemble_env(journal or MemoryJournal(), Settings(lease_ms=lease_ms), clock or FrozenClock()))


def holder(hf: Holdfast) -> str | None:
    return hf.index.resume_actor(SCOPE).holder


def name(hf: Holdfast) -> str:
    return hf.env.leases.process.name


def kinds(hf: Holdfast) -> list[str]:
    return [event.type for event in hf.journal.events(SCOPE)]


def never() -> None:
    raise AssertionError("this step is remembered and must not run")


def torn() -> None:
    raise KeyboardInterrupt


class Watched(FrozenClock):
    """While somebody waits by this clock, something happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens

    def sleep(self, seconds: float) -> None:
        self._happens()
        super().sleep(seconds)
