"""The system clock and randomness, which only this module reads; locks and caches that survive a fork; new files;
warnings.

A warning points at the line of the caller's code, not at a line of the library.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from holdfast.core.journal.codec import SALT_BYTES
from holdfast.core.lazy import set_type_lock
from holdfast.errors import ReadOnly, Refused, StorageFull
from holdfast.ports import Clock
from holdfast.records.ids import next_ulid

_ULID_ENTROPY = 10
_ENTROPY_BYTES = 4096
_UNKNOWN_MACHINE = "elsewhere"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

set_type_lock(threading.RLock())


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SystemIds:
    """A source of fresh salts and of ULIDs that always increase, even if the clock goes back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._previous = self._drawn = 0
        self._entropy = b""
        self._lock = threading.Lock()
        renew_in_child(self)

    def ulid(self) -> bytes:
        with self._lock:
            at = self._drawn
            if at + _ULID_ENTROPY > len(self._entropy):
                at = self._refill()
            self._drawn = at + _ULID_ENTROPY
            entropy = int.from_bytes(self._entropy[at : self._drawn], "big")
            self._previous = next_ulid(self._previous, self._clock.now_ms(), entropy)
            return self._previous.to_bytes(16, "big")

    def salt(self) -> bytes:
        with self._lock:
            at = self._drawn
            if at + SALT_BYTES > len(self._entropy):
                at = self._refill()
            self._drawn = at + SALT_BYTES
            return self._entropy[at : self._drawn]

    def _refill(self) -> int:
        """Fetch random bytes of the system ahead, since each call of it gives up the GIL; return where they begin."""
        self._entropy = os.urandom(_ENTROPY_BYTES)
        return 0

    def after_fork(self) -> None:
        """Start over, so that parent and child do not continue from the same id or the same random bytes."""
        self._lock = threading.Lock()
        self._previous = self._drawn = 0
        self._entropy = b""


class ProcessName:
    """The name of this process for other processes: machine, process id, start time and a random suffix."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Choose a new name: a forked child is another process."""
        self.name = f"{_machine_id()}:{os.getpid()}:{_start_time(os.getpid())}:{os.urandom(4).hex()}"

    def is_gone(self, name: str) -> bool:
        """Return True if the named process ran on this machine and is known to have ended, else False."""
        pieces = name.split(":")
        if len(pieces) != 4 or pieces[0] != _machine_id() or pieces[0] == _UNKNOWN_MACHINE or name == self.name:
            return False
        return _start_time(int(pieces[1])) != pieces[2]


@cache
def _machine_id() -> str:
    """Return a hash of this boot and process-id namespace; a constant where Linux does not provide them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return _UNKNOWN_MACHINE
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:16]


def _start_time(pid: int) -> str:
    """Return a process's start time in ticks since boot, or "" if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


class Renewable(Protocol):
    """An object with locks or counters that a forked child must not inherit."""

    def after_fork(self) -> None: ...


_RENEWABLE: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_child(one: Renewable) -> None:
    """Call `after_fork` of an object in every forked child, for as long as the object lives."""
    _RENEWABLE.add(one)


def _renew() -> None:
    for one in list(_RENEWABLE):
        one.after_fork()


class ForkLock:
    """A lock, for `with guard.lock:`, that a forked child finds free whichever thread of the parent held it."""

    def __init__(self, *, reentrant: bool = False) -> None:
        self._make: Callable[[], threading.Lock | threading.RLock] = threading.RLock if reentrant else threading.Lock
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Replace the lock. A block that forks still releases the one that it took."""
        self.lock = self._make()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class Lru(Generic[KeyT, ValueT]):
    """Values by key, at most `most` of them, or of that total weight if `weigh` is given. Threads may share it.

    With `rank`, a value does not replace one of a higher rank.
    """

    def __init__(
        self, most: int, weigh: Callable[[ValueT], int] | None = None, rank: Callable[[ValueT], int] | None = None
    ) -> None:
        self._most, self._weigh, self._weight, self._rank = most, weigh, 0, rank
        self._kept: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._guard = ForkLock()

    def get(self, key: KeyT) -> ValueT | None:
        """Return a value and mark it as used, or None."""
        with self._guard.lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: KeyT, value: ValueT) -> None:
        """Keep a value as the most recently used one, dropping others to make room."""
        with self._guard.lock:
            before = self._kept.pop(key, None)
            if before is not None and self._rank is not None and self._rank(before) > self._rank(value):
                value = before
            self._kept[key] = value
            if self._weigh is None:
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
                return
            self._weight += self._weigh(value) - (0 if before is None else self._weigh(before))
            while self._weight > self._most:
                self._weight -= self._weigh(self._kept.popitem(last=False)[1])

    def drop(self, key: KeyT) -> ValueT | None:
        """Remove and return a value, or None."""
        with self._guard.lock:
            value = self._kept.pop(key, None)
            if value is not None and self._weigh is not None:
                self._weight -= self._weigh(value)
            return value

    def clear(self) -> None:
        """Remove everything."""
        with self._guard.lock:
            self._kept.clear()
            self._weight = 0

    def __len__(self) -> int:
        return len(self._kept)


_PACKAGE: Final = "holdfast"
_THREAD_MODULES: Final = frozenset({"threading", "concurrent.futures.thread"})


class CallSite(NamedTuple):
    """A line of the caller's code."""

    file: str
    line: int
    module: str
    registry: dict[Any, Any]
    """The module's registry of warnings already shown."""


CALL_SITE: Final[ContextVar[CallSite | None]] = ContextVar("holdfast_caller", default=None)
"""The call site of the work that this thread now runs."""


def find_call_site() -> CallSite:
    """Return the line that called the library."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and _module_of(frame).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    module = _module_of(frame)
    if module in _THREAD_MODULES and (known := CALL_SITE.get()) is not None:
        return known
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    return CallSite(frame.f_code.co_filename, frame.f_lineno, module or "<unknown>", registry)


def warn_caller(text: str) -> None:
    """Emit a RuntimeWarning at the caller's line; dropped where warnings are errors, because the work is done."""
    place = find_call_site()
    with suppress(RuntimeWarning):
        warnings.warn_explicit(text, RuntimeWarning, place.file, place.line, place.module, place.registry)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "")


def write_new_file(target: Path, lines: Iterable[bytes]) -> int:
    """Write lines to a new file that appears whole or not at all and that only its owner can read; return their number.

    A name that is taken is refused.
    """
    partial, count = target.with_name(f"{target.name}.{os.urandom(4).hex()}.part"), 0
    try:
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            for line in lines:
                file.write(line + b"\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        publish_file(partial, target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        if error.errno in _DISK_FULL:
            raise StorageFull() from error
        text = f"{target} cannot be written ({error.strerror}). Check the folder and its permissions."
        raise ReadOnly(text) from error
    return count


def publish_file(partial: Path, target: Path) -> None:
    """Rename a finished file to its final name; refuse a name that is taken by now, and replace nothing."""
    try:
        try:
            os.link(partial, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without hard links: the name is taken first, then filled.
            os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o600))
            partial.replace(target)
        else:
            with suppress(OSError):
                partial.unlink()
    except FileExistsError:
        raise Refused(f"{target} exists already. Move it away, or give the path of a new file.") from None
