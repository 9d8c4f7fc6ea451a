"""A simulated disk: real files behind SQLite, whose power can be cut and whose calls can be made to fail.

    with Disk(folder) as disk:
        journal = SqliteJournal(folder / "agent.db", vfs=disk.name)
        disk.cut_at(17)                        # the 17th I/O call from now does not return
        ...                                    # work until PowerCut, or until disk.dead
        disk.power_cut(random, into=elsewhere) # write what the disk holds after that

It promises what an honest disk does, and no more. Synced data stays. Unsynced data may be there, torn at sectors, in
any part and order. A failed write or sync may have done some of its work. After a sync that fails and forgets, as on
Linux, the unwritten data can be read until the power fails, and no later sync makes it safe.

Locks and shared memory are those of the real files, so several connections work as usual. Only SQLite's access
through this VFS to the files of one folder is simulated; other files are copied as they are. Nothing is really
synced: the simulation decides what a sync makes safe. In one way it is stricter than a real disk: apsw also raises
errors that SQLite would ignore, such as a checkpoint that fails after its commit, or a file that fails while it is
being closed.
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
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import apsw

if TYPE_CHECKING:
    from typing_extensions import Buffer

FaultKind = Literal["read", "short", "write", "full", "sync", "forget", "truncate", "size", "open", "delete", "access"]

FAULT_KINDS: dict[FaultKind, tuple[DiskOperation, int]] = {
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

_DISK_NUMBERS = itertools.count(1)
# SQLite keeps pointers into a VFS while a connection uses it, so a disk is kept alive until it is closed.
_OPEN_DISKS: set[Disk] = set()


class PowerCut(BaseException):
    """The power failed during this call. Not an `Exception`, so that no error handling can continue."""


class Disk:
    """The disk of one folder. Pass `name` as the `vfs` of a connection; close the disk after its connections."""

    def __init__(self, folder: Path, *, sync_delay: float = 0.0, random: Random | None = None) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.sync_delay = sync_delay
        """Seconds that each sync takes."""
        self.counts: Counter[DiskOperation] = Counter()
        """I/O calls so far, by operation."""
        self.calls = 0
        """I/O calls so far."""
        self.hits = 0
        """Calls that were made to fail."""
        self.dead = False
        """True once the power was cut; from then on every call fails."""
        self._random = random or Random(0)  # noqa: S311  # nosec B311: repeatable is the point
        self._mutex = threading.RLock()
        self._cut_at: int | None = None
        self._kind: FaultKind | None = None
        self._from = 0
        self._sticky = False
        self._files = DiskFolder()
        for path in self.folder.iterdir():
            if path.is_file() and not path.name.endswith("-shm"):
                self._files.put(path.name, FileImage(path.read_bytes()))
        self._files.sync()
        self.name = f"holdfast-disk-{next(_DISK_NUMBERS)}"
        """The name of this disk's VFS in SQLite."""
        self._vfs = SimulatedVFS(self.name, self)
        _OPEN_DISKS.add(self)

    # called by tests

    def cut_at(self, call: int) -> None:
        """Cut the power during the n-th I/O call from now."""
        with self._mutex:
            self._cut_at = self.calls + call

    def cut(self) -> None:
        """Cut the power now."""
        self.dead = True

    def restart(self) -> None:
        """Restart after the process died, as by kill -9: its writes can still be read and are no safer than before."""
        with self._mutex:
            self.dead, self._cut_at = False, None

    def fail(self, kind: FaultKind, *, after: int = 0, sticky: bool = False) -> None:
        """Make the first call of a kind after some number of I/O calls fail; with `sticky`, every one until `heal`."""
        with self._mutex:
            self._kind, self._from, self._sticky = kind, self.calls + after, sticky

    def heal(self) -> None:
        """Stop failing calls. A power cut that already happened stays."""
        with self._mutex:
            self._kind = self._cut_at = None

    def power_cut(self, random: Random, into: Path, mode: CutMode | None = None) -> None:
        """Write into a folder what the disk would hold if the power failed now, or when it did."""
        into.mkdir(parents=True, exist_ok=True)
        with self._mutex:
            files = self._files.files_after_cut(PowerCutOdds(random, mode))
            known = self._files.names()
        for name, data in files.items():
            (into / name).write_bytes(data)
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.copytree(path, into / path.name)
            elif path.name not in known and not path.name.endswith("-shm"):
                shutil.copyfile(path, into / path.name)

    def close(self) -> None:
        """Discard everything. The disk's connections must be closed."""
        self._vfs.unregister()
        self._files = DiskFolder()
        _OPEN_DISKS.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # called by SQLite through the VFS

    def begin_call(self, operation: DiskOperation) -> DiskFault | None:
        """Count a call; return None if it succeeds, else the code to fail with and the part of the work to do first."""
        with self._mutex:
            self.calls += 1
            self.counts[operation] += 1
            if self.dead:
                return DiskFault(apsw.SQLITE_IOERR, 0.0)
            if self._cut_at is not None and self.calls >= self._cut_at:
                self.dead = True
                raise PowerCut
            return self._make_fault(operation)

    def _make_fault(self, operation: DiskOperation) -> DiskFault | None:
        if self._kind is None or self.calls <= self._from or FAULT_KINDS[self._kind][0] != operation:
            return None
        kind, code = self._kind, FAULT_KINDS[self._kind][1]
        if not self._sticky:
            self._kind = None
        self.hits += 1
        # Some failures come before the work, some during it, some after it; a full disk or a short read
        # never does all of the work.
        part = min(1.0, max(0.0, self._random.uniform(-1.0, 1.5)))
        return DiskFault(code, part * 0.99 if kind in ("full", "short") else part, forgets=kind == "forget")

    def sync(self, image: FileImage | None, *, folder: bool) -> None:
        """Sync a file, its folder, or both."""
        if self.sync_delay:
            time.sleep(self.sync_delay)
        with self._mutex:
            if image is not None and not self.dead:
                image.sync()
            if folder and not self.dead:
                self._files.sync()

    def fail_sync(self, image: FileImage | None, *, forgets: bool) -> None:
        """Fail a sync after some of its work."""
        with self._mutex:
            if image is not None and not self.dead:
                image.fail_sync(PowerCutOdds(self._random), forgets=forgets)

    def open_image(self, filename: str, *, exists: bool) -> FileImage | None:
        """Return the image of a file of this folder, creating it if needed; a new name is not safe until synced."""
        path = Path(filename)
        if path.parent != self.folder:
            return None
        with self._mutex:
            image = self._files.find(path.name) if exists else None
            if image is None:
                image = FileImage()
                self._files.put(path.name, image)
            return image

    def delete_image(self, filename: str, *, safely: bool) -> None:
        """Remove a file's name, for good if the folder was synced."""
        path = Path(filename)
        with self._mutex:
            if path.parent == self.folder and self._files.find(path.name) is not None:
                self._files.put(path.name, None)
            if safely:
                self._files.sync()


