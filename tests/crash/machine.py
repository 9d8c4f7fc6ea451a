"""A machine with one journal on a simulated disk, and what is done with it."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from random import Random

import apsw

from holdfast.journal.sqlite import SqliteJournal
from holdfast.testing.disk import CutMode, Disk
from tests.crash.ledger import SETTINGS, Ledger


class Machine:
    """Its folder is gone when it is switched off."""

    def __init__(self, folder: Path, random: Random, *, durability: str = "full", ledger: Ledger | None = None) -> None:
        self.folder = folder
        self.random = random
        self.ledger = ledger or Ledger(random)
        self.durability = durability
        self.path = folder / "disk" / "agent.db"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.disk = Disk(self.path.parent, random=random)
        self.journal: SqliteJournal | None = None
        self.told: Counter[str] = Counter()
        self._copies = 0

    def open(self) -> SqliteJournal:
        """Open the journal."""
        self.journal = SqliteJournal(self.path, settings=SETTINGS, vfs=self.disk.name, durability=self.durability)
        return self.journal

    def append(self, members: int = 1) -> None:
        """Append something new, alone or in a group."""
        self.ledger.send(self.journal, *(self.ledger.batch(self.journal) for _ in range(members)))

    def checkpoint(self) -> None:
        """Fold the log into the database, in any of SQLite's four ways."""
        mode = self.random.randrange(4)
        self.journal.connections.write(lambda connection: connection.wal_checkpoint(mode=mode))

    def after_a_power_cut(self, mode: CutMode | None = None) -> Path:
        """What the disk holds if the power fails now, or held when it did, as a new folder."""
        self._copies += 1
        into = self.folder / f"after{self._copies}"
        self.disk.power_cut(self.random, into, mode)
        return into

    def let_go(self) -> None:
        """Close everything, also what a dead process would not have closed."""
        if self.journal is not None:
            self.journal.close()
        for connection in apsw.connections():
            if connection.filename.startswith(str(self.path.parent)):
                try:
                    connection.close(True)
                except apsw.Error:
                    pass

    def switch_off(self) -> None:
        """The end of this machine and its disk."""
        self.disk.cut()
        self.let_go()
        self.disk.close()
        shutil.rmtree(self.folder)


@contextmanager
def switched_on(folder: Path, random: Random, **how):
    """A machine for as long as it is needed."""
    machine = Machine(folder, random, **how)
    try:
        yield machine
    finally:
        machine.switch_off()


@contextmanager
def reopened(folder: Path):
    """The journal of a folder, on the real disk."""
    journal = SqliteJournal(folder / "agent.db", settings=SETTINGS)
    try:
        yield journal
    finally:
        journal.close()
