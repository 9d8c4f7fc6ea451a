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

What a disk holds when the power fails: bytes that are safe, and changes that may be undone.

A change is safe once its file was synced; a name once its folder was. Until then the disk
may have done any part of it: a later write without an earlier one, which is all that
reordering can do, and single sectors of a write without the others.

The simulated disk as SQLite sees it: every call is counted, judged, done to the real file and noted.

Nothing is synced for real: what a sync makes safe is the simulation's business. In one way it is
stricter than a real disk: apsw also raises what SQLite would keep to itself, such as a checkpoint
that fails after its commit, or a file that fails while it is being closed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import apsw

if TYPE_CHECKING:
    from typing_extensions import Buffer

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


SECTOR = 512

Mode = Literal["nothing", "everything", "prefix", "writes", "sectors"]
MODES: tuple[Mode, ...] = ("nothing", "everything", "prefix", "writes", "sectors")


class Change(NamedTuple):
    """Bytes at an offset, or a new length if there are none."""

    offset: int
    data: bytes | None


class Luck:
    """What becomes of unsynced changes in one power cut."""

    def __init__(self, random: Random, mode: Mode | None = None) -> None:
        self._random = random
        self._odds = random.random()
        self._stale = random.random() < 0.5
        self.mode: Mode = random.choice(MODES) if mode is None else mode

    def survivors(self, changes: list[Change]) -> list[Change]:
        """The changes that reached the disk, in the order in which they were made."""
        if self.mode == "nothing":
            return []
        if self.mode == "everything":
            return changes
        if self.mode == "prefix":
            whole = self._random.randint(0, len(changes))
            return changes[:whole] + self._some(_torn(changes[whole : whole + 1]))
        if self.mode == "sectors":
            changes = _torn(changes)
        return self._some(changes)

    def choose(self, count: int) -> int:
        """Which of the states that a name has been in, oldest first, is found again."""
        if self.mode == "nothing":
            return 0
        return count - 1 if self.mode == "everything" else self._random.randrange(count)

    def filler(self, count: int) -> bytes:
        """What is found where a file grew and nothing was written: zeros, or what lay there before."""
        return self._random.randbytes(count) if self._stale else bytes(count)

    def _some(self, changes: list[Change]) -> list[Change]:
        return [change for change in changes if self._random.random() < self._odds]