SECTOR = 512

CutMode = Literal["nothing", "everything", "prefix", "writes", "sectors"]
CUT_MODES: tuple[CutMode, ...] = ("nothing", "everything", "prefix", "writes", "sectors")


class DiskChange(NamedTuple):
    """Bytes at an offset; without bytes, a new length."""

    offset: int
    data: bytes | None


class PowerCutOdds:
    """The fate of unsynced changes in one power cut."""

    def __init__(self, random: Random, mode: CutMode | None = None) -> None:
        self._random = random
        self._odds = random.random()
        self._stale = random.random() < 0.5
        self.mode: CutMode = random.choice(CUT_MODES) if mode is None else mode

    def survivors(self, changes: list[DiskChange]) -> list[DiskChange]:
        """Return the changes that reached the disk, in the order in which they were made."""
        if self.mode == "nothing":
            return []
        if self.mode == "everything":
            return changes
        if self.mode == "prefix":
            whole = self._random.randint(0, len(changes))
            return changes[:whole] + self._sample_changes(_split_at_sectors(changes[whole : whole + 1]))
        if self.mode == "sectors":
            changes = _split_at_sectors(changes)
        return self._sample_changes(changes)

    def choose(self, count: int) -> int:
        """Choose which of a name's states, oldest first, is found again."""
        if self.mode == "nothing":
            return 0
        return count - 1 if self.mode == "everything" else self._random.randrange(count)

    def filler(self, count: int) -> bytes:
        """Return the bytes found where a file grew and nothing was written: zeros, or stale data."""
        return self._random.randbytes(count) if self._stale else bytes(count)

    def _sample_changes(self, changes: list[DiskChange]) -> list[DiskChange]:
        return [change for change in changes if self._random.random() < self._odds]


