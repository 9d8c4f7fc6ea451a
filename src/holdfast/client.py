"""Holdfast: the client. Thin: it names flows and owns what must be closed."""

from __future__ import annotations

import os
import sys
import warnings
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from holdfast.client_journal import JournalView
from holdfast.connect import connect
from holdfast.ports import Acting, Clock, Ids, Ports
from holdfast.records.events.envelope import DEFAULT_TENANT
from holdfast.records.ids import check_id
from holdfast.records.settings import Settings

_warned: list[bool] = []


class Holdfast:
    """A journal and everything that stands on it. Safe to share between threads."""

    def __init__(self, ports: Ports, acting: Acting | None = None, *, owner: bool = True) -> None:
        self._ports = ports
        self._acting = acting or Acting(tenant=DEFAULT_TENANT)
        self._owner = owner

    @property
    def journal(self) -> JournalView:
        """What happened: read it, follow it, verify it, copy it, erase from it."""
        _warn_inside_a_loop()
        return JournalView(self._ports, self._acting)

    def tenant(self, name: str) -> Holdfast:
        """A view that sees this tenant and nothing else. Cheap; closing it closes nothing."""
        acting = replace(self._acting, tenant=check_id(name, "tenant"), whole=False)
        return Holdfast(self._ports, acting, owner=False)

    def as_user(self, id: str) -> Holdfast:
        """A view that notes who acts, and whose content it is. Cheap; closing it closes nothing."""
        return Holdfast(self._ports, replace(self._acting, user=check_id(id, "user")), owner=False)

    def close(self) -> None:
        """Let go of the journal. Closing twice is fine."""
        if self._owner:
            self._ports.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        who = "" if self._acting.user is None else f", user={self._acting.user!r}"
        return f"Holdfast({type(self._ports.journal).__name__}, tenant={self._acting.tenant!r}{who})"


def open(
    url: str | os.PathLike[str],
    *,
    durability: str = "full",
    settings: Settings | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Holdfast:
    """Open a journal, or make a new one: a path, `sqlite:///path` or `memory:`.

    `durability="full"` returns from a write once it is on disk. `"fast"` is several times
    quicker on slow disks and may lose the newest writes when the power fails (not when the
    process is killed); nothing is ever corrupted.
    """
    return Holdfast(connect(url, durability=durability, settings=settings, clock=clock, ids=ids))


def _warn_inside_a_loop() -> None:
    """Once: a call that waits for the disk inside an event loop stops everything else in it."""
    asyncio: Any = sys.modules.get("asyncio")
    if not _warned and asyncio is not None and asyncio._get_running_loop() is not None:
        _warned.append(True)
        warnings.warn(
            "Holdfast waits for the disk and is used inside a running event loop. Use holdfast.open_async instead.",
            stacklevel=3,
        )