def _torn(changes: list[Change]) -> list[Change]:
    """Writes in pieces that each reach the disk whole or not at all."""
    pieces: list[Change] = []
    for change in changes:
        offset, data = change
        if data is None:
            pieces.append(change)
            continue
        cuts = [offset, *range((offset // SECTOR + 1) * SECTOR, offset + len(data), SECTOR), offset + len(data)]
        pieces += [Change(start, data[start - offset : stop - offset]) for start, stop in pairwise(cuts)]
    return pieces


class Image:
    """One file: its safe bytes, and what was done to it since."""

    def __init__(self, safe: bytes = b"") -> None:
        self._safe = bytearray(safe)
        self._pending: list[Change] = []

    def write(self, data: bytes, offset: int) -> None:
        """Note a write; it is not safe yet."""
        self._pending.append(Change(offset, data))

    def truncate(self, size: int) -> None:
        """Note a new length; it is not safe yet."""
        self._pending.append(Change(size, None))

    def sync(self) -> None:
        """Everything written so far is safe."""
        _apply(self._safe, self._pending)
        self._pending.clear()

    def fail_sync(self, luck: Luck, *, forgets: bool) -> None:
        """Some of what was written is safe; the rest may become so later, or never if the pages count as clean."""
        _apply(self._safe, luck.survivors(self._pending), luck)
        if forgets:
            self._pending.clear()

    def after(self, luck: Luck) -> bytes:
        """The bytes that are found after a power cut."""
        found = bytearray(self._safe)
        _apply(found, luck.survivors(self._pending), luck)
        return bytes(found)


def _apply(target: bytearray, changes: list[Change], luck: Luck | None = None) -> None:
    for offset, data in changes:
        gap = offset - len(target)
        if gap > 0:
            target += luck.filler(gap) if luck is not None else bytes(gap)
        if data is None:
            del target[offset:]
        else:
            target[offset : offset + len(data)] = data


class Folder:
    """Names and the files behind them; a new or removed name is safe once the folder was synced."""

    def __init__(self) -> None:
        self._safe: dict[str, Image] = {}
        self._pending: list[tuple[str, Image | None]] = []

    def find(self, name: str) -> Image | None:
        """The file that a name stands for now."""
        for pending, image in reversed(self._pending):
            if pending == name:
                return image
        return self._safe.get(name)

    def put(self, name: str, image: Image | None) -> None:
        """Give a name to a file, or take it away."""
        self._pending.append((name, image))

    def sync(self) -> None:
        """Every name is safe as it is now."""
        for name, image in self._pending:
            if image is None:
                self._safe.pop(name, None)
            else:
                self._safe[name] = image
        self._pending.clear()

    def names(self) -> set[str]:
        """Every name that was ever known and may be found again."""
        return {*self._safe, *(name for name, _ in self._pending)}

    def after(self, luck: Luck) -> dict[str, bytes]:
        """The files that are found after a power cut."""
        found = {}
        for name in sorted(self.names()):
            states = [self._safe.get(name), *(image for pending, image in self._pending if pending == name)]
            image = states[luck.choose(len(states))]
            if image is not None:
                found[name] = image.after(luck)
        return found


Operation = Literal["read", "write", "sync", "truncate", "size", "open", "delete", "access"]

_JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class Verdict(NamedTuple):
    """A call is to fail with this code, after this part of it was done."""

    code: int
    part: float
    forgets: bool = False

    def error(self) -> Exception:
        """What SQLite is told."""
        return apsw.exception_for(self.code)


class SimulatedVFS(apsw.VFS):
    """Opens and deletes."""

    def __init__(self, name: str, disk: Disk) -> None:
        self._disk = disk
        # By name: the default may be another one when a file is opened, even this one.
        self._base = apsw.vfs_names()[0]
        super().__init__(name, self._base)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        """Open a file; names that are not of the disk's folder and temporary files are not simulated."""
        _judge(self._disk, "open")
        return SimulatedFile(self._disk, self._base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        """Delete a file."""
        _judge(self._disk, "delete")
        super().xDelete(filename, False)
        self._disk.deleted(filename, safely=syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        """Whether a file is there."""
        _judge(self._disk, "access")
        return super().xAccess(pathname, flags)


class SimulatedFile(apsw.VFSFile):
    """One open file. Several may be open on the same image."""

    def __init__(self, disk: Disk, base: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        filename = name.filename() if isinstance(name, apsw.URIFilename) else name
        exists = filename is not None and Path(filename).exists()
        super().__init__(base, name, flags)
        self._image = None if filename is None else disk.opened(filename, exists=exists)
        self._journal = bool(flags[0] & _JOURNALS)
        # SQLite syncs the folder with the first sync of a journal that it may have created.
        self._folder = self._journal and bool(flags[0] & apsw.SQLITE_OPEN_CREATE)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        """Read, or fail; a read of a journal may also come back short."""
        verdict = self._disk.begin("read")
        if verdict is None:
            return super().xRead(amount, offset)
        if verdict.code == apsw.SQLITE_IOERR_SHORT_READ and self._journal:
            return super().xRead(amount, offset)[: int(amount * verdict.part)]
        # SQLite takes a short read of the database itself for its end and goes on with zeros.
        # No engine can see through that lie, so here it fails.
        raise (verdict if self._journal else verdict._replace(code=apsw.SQLITE_IOERR_READ)).error()

    def xWrite(self, data: Buffer, offset: int) -> None:  # noqa: N802
        """Write, or a part of it before failing."""
        whole = bytes(data)
        try:
            verdict = self._disk.begin("write")
        except BaseException:
            # The power fails while it is being written: any of it may be found.
            self._write(whole, offset)
            raise
        self._write(whole if verdict is None else whole[: int(len(whole) * verdict.part)], offset)
        if verdict is not None:
            raise verdict.error()

    def _write(self, data: bytes, offset: int) -> None:
        if data:
            super().xWrite(data, offset)
        if data and self._image is not None:
            self._image.write(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        """Set the length."""
        _judge(self._disk, "truncate")
        super().xTruncate(newsize)
        if self._image is not None:
            self._image.truncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Make what was written safe, or some of it before failing."""
        verdict = self._disk.begin("sync")
        if verdict is not None:
            self._disk.fail_sync(self._image, forgets=verdict.forgets)
            raise verdict.error()
        self._disk.sync(self._image, folder=self._folder)
        self._folder = False

    def xFileSize(self) -> int:  # noqa: N802
        """The length."""
        _judge(self._disk, "size")
        return super().xFileSize()


def _judge(disk: Disk, operation: Operation) -> None:
    verdict = disk.begin(operation)
    if verdict is not None:
        raise verdict.error()
