"""Large bodies as files beside the database: written, synced and renamed before anything refers to them.

A file's name is a keyed digest of its content, so it says nothing and cannot be chosen:
no caller's text ever reaches a path.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from holdfast.core.lazy import lazy_module
from holdfast.errors import Corrupt, StorageFull, Unavailable

if TYPE_CHECKING:
    import tempfile
else:
    tempfile = lazy_module(__name__, "tempfile")

_ARTIFACT_NAME = re.compile(r"[0-9a-f]{64}|\.new-.+")


def row_digest(*values: apsw.SQLiteValue) -> bytes:
    """Return a digest of the columns of a row that the chain does not cover, so that damage is detected."""
    return hashlib.sha256(repr(values).encode()).digest()


class ArtifactFiles:
    """The folder `<database>-artifacts`, with a folder per tenant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, tenant: str, name: bytes) -> Path:
        """Return the path of a body."""
        return self.folder / hashlib.sha256(tenant.encode()).hexdigest()[:32] / name.hex()

    def write(self, tenant: str, name: bytes, body: bytes) -> None:
        """Write a body durably; a crash leaves the whole file or none."""
        target = self.path(tenant, name)
        try:
            for folder in (self.folder, target.parent):
                folder.mkdir(exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(target)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
            for folder in (target.parent, self.folder, self.folder.parent):
                sync_folder(folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull() from error
            raise Unavailable(f"The artifact could not be written ({error.strerror}). Nothing was written.") from error

    def read(self, tenant: str, name: bytes) -> bytes:
        """Read a body from disk."""
        try:
            return self.path(tenant, name).read_bytes()
        except FileNotFoundError:
            raise Corrupt(f"The file of artifact {name.hex()} is missing. Restore it from a backup.") from None
        except OSError as error:
            raise Unavailable(f"Artifact {name.hex()} cannot be read ({error.strerror}).") from error

    def read_beginning(self, tenant: str, name: bytes, size: int) -> bytes:
        """Return the first bytes of a body, or b"" if it cannot be read, for callers that can do without them."""
        try:
            with self.path(tenant, name).open("rb") as file:
                return file.read(size)
        except OSError:
            return b""

    def remove(self, tenant: str, name: bytes) -> None:
        """Delete a body from disk."""
        self.unlink(self.path(tenant, name))

    def unlink(self, path: Path) -> None:
        """Delete one file of this folder, unless it is gone already."""
        try:
            if path.exists():
                path.unlink()
                sync_folder(path.parent)
        except OSError as error:
            raise Unavailable(f"Artifact {path.name} cannot be removed ({error.strerror}). Try again.") from error

    def iterate_old(self, before_ms: int) -> Iterator[Path]:
        """Yield files last written before `before_ms`, unfinished ones included."""
        if self.folder.is_dir():
            for path in self.folder.glob("*/*"):
                if not _ARTIFACT_NAME.fullmatch(path.name):
                    continue  # A foreign file, such as a file manager's.
                try:
                    if path.stat().st_mtime * 1000 < before_ms:
                        yield path
                except FileNotFoundError:
                    continue


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if os.name != "posix":
        return  # Windows cannot sync a folder and does not need to.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
