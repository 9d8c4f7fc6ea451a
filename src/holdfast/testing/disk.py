"""A simulated disk: real files behind SQLite, whose power can be cut and whose calls can be made to fail.

    with Disk(folder) as disk:
        journal = SqliteJournal(folder / "agent.db", vfs=disk.name)
        disk.cut_at(17)                        # the 17th I/O call from now does not return
        ...                                    # work until PowerCut, or until disk.dead
        disk.power_cut(random, into=elsewhere) # what the disk holds after that

It promises what an honest disk does, and no more: what was synced stays; what was not may
be there, torn at sectors, in any part and order. A failed write or sync may have done some
of its work. After a sync that fails and forgets, as Linux does, what it should have written
can be read until the power fails, and no later sync makes it safe.

Locks and shared memory are those of the real files, so several connections work as always.
Simulated is what SQLite does through this VFS to the files of one folder; other files are
copied as they are.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Literal, Self

import apsw

from holdfast.testing.disk_image import Folder, Image, Luck, Mode
from holdfast.testing.disk_vfs import Operation, SimulatedVFS, Verdict

Kind = Literal["read", "short", "write", "full", "sync", "forget", "truncate", "size", "open", "delete", "access"]

KINDS: dict[Kind, tuple[Operation, int]] = {
    "read": ("read", apsw.SQLITE_IOERR_READ),
    "short": ("read", apsw.SQLITE_IOERR_SHORT_READ),
    "write": ("write", apsw.SQLITE_IOERR_WRITE),
    "full": ("write", apsw.SQLITE_FULL),
    "sync": ("sync", apsw.SQLITE_IOERR_FSYNC),
    "forget": ("sync", apsw.SQLITE_IOERR_FSYNC),
    "truncate": ("truncate", apsw.SQLITE_IOERR_TRUNCATE),
    "size": ("size", apsw.SQLITE_IOERR_FSTAT),
    "open": ("open", apsw.SQLITE_CANTOPEN),
    "delete": ("delete", apsw.SQLITE_IOERR_DELETE),
    "access": ("access", apsw.SQLITE_IOERR_ACCESS),
}

_NUMBERS = itertools.count(1)
# SQLite keeps pointers into a VFS for as long as a connection uses it, so a disk stays until it is closed.
_OPEN: set[Disk] = set()


class PowerCut(BaseException):
    """The power failed during this call. No `except Exception` may go on as if it had not."""


class Disk:
    """One folder's disk. Pass `name` as the `vfs` of a connection; close it after the connections."""

    def __init__(self, folder: Path, *, sync_delay: float = 0.0, random: Random | None = None) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.sync_delay = sync_delay
        """Seconds that each sync takes."""
        self.counts: Counter[Operation] = Counter()
        """I/O calls so far, by operation."""
        self.calls = 0
        """I/O calls so far."""
        self.hits = 0
        """Calls that were made to fail."""
        self.dead = False
        """Whether the power was cut; from then on every call fails."""
        self._random = random or Random(0)  # noqa: S311  # nosec B311: repeatable is the point
        self._mutex = threading.RLock()
        self._cut_at: int | None = None
        self._kind: Kind | None = None
        self._from = 0
        self._sticky = False
        self._files = Folder()
        for path in self.folder.iterdir():
            if path.is_file() and not path.name.endswith("-shm"):
                self._files.put(path.name, Image(path.read_bytes()))
        self._files.sync()
        self.name = f"holdfast-disk-{next(_NUMBERS)}"
        """What SQLite knows this disk by."""
        self._vfs = SimulatedVFS(self.name, self)
        _OPEN.add(self)

    # what a test does to it

    def cut_at(self, call: int) -> None:
        """Cut the power during the n-th I/O call from now."""
        with self._mutex:
            self._cut_at = self.calls + call

    def cut(self) -> None:
        """Cut the power now."""
        self.dead = True

    def restart(self) -> None:
        """Only the process died, as by kill -9: what it wrote can still be read and is no safer than before."""
        with self._mutex:
            self.dead, self._cut_at = False, None

    def fail(self, kind: Kind, *, after: int = 0, sticky: bool = False) -> None:
        """Make the first call of a kind after some number of I/O calls fail, or every one until healed."""
        with self._mutex:
            self._kind, self._from, self._sticky = kind, self.calls + after, sticky

    def heal(self) -> None:
        """Nothing fails any more, unless the power was cut."""
        with self._mutex:
            self._kind = self._cut_at = None

    def power_cut(self, random: Random, into: Path, mode: Mode | None = None) -> None:
        """Write what the disk would hold if the power failed now, or when it did, into a folder."""
        into.mkdir(parents=True, exist_ok=True)
        with self._mutex:
            files = self._files.after(Luck(random, mode))
            known = self._files.names()
        for name, data in files.items():
            (into / name).write_bytes(data)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.copytree(path, into / path.name)
            elif path.name not in known and not path.name.endswith("-shm"):
                shutil.copyfile(path, into / path.name)

    def close(self) -> None:
        """Forget everything. Its connections must be closed."""
        self._vfs.unregister()
        self._files = Folder()
        _OPEN.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # what SQLite does to it, by way of the VFS

    def begin(self, operation: Operation) -> Verdict | None:
        """Count a call and say how it goes: on, or to fail with a code after a part of it was done."""
        with self._mutex:
            self.calls += 1
            self.counts[operation] += 1
            if self.dead:
                return Verdict(apsw.SQLITE_IOERR, 0.0)
            if self._cut_at is not None and self.calls >= self._cut_at:
                self.dead = True
                raise PowerCut
            return self._fault(operation)

    def _fault(self, operation: Operation) -> Verdict | None:
        if self._kind is None or self.calls <= self._from or KINDS[self._kind][0] != operation:
            return None
        kind, code = self._kind, KINDS[self._kind][1]
        if not self._sticky:
            self._kind = None
        self.hits += 1
        # Some failures come before the work, some during it, some after it; a full disk or a short read
        # never does all of it.
        part = min(1.0, max(0.0, self._random.uniform(-1.0, 1.5)))
        return Verdict(code, part * 0.99 if kind in ("full", "short") else part, forgets=kind == "forget")

    def sync(self, image: Image | None, *, folder: bool) -> None:
        """A sync that succeeds."""
        if self.sync_delay:
            time.sleep(self.sync_delay)
        with self._mutex:
            if image is not None and not self.dead:
                image.sync()
            if folder and not self.dead:
                self._files.sync()

    def fail_sync(self, image: Image | None, *, forgets: bool) -> None:
        """A sync that fails."""
        with self._mutex:
            if image is not None and not self.dead:
                image.fail_sync(Luck(self._random), forgets=forgets)

    def opened(self, filename: str, *, exists: bool) -> Image | None:
        """The image of a file of this folder; the name of a new one is not safe yet."""
        path = Path(filename)
        if path.parent != self.folder:
            return None
        with self._mutex:
            image = self._files.find(path.name) if exists else None
            if image is None:
                image = Image()
                self._files.put(path.name, image)
            return image

    def deleted(self, filename: str, *, safely: bool) -> None:
        """A file's name is gone, for good if the folder was synced."""
        path = Path(filename)
        with self._mutex:
            if path.parent == self.folder and self._files.find(path.name) is not None:
                self._files.put(path.name, None)
            if safely:
                self._files.sync()
