"""The simulated disk itself: what it keeps, what it loses, what it counts."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import apsw
import pytest

from holdfast.testing.disk import FAULT_KINDS, SECTOR, Disk, DiskFolder, FileImage, PowerCut, PowerCutOdds


@pytest.fixture
def disk(quick_path):
    folder = quick_path / "disk"
    folder.mkdir()
    with Disk(folder) as disk:
        yield disk


def connect(disk: Disk, synchronous: str) -> apsw.Connection:
    connection = apsw.Connection(str(disk.folder / "test.db"), vfs=disk.name)
    connection.execute("PRAGMA journal_mode = wal").fetchall()
    connection.execute(f"PRAGMA synchronous = {synchronous}").fetchall()
    connection.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER)")
    return connection


def found(disk: Disk, into: Path, mode: str) -> int:
    disk.power_cut(Random(0), into, mode)
    connection = apsw.Connection(str(into / "test.db"))
    try:
        return connection.execute("SELECT count(*) FROM t").fetchall()[0][0]
    finally:
        connection.close()


def test_what_was_synced_stays_and_the_rest_may_go(disk, quick_path):
    connection = connect(disk, "full")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("PRAGMA synchronous = off").fetchall()
    connection.execute("INSERT INTO t VALUES (2)")
    assert found(disk, quick_path / "worst", "nothing") == 1
    assert found(disk, quick_path / "best", "everything") == 2
    connection.close()


def test_a_cut_comes_at_its_call_and_nothing_works_after_it(disk):
    connection = connect(disk, "full")
    before = disk.calls
    disk.cut_at(3)
    with pytest.raises(PowerCut):
        connection.execute("INSERT INTO t VALUES (1)")
    assert disk.dead
    assert disk.calls >= before + 3
    with pytest.raises(apsw.IOError):
        connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(apsw.IOError):
        connection.close()


def test_a_fault_is_met_once_or_until_it_is_healed(disk):
    connection = connect(disk, "full")
    disk.fail("sync")
    with pytest.raises(apsw.IOError):
        connection.execute("INSERT INTO t VALUES (1)")
    connection.execute("INSERT INTO t VALUES (2)")
    disk.fail("full", sticky=True)
    for _ in range(3):
        with pytest.raises(apsw.FullError):
            connection.execute("INSERT INTO t VALUES (3)")
    disk.heal()
    connection.execute("INSERT INTO t VALUES (4)")
    assert disk.hits >= 4
    connection.close()


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_of_fault_can_be_met(disk, kind):
    connect(disk, "full").close()
    disk.fail(kind, sticky=True)
    try:
        connection = connect(disk, "full")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.close()
    except apsw.Error:
        pass
    assert disk.hits
    disk.heal()
    for connection in apsw.connections():
        if connection.filename.startswith(str(disk.folder)):
            connection.close()


def test_a_sync_that_forgets_is_never_made_up_for(quick_path):
    image = FileImage(b"old")
    image.write(b"new", 0)
    image.fail_sync(PowerCutOdds(Random(0), "nothing"), forgets=True)
    image.sync()
    assert image.bytes_after_cut(PowerCutOdds(Random(0), "everything")) == b"old"


def test_writes_are_torn_at_sectors_only():
    random = Random(0)
    old, new = bytes(8 * SECTOR), b"\1" * (8 * SECTOR)
    seen = set()
    for _ in range(200):
        image = FileImage(old)
        image.write(new, 0)
        after = image.bytes_after_cut(PowerCutOdds(random, "sectors"))
        after += old[len(after) :]
        sectors = tuple(after[start : start + SECTOR] for start in range(0, len(after), SECTOR))
        assert set(sectors) <= {old[:SECTOR], new[:SECTOR]}
        seen.add(sectors)
    assert len(seen) > 50


def test_names_are_safe_once_their_folder_is():
    folder, first, second = DiskFolder(), FileImage(b"first"), FileImage(b"second")
    folder.put("log", first)
    folder.sync()
    folder.put("log", None)
    folder.put("log", second)
    second.sync()
    states = {folder.files_after_cut(PowerCutOdds(Random(seed), "writes")).get("log") for seed in range(50)}
    assert states == {b"first", b"second", None}
    folder.sync()
    assert folder.files_after_cut(PowerCutOdds(Random(0), "nothing")) == {"log": b"second"}


def test_calls_are_counted_and_syncs_can_be_slow(disk):
    connection = connect(disk, "full")
    before = disk.counts["sync"]
    disk.sync_delay = 0.01
    began = time.perf_counter()
    for number in range(5):
        connection.execute("INSERT INTO t VALUES (?)", (number,))
    assert time.perf_counter() - began >= 0.05
    assert disk.counts["sync"] == before + 5
    assert disk.counts["write"] > 0
    assert disk.counts["read"] > 0
    disk.sync_delay = 0.0
    connection.close()
