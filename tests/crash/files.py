"""The files beside a database when the power fails: what was not synced is undone.

The simulated disk sees what SQLite does. Artifacts are written past it, so the calls that
make them safe are watched instead.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class Files:
    """Watches one folder from now on."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self._folder = folder
        self._synced: set[int] = set()
        self._names: dict[Path, set[str]] = {}
        self._removed: dict[Path, bytes] = {}
        self._fsync, self._unlink = os.fsync, os.unlink
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "unlink", self.unlink)

    def fsync(self, handle: int) -> None:
        """A file's bytes are safe, or a folder's names."""
        self._fsync(handle)
        status = os.fstat(handle)
        if not stat.S_ISDIR(status.st_mode):
            self._synced.add(status.st_ino)
            return
        for folder in (self._folder, *self._folder.rglob("*")):
            if folder.is_dir() and folder.stat().st_ino == status.st_ino:
                self._names[folder] = {path.name for path in folder.iterdir()}
                self._removed = {path: data for path, data in self._removed.items() if path.parent != folder}

    def unlink(self, path, **how) -> None:
        """A name is gone, and may come back."""
        path = Path(path)
        if path.parent in self._names and path.name in self._names[path.parent]:
            self._removed[path] = path.read_bytes()
        self._unlink(path, **how)

    def undo(self, copy: Path) -> None:
        """Undo everything that was not synced, in a copy of the folder."""
        for path in self._folder.glob("*-artifacts/**/*"):
            if path.is_file() and not self._is_safe(path):
                self._unlink(copy / path.relative_to(self._folder))
        for path, data in self._removed.items():
            (copy / path.relative_to(self._folder)).write_bytes(data)

    def _is_safe(self, path: Path) -> bool:
        if path.stat().st_ino not in self._synced:
            return False
        while path != self._folder:
            if path.name not in self._names.get(path.parent, ()):
                return False
            path = path.parent
        return True