def _split_at_sectors(changes: list[DiskChange]) -> list[DiskChange]:
    """Split writes at sectors; each piece reaches the disk whole or not at all."""
    pieces: list[DiskChange] = []
    for change in changes:
        offset, data = change
        if data is None:
            pieces.append(change)
            continue
        cuts = [offset, *range((offset // SECTOR + 1) * SECTOR, offset + len(data), SECTOR), offset + len(data)]
        pieces += [DiskChange(start, data[start - offset : stop - offset]) for start, stop in pairwise(cuts)]
    return pieces


class FileImage:
    """One file: its safe bytes, and the changes since."""

    def __init__(self, safe: bytes = b"") -> None:
        self._safe = bytearray(safe)
        self._pending: list[DiskChange] = []

    def write(self, data: bytes, offset: int) -> None:
        """Record a write; it is not safe yet."""
        self._pending.append(DiskChange(offset, data))

    def truncate(self, size: int) -> None:
        """Record a new length; it is not safe yet."""
        self._pending.append(DiskChange(size, None))

    def sync(self) -> None:
        """Make all changes so far safe."""
        _apply_changes(self._safe, self._pending)
        self._pending.clear()

    def fail_sync(self, luck: PowerCutOdds, *, forgets: bool) -> None:
        """Make some changes safe; the rest may become so later, or never if the pages count as clean (`forgets`)."""
        _apply_changes(self._safe, luck.survivors(self._pending), luck)
        if forgets:
            self._pending.clear()

    def bytes_after_cut(self, luck: PowerCutOdds) -> bytes:
        """Return the bytes that are found after a power cut."""
        found = bytearray(self._safe)
        _apply_changes(found, luck.survivors(self._pending), luck)
        return bytes(found)


def _apply_changes(target: bytearray, changes: list[DiskChange], luck: PowerCutOdds | None = None) -> None:
    for offset, data in changes:
        gap = offset - len(target)
        if gap > 0:
            target += luck.filler(gap) if luck is not None else bytes(gap)
        if data is None:
            del target[offset:]
        else:
            target[offset : offset + len(data)] = data


class DiskFolder:
    """Names and the files behind them; a new or removed name is safe once the folder was synced."""

    def __init__(self) -> None:
        self._safe: dict[str, FileImage] = {}
        self._pending: list[tuple[str, FileImage | None]] = []

    def find(self, name: str) -> FileImage | None:
        """Return the file that a name stands for now."""
        for pending, image in reversed(self._pending):
            if pending == name:
                return image
        return self._safe.get(name)

    def put(self, name: str, image: FileImage | None) -> None:
        """Give a name to a file, or remove the name."""
        self._pending.append((name, image))

    def sync(self) -> None:
        """Make the present names safe."""
        for name, image in self._pending:
            if image is None:
                self._safe.pop(name, None)
            else:
                self._safe[name] = image
        self._pending.clear()

    def names(self) -> set[str]:
        """Return every name that may be found after a power cut."""
        return {*self._safe, *(name for name, _ in self._pending)}

    def files_after_cut(self, luck: PowerCutOdds) -> dict[str, bytes]:
        """Return the files that are found after a power cut."""
        found = {}
        for name in sorted(self.names()):
            states = [self._safe.get(name), *(image for pending, image in self._pending if pending == name)]
            image = states[luck.choose(len(states))]
            if image is not None:
                found[name] = image.bytes_after_cut(luck)
        return found


DiskOperation = Literal["read", "write", "sync", "truncate", "size", "open", "delete", "access"]

_JOURNAL_FLAGS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


class DiskFault(NamedTuple):
    """A fault of one call: the error code, and the part of the work done before it."""

    code: int
    part: float
    forgets: bool = False

    def error(self) -> Exception:
        """Return the exception to raise to SQLite."""
        return apsw.exception_for(self.code)


class SimulatedVFS(apsw.VFS):
    """The VFS of a simulated disk."""

    def __init__(self, name: str, disk: Disk) -> None:
        self._disk = disk
        # Kept by name: the default VFS may change before a file is opened, even to this one.
        self._base = apsw.vfs_names()[0]
        super().__init__(name, self._base)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        """Open a file; temporary files and files outside the disk's folder are not simulated."""
        _raise_fault(self._disk, "open")
        return SimulatedFile(self._disk, self._base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        """Delete a file."""
        _raise_fault(self._disk, "delete")
        super().xDelete(filename, False)
        self._disk.delete_image(filename, safely=syncdir)

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        """Return True if a file exists."""
        _raise_fault(self._disk, "access")
        return super().xAccess(pathname, flags)


class SimulatedFile(apsw.VFSFile):
    """An open file. Several may be open on the same image."""

    def __init__(self, disk: Disk, base: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        filename = name.filename() if isinstance(name, apsw.URIFilename) else name
        exists = filename is not None and Path(filename).exists()
        super().__init__(base, name, flags)
        self._image = None if filename is None else disk.open_image(filename, exists=exists)
        self._journal = bool(flags[0] & _JOURNAL_FLAGS)
        # SQLite syncs the folder with the first sync of a journal that it may have created.
        self._folder = self._journal and bool(flags[0] & apsw.SQLITE_OPEN_CREATE)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        """Read, or fail; a read of a journal may also come back short."""
        verdict = self._disk.begin_call("read")
        if verdict is None:
            return super().xRead(amount, offset)
        if verdict.code == apsw.SQLITE_IOERR_SHORT_READ and self._journal:
            return super().xRead(amount, offset)[: int(amount * verdict.part)]
        # SQLite takes a short read of the database itself for its end and goes on with zeros.
        # No engine can detect that, so the read fails instead.
        raise (verdict if self._journal else verdict._replace(code=apsw.SQLITE_IOERR_READ)).error()

    def xWrite(self, data: Buffer, offset: int) -> None:  # noqa: N802
        """Write, or write a part and fail."""
        whole = bytes(data)
        try:
            verdict = self._disk.begin_call("write")
        except BaseException:
            # The power fails during the write: any part of it may be found.
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
        _raise_fault(self._disk, "truncate")
        super().xTruncate(newsize)
        if self._image is not None:
            self._image.truncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        """Make the changes safe, or make some of them safe and fail."""
        verdict = self._disk.begin_call("sync")
        if verdict is not None:
            self._disk.fail_sync(self._image, forgets=verdict.forgets)
            raise verdict.error()
        self._disk.sync(self._image, folder=self._folder)
        self._folder = False

    def xFileSize(self) -> int:  # noqa: N802
        """Return the length."""
        _raise_fault(self._disk, "size")
        return super().xFileSize()


def _raise_fault(disk: Disk, operation: DiskOperation) -> None:
    verdict = disk.begin_call(operation)
    if verdict is not None:
        raise verdict.error()
