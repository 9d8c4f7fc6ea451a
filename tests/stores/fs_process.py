"""Other processes that use a folder of files: one that is killed in the middle of a write, and one that counts."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.records.entries import StoredEntry
from holdfast.store.fs.store import FsStore

CHANGES = ("open", "mkdir", "fsync", "replace", "unlink", "rmdir", "pwrite", "ftruncate")
"""What a write asks of the operating system. Before or after any of them a process can be killed."""


def in_process(work: Callable[[], object]) -> int:
    """Fork, work, and give the process number. The child never comes back into the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return child


def killed(work: Callable[[], object], *, call: str | None = None, number: int = 1) -> bool:
    """Do the work in a process that kills itself before the n-th such call, or of any; whether it came to that."""
    child = in_process(lambda: (_die(call, number), work()))
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _die(call: str | None, number: int) -> None:
    left = number

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **named)

        return counting

    for name in CHANGES if call is None else (call,):
        setattr(os, name, counted(getattr(os, name)))


def count_up(root: Path, key: str, times: int) -> None:
    """Add one to a number, again whenever another was first."""
    store = FsStore(root)
    done = 0
    while done < times:
        known = store.get("global", key)
        value = 0 if known is None else int(known.value)
        entry = StoredEntry(value=str(value + 1).encode(), written_at=1)
        version = store.put("global", key, entry, 0 if known is None else known.version)
        done += version is not None


def together(works: Sequence[Callable[[], object]]) -> None:
    """All at once, each in its own process, all of which must end well."""
    children = [in_process(work) for work in works]
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
