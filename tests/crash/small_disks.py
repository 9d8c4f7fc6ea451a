"""Disks that can be filled and freed: a mounted one where that is allowed, and a simulated one everywhere."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import apsw

from holdfast.testing.disk import Disk

SIZE = 16_000_000


class MountedDisk:
    """A file system of its own, filled by a file."""

    vfs = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    @classmethod
    def mount(cls, folder: Path) -> MountedDisk | None:
        """None where that is not allowed."""
        if shutil.which("mount") is None or os.name != "posix":
            return None
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        return cls(folder)

    def fill(self) -> None:
        """Use up every byte that is left."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (65_536, 512, 1):
                with suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def release(self) -> None:
        """There is space again."""
        self._ballast.unlink()

    def close(self) -> None:
        """Unmount."""
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class SimulatedDisk:
    """Every write fails for want of space, of SQLite and of files beside the database."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.folder = folder
        self._disk = Disk(folder)
        self.vfs = self._disk.name
        self._usual = apsw.vfs_names()[0]
        self._full = False
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, handle: int) -> None:
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fsync(handle)

    def fill(self) -> None:
        """From now on nothing can be written."""
        self._full = True
        apsw.set_default_vfs(self.vfs)
        self._disk.fail("full", sticky=True)

    def release(self) -> None:
        """There is space again."""
        self._full = False
        apsw.set_default_vfs(self._usual)
        self._disk.heal()

    def close(self) -> None:
        """Forget it."""
        self.release()
        self._disk.close()
