"""The simulated disk as SQLite sees it: every call is counted, judged, done to the real file and noted.

Nothing is synced for real: what a sync makes safe is the simulation's business. In one way it is
stricter than a real disk: apsw also raises what SQLite would keep to itself, such as a checkpoint
that fails after its commit, or a file that fails while it is being closed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import apsw

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from holdfast.testing.disk import Disk

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
