"""How much of this machine other processes used meanwhile: what a reader must know before believing a ratio.

A busy neighbour does not slow everything down alike. One thread that sleeps in a sync waits
for the processor when it wakes; eight threads share that wait, and look better than they are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
QUIET = 0.3
"""Cores that others may use before a topic is marked as disturbed."""


def _machine_seconds() -> float:
    """Processor seconds that the whole machine has spent, without waiting."""
    user, nice, system, _, _, irq, soft, *_ = map(int, STAT.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Those of this process and of the children it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Neighbours:
    """Watches from when it is made; not every system tells."""

    def __init__(self) -> None:
        self._known = STAT.exists()
        self._start = time.monotonic()
        if self._known:
            self._others = _machine_seconds() - _own_seconds()

    def cores(self) -> float | None:
        """Cores that others used on average since then; None if this system does not tell."""
        if not self._known:
            return None
        passed = time.monotonic() - self._start
        return max(0.0, (_machine_seconds() - _own_seconds() - self._others) / passed)
