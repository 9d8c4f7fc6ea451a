"""The write lock of a folder: one writer at a time, among all threads and processes of a machine.

The lock file records the newest version given out, so that none is given twice, and the folder being changed. If
a writer is killed, its change may be visible but not on disk: the next writer syncs that folder before building
on it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.errors import Busy, Unavailable
from holdfast.store.fs.files import FileTree, sync_handle, translate_os_errors
from holdfast.system import ForkLock, SystemClock, renew_in_child

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"
"""The name of the lock file. No scope's folder begins with a dot."""

LOCK_TIMEOUT = 30.0
"""The seconds to wait for other writers, as long as for a journal's lock."""

_MAX_NOTE_BYTES = 1 << 16
_MAX_DIGITS = 19


class FolderWriter:
    """The right to change files. Each change is recorded in the lock file first."""

    def __init__(self, tree: FileTree, handle: int) -> None:
        self._tree = tree
        self._handle = handle
        self._newest, self._unfinished = _read_note(handle)

    def next_version(self, previous: int) -> int:
        """Return the next version: larger than any before, including deleted entries' and other folders'."""
        self._newest = max(previous, self._newest, SystemClock().now_ms() * 1000) + 1
        return self._newest

    @contextmanager
    def record_change(self, names: Sequence[str]) -> Iterator[None]:
        """Record a folder while it is changed. An error leaves the record behind, as a killed process does."""
        if self._unfinished:
            self._sync_unfinished(self._unfinished.split("/"))
            self._unfinished = ""
        self._write_note("/".join(names))
        yield
        try:
            self._write_note("")
        except OSError:
            pass  # The change is done; the next writer syncs it once more.

    def _sync_unfinished(self, names: Sequence[str]) -> None:
        """Sync every folder on the path that a killed writer left."""
        for depth in range(len(names) + 1):
            with self._tree.folder(names[:depth]) as folder:
                if folder is None:
                    return
                sync_handle(folder)

    def _write_note(self, unfinished: str) -> None:
        # A line, read up to its end: bytes behind it may briefly remain of an earlier, longer line.
        line = f"{self._newest} {unfinished}\n".encode()
        os.pwrite(self._handle, line, 0)
        os.ftruncate(self._handle, len(line))


def _read_note(handle: int) -> tuple[int, str]:
    line, end, _ = os.pread(handle, _MAX_NOTE_BYTES, 0).partition(b"\n")
    newest, space, unfinished = line.partition(b" ")
    if not (end and space and newest.isdigit() and len(newest) < _MAX_DIGITS and unfinished.isascii()):
        return 0, ""  # New or foreign: versions go on from the clock.
    return int(newest), unfinished.decode("ascii")


class FolderLock:
    """The write lock. Threads wait on a mutex, processes on the lock file."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree
        self._lock = ForkLock()
        self._handle: int | None = None
        renew_in_child(self)

    def after_fork(self) -> None:
        """Release the lock in a child, which must not keep its parent's alive."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @contextmanager
    def acquire(self) -> Iterator[FolderWriter]:
        """Wait for the lock and yield the right to write; release it at the end."""
        if not self._lock.lock.acquire(timeout=LOCK_TIMEOUT):
            raise Busy
        try:
            with translate_os_errors(self._tree.root):
                top = self._tree.open_root()
                try:
                    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                    self._handle = os.open(LOCK_FILE, flags, 0o600, dir_fd=top)
                finally:
                    os.close(top)
                _wait_for_lock(self._handle)
                yield FolderWriter(self._tree, self._handle)
        finally:
            if self._handle is not None:
                handle, self._handle = self._handle, None
                # Explicitly: if a child was forked meanwhile, closing the file would not release the lock.
                fcntl.flock(handle, fcntl.LOCK_UN)
                os.close(handle)
            self._lock.lock.release()


def _wait_for_lock(handle: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Busy from None
            time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311  only to keep waiters out of step
        except OSError as error:
            raise Unavailable(f"This file system does not lock files ({error.strerror}). Use a local disk.") from error
        else:
            return
