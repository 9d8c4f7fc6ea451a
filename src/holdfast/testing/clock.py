"""Time and randomness under control: a clock that is moved by hand, and ids from a seed."""

from __future__ import annotations

import random
import threading

from holdfast.core.journal.codec import SALT_BYTES
from holdfast.ports import Clock
from holdfast.records.ids import next_ulid

_START_MS = 1_750_000_000_000


class FrozenClock:
    """A clock that stands still until moved. Wall time may jump either way; monotonic time only grows."""

    def __init__(self, now_ms: int = _START_MS) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        """Return the wall time in milliseconds."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return seconds that only grow."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Advance the clock at once, without waiting."""
        self.advance(round(seconds * 1000))

    def advance(self, milliseconds: int) -> None:
        """Advance wall time and monotonic time."""
        if milliseconds < 0:
            raise ValueError("Time passes forwards; use jump() to set the wall clock back.")
        self._now_ms += milliseconds
        self._monotonic += milliseconds / 1000

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forwards or back, as an administrator would; no time passes."""
        self._now_ms = max(0, self._now_ms + milliseconds)


class SeededIds:
    """ULIDs and salts that are the same in every run with the same seed and clock."""

    def __init__(self, clock: Clock, seed: int = 0) -> None:
        self._clock = clock
        self._random = random.Random(seed)  # noqa: S311  # nosec B311: repeatable is the point
        self._previous = 0
        self._lock = threading.Lock()

    def ulid(self) -> bytes:
        """Return the next ULID."""
        with self._lock:
            self._previous = next_ulid(self._previous, self._clock.now_ms(), self._random.getrandbits(80))
            return self._previous.to_bytes(16, "big")

    def salt(self) -> bytes:
        """Return the next salt."""
        with self._lock:
            return self._random.randbytes(SALT_BYTES)
