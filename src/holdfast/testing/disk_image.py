"""What a disk holds when the power fails: bytes that are safe, and changes that may be undone.

A change is safe once its file was synced; a name once its folder was. Until then the disk
may have done any part of it: a later write without an earlier one, which is all that
reordering can do, and single sectors of a write without the others.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Literal, NamedTuple

SECTOR = 512

Mode = Literal["nothing", "everything", "prefix", "writes", "sectors"]
MODES: tuple[Mode, ...] = ("nothing", "everything", "prefix", "writes", "sectors")


class Change(NamedTuple):
    """Bytes at an offset, or a new length if there are none."""

    offset: int
    data: bytes | None


class Luck:
    """What becomes of unsynced changes in one power cut."""

    def __init__(self, random: Random, mode: Mode | None = None) -> None:
        self._random = random
        self._odds = random.random()
        self._stale = random.random() < 0.5
        self.mode: Mode = random.choice(MODES) if mode is None else mode

    def survivors(self, changes: list[Change]) -> list[Change]:
        """The changes that reached the disk, in the order in which they were made."""
        if self.mode == "nothing":
            return []
        if self.mode == "everything":
            return changes
        if self.mode == "prefix":
            whole = self._random.randint(0, len(changes))
            return changes[:whole] + self._some(_torn(changes[whole : whole + 1]))
        if self.mode == "sectors":
            changes = _torn(changes)
        return self._some(changes)

    def choose(self, count: int) -> int:
        """Which of the states that a name has been in, oldest first, is found again."""
        if self.mode == "nothing":
            return 0
        return count - 1 if self.mode == "everything" else self._random.randrange(count)

    def filler(self, count: int) -> bytes:
        """What is found where a file grew and nothing was written: zeros, or what lay there before."""
        return self._random.randbytes(count) if self._stale else bytes(count)

    def _some(self, changes: list[Change]) -> list[Change]:
        return [change for change in changes if self._random.random() < self._odds]


def _torn(changes: list[Change]) -> list[Change]:
    """Writes in pieces that each reach the disk whole or not at all."""
    pieces: list[Change] = []
    for change in changes:
        offset, data = change
        if data is None:
            pieces.append(change)
            continue
        cuts = [offset, *range((offset // SECTOR + 1) * SECTOR, offset + len(data), SECTOR), offset + len(data)]
        pieces += [Change(start, data[start - offset : stop - offset]) for start, stop in pairwise(cuts)]
    return pieces


class Image:
    """One file: its safe bytes, and what was done to it since."""

    def __init__(self, safe: bytes = b"") -> None:
        self._safe = bytearray(safe)
        self._pending: list[Change] = []

    def write(self, data: bytes, offset: int) -> None:
        """Note a write; it is not safe yet."""
        self._pending.append(Change(offset, data))

    def truncate(self, size: int) -> None:
        """Note a new length; it is not safe yet."""
        self._pending.append(Change(size, None))

    def sync(self) -> None:
        """Everything written so far is safe."""
        _apply(self._safe, self._pending)
        self._pending.clear()

    def fail_sync(self, luck: Luck, *, forgets: bool) -> None:
        """Some of what was written is safe; the rest may become so later, or never if the pages count as clean."""
        _apply(self._safe, luck.survivors(self._pending), luck)
        if forgets:
            self._pending.clear()

    def after(self, luck: Luck) -> bytes:
        """The bytes that are found after a power cut."""
        found = bytearray(self._safe)
        _apply(found, luck.survivors(self._pending), luck)
        return bytes(found)


def _apply(target: bytearray, changes: list[Change], luck: Luck | None = None) -> None:
    for offset, data in changes:
        gap = offset - len(target)
        if gap > 0:
            target += luck.filler(gap) if luck is not None else bytes(gap)
        if data is None:
            del target[offset:]
        else:
            target[offset : offset + len(data)] = data


class Folder:
    """Names and the files behind them; a new or removed name is safe once the folder was synced."""

    def __init__(self) -> None:
        self._safe: dict[str, Image] = {}
        self._pending: list[tuple[str, Image | None]] = []

    def find(self, name: str) -> Image | None:
        """The file that a name stands for now."""
        for pending, image in reversed(self._pending):
            if pending == name:
                return image
        return self._safe.get(name)

    def put(self, name: str, image: Image | None) -> None:
        """Give a name to a file, or take it away."""
        self._pending.append((name, image))

    def sync(self) -> None:
        """Every name is safe as it is now."""
        for name, image in self._pending:
            if image is None:
                self._safe.pop(name, None)
            else:
                self._safe[name] = image
        self._pending.clear()

    def names(self) -> set[str]:
        """Every name that was ever known and may be found again."""
        return {*self._safe, *(name for name, _ in self._pending)}

    def after(self, luck: Luck) -> dict[str, bytes]:
        """The files that are found after a power cut."""
        found = {}
        for name in sorted(self.names()):
            states = [self._safe.get(name), *(image for pending, image in self._pending if pending == name)]
            image = states[luck.choose(len(states))]
            if image is not None:
                found[name] = image.after(luck)
        return found
