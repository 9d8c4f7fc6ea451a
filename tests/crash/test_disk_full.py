"""A full disk: writing says so and resumes when there is space again, reading goes on, nothing is lost.

On a small file system of its own where mounting one is allowed, and on the simulated disk everywhere.
"""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.connect import assemble_env
from holdfast.errors import HoldfastError, StorageFull, Unavailable
from holdfast.journal.sqlite import SqliteJournal
from holdfast.records.settings import Settings
from tests.crash.small_disks import MountedDisk, SimulatedDisk
from tests.scale import volume

SETTINGS = Settings(inline_artifact_bytes=10_000)
LARGE = b"evidence " * 5_000


@pytest.fixture(params=["mounted", "simulated"])
def disk(request, tmp_path, monkeypatch):
    """Where mounting is not allowed, the same behaviours are shown on the simulated disk twice."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = MountedDisk.mount(folder) if request.param == "mounted" else None
    disk = mounted or SimulatedDisk(folder, monkeypatch)
    try:
        yield disk
    finally:
        disk.close()


@pytest.fixture
def client(disk):
    with opened(disk) as client:
        yield client


def opened(disk) -> Holdfast:
    journal = SqliteJournal(disk.folder / "agent.db", settings=SETTINGS, vfs=disk.vfs)
    return Holdfast(assemble_env(journal, SETTINGS))


class Log:
    """What was asked for by key, and whether it was acknowledged."""

    def __init__(self, client: Holdfast) -> None:
        self.client = client
        self.acknowledged: list[str] = []
        self.told: Counter[str] = Counter()
        self._number = 0

    def append(self) -> HoldfastError | None:
        """Append something; the error if it failed."""
        self._number += 1
        key = f"k{self._number}"
        try:
            self.client.journal.append("s1", "app.noted", {"text": key * 500}, key=key)
        except HoldfastError as error:
            self.told[type(error).__name__] += 1
            return error
        self.told["ok"] += 1
        self.acknowledged.append(key)
        return None

    def compare(self, client: Holdfast) -> None:
        """All that was acknowledged is there once, and nothing else."""
        assert Counter(event.key for event in client.journal.events("s1")) == Counter(self.acknowledged)
        assert client.journal.verify().ok


def test_a_full_disk_stops_writing_and_nothing_else(disk, client):
    log = Log(client)
    for _ in range(volume(3, 50)):
        assert log.append() is None
        disk.fill()
        errors = [fill_the_log(log), *(log.append() for _ in range(10))]
        assert all(isinstance(error, StorageFull) for error in errors), errors
        read_everything(log)
        disk.release()
        assert log.append() is None
        log.compare(client)
    client.close()
    with opened(disk) as again:
        log.compare(again)
    print(dict(log.told))


def fill_the_log(log: Log) -> HoldfastError:
    """A log that was emptied keeps its bytes on disk, so some more can be written; returns the first refusal."""
    for _ in range(1_000):
        error = log.append()
        if error is not None:
            return error
    raise AssertionError("the disk is full and everything can be written")


def read_everything(log: Log) -> None:
    journal = log.client.journal
    assert journal.version("s1") == len(log.acknowledged)
    assert [event.key for event in journal.events("s1")][-3:] == log.acknowledged[-3:]
    assert len(journal.events_by_key("s1", log.acknowledged[0])) == 1
    assert journal.position() >= len(log.acknowledged)
    assert journal.verify().ok


def test_a_large_body_on_a_full_disk(disk, client):
    kept = client.journal.append("s1", "app.noted", files=[LARGE])
    disk.fill()
    for number in range(3):
        with pytest.raises(StorageFull):
            client.journal.append("s1", "app.noted", files=[LARGE + bytes([number])])
    (event,) = client.journal.events("s1")
    assert client.journal.artifact(event.facts.artifacts[0]) == LARGE
    files = [path.name for path in disk.folder.rglob("*-artifacts/*/*")]
    assert files == list(event.facts.artifacts), "something half written was left behind"
    disk.release()
    again = client.journal.append("s1", "app.noted", files=[LARGE + b"!"])
    assert again.version == kept.version + 1
    assert client.journal.verify().artifacts == 2
    assert client.journal.verify().ok


@pytest.mark.parametrize("what", ["rebuild", "erase", "backup", "export"])
def test_maintenance_on_a_full_disk(disk, client, what, tmp_path):
    log = Log(client)
    for _ in range(5):
        log.append()
    client.journal.append("s2", "app.noted", {"text": "x"}, subject="ann")
    work = {
        "rebuild": client.journal.rebuild,
        "erase": lambda: client.journal.erase("ann"),
        "backup": lambda: client.journal.backup(disk.folder / "copy.db"),
        "export": lambda: client.journal.export(disk.folder / "copy.jsonl"),
    }[what]
    disk.fill()
    with pytest.raises(Unavailable):
        work()
    disk.release()
    assert not list(disk.folder.glob("copy*")), "half a copy was left behind"
    work()
    log.compare(client)


def test_opening_on_a_full_disk(disk):
    with opened(disk) as client:
        log = Log(client)
        log.append()
    disk.fill()
    try:
        with opened(disk) as client:
            log.compare(client)
    except Unavailable:
        pass  # Even the log and its index need some bytes.
    disk.release()
    with opened(disk) as client:
        log.compare(client)
