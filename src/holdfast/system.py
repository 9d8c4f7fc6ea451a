"""The only place that reads the clock and asks for randomness. Everything else is given them."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from functools import cache
from pathlib import Path
from typing import Protocol

from holdfast.core.journal.chain import SALT_BYTES
from holdfast.core.msgspec_types import one_at_a_time
from holdfast.ports import Clock
from holdfast.records.ids import next_ulid

_ENTROPY_BYTES = 10

one_at_a_time(threading.RLock())


class SystemClock:
    """The machine's time."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SystemIds:
    """ULIDs that only ever grow, whatever the clock does, and fresh salts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._previous = 0
        self._lock = threading.Lock()
        renew_in_child(self)

    def ulid(self) -> bytes:
        with self._lock:
            self._previous = next_ulid(
                self._previous, self._clock.now_ms(), int.from_bytes(os.urandom(_ENTROPY_BYTES), "big")
            )
            return self._previous.to_bytes(16, "big")

    def salt(self) -> bytes:
        return os.urandom(SALT_BYTES)

    def after_fork(self) -> None:
        """Parent and child must not count on from the same id."""
        self._lock = threading.Lock()
        self._previous = 0


class ProcessName:
    """Who this process is, for others to see: a place, a number and a start that no other process shares."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A child is somebody else."""
        self.name = f"{_place()}:{os.getpid()}:{_started(os.getpid())}:{os.urandom(4).hex()}"

    def surely_gone(self, name: str) -> bool:
        """Whether a process of this very machine is known to have ended; of any other, nothing is known."""
        pieces = name.split(":")
        if len(pieces) != 4 or pieces[0] != _place() or pieces[0] == _UNKNOWN or name == self.name:
            return False
        return _started(int(pieces[1])) != pieces[2]


_UNKNOWN = "elsewhere"


@cache
def _place() -> str:
    """This boot of this machine and this space of process numbers, hashed; unknown where Linux does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return _UNKNOWN
    return hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:16]


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; nothing if there is none (a zombie has ended, too)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


class Renewable(Protocol):
    """Something with locks or counters that a forked child must not inherit."""

    def after_fork(self) -> None: ...


_RENEWABLE: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_child(one: Renewable) -> None:
    """Call `after_fork` in every forked child, as long as the object lives."""
    _RENEWABLE.add(one)


def _renew() -> None:
    for one in list(_RENEWABLE):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
