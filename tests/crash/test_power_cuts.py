"""The power fails at any moment: nothing acknowledged is lost, nothing unasked is there, nothing is damaged.

Each cut is one I/O call that does not return, while a journal is made, written, folded into
its database, rebuilt, erased from, migrated or closed. What the disk then holds is opened
with SQLite's own VFS; of one in five the power fails once more while it recovers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.errors import HoldfastError
from holdfast.journal.sqlite import SqliteJournal, artifacts, schema
from holdfast.journal.sqlite.statements import migrations
from holdfast.journal.sqlite.transaction import SqlitePlan
from holdfast.records.batches import AppendResult, PartPlacement
from holdfast.sqlite import connection
from holdfast.testing.disk import PowerCut
from tests.crash.files import Files
from tests.crash.ledger import Ledger, canary, everything
from tests.crash.machine import Machine, reopened, switched_on
from tests.scale import seeded, volume

NEXT_MIGRATION = """
CREATE TABLE extra (id INTEGER PRIMARY KEY, note TEXT NOT NULL) STRICT;
INSERT INTO extra SELECT seq, hex(hash) FROM events;
CREATE INDEX events_time ON events (tenant, timestamp);
"""


class Scene(NamedTuple):
    """What happens before the power may fail, what is going on when it does, and its I/O calls at most."""

    before: Callable[[Machine], None]
    during: Callable[[Machine], None]
    calls: int


def work(machine: Machine, steps: int) -> None:
    """What a journal is used for all day."""
    for _ in range(steps):
        if machine.disk.dead:
            return
        what = machine.random.random()
        if what < 0.65:
            machine.append()
        elif what < 0.8:
            machine.append(members=8)
        elif what < 0.9:
            everything(machine.journal)
        else:
            machine.checkpoint()


def opened(machine: Machine) -> None:
    machine.open()


def used(machine: Machine) -> None:
    machine.open()
    work(machine, 10)


def closed(machine: Machine) -> None:
    used(machine)
    machine.journal.close()


def eager(machine: Machine) -> None:
    """Every few commits fold the log into the database."""
    machine.open()
    machine.journal.connections.write(lambda writer: writer.wal_autocheckpoint(4))


def old(machine: Machine) -> None:
    """A journal of the release before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "migrations", migrations)
        closed(machine)


def killed(machine: Machine) -> None:
    """The process died before, and with it what it had not written; the rest can be read and is not safe."""
    used(machine)
    until_the_power_fails(machine, lambda machine: work(machine, 5), machine.random.randint(1, 100))
    machine.let_go()
    machine.disk.restart()


def erase(machine: Machine) -> None:
    machine.ledger.erase(machine.journal)
    work(machine, 1)


def resume(machine: Machine) -> None:
    machine.open()
    if machine.ledger.catch_up(machine.journal):
        work(machine, machine.random.randint(0, 2))


SCENES = {
    "creating": Scene(lambda machine: None, used, 200),
    "appending": Scene(opened, lambda machine: work(machine, 30), 900),
    "checkpointing": Scene(used, Machine.checkpoint, 100),
    "checkpointing while committing": Scene(eager, lambda machine: work(machine, 15), 800),
    "rebuilding": Scene(used, lambda machine: machine.journal.rebuild(), 140),
    "erasing": Scene(used, erase, 160),
    "migrating": Scene(old, opened, 70),
    "closing": Scene(used, lambda machine: machine.journal.close(), 90),
    "restarting": Scene(killed, resume, 200),
}


class Cut(NamedTuple):
    """How many acknowledged batches are lost, if any may be; whether the power failed during the scene or after it."""

    lost: int
    during: bool


def one_cut(folder: Path, random: Random, scene: Scene, durability: str = "full") -> Cut:
    """One power cut, and everything that must be true of what is found."""
    with switched_on(folder, random, durability=durability) as machine:
        scene.before(machine)
        during = until_the_power_fails(machine, scene.during, random.randint(1, scene.calls))
        found, ledger = machine.after_a_power_cut(), machine.ledger
        if random.random() < 0.2:
            found = one_more_cut(found, folder / "again", random, ledger)
        with reopened(found) as journal:
            lost = ledger.compare(journal, lossy=durability == "fast")
            if durability == "full":
                assert ledger.catch_up(journal)
        return Cut(lost, during)


def one_more_cut(found: Path, folder: Path, random: Random, ledger: Ledger) -> Path:
    """The power fails again while the journal is being recovered."""
    folder.mkdir()
    found.rename(folder / "disk")
    machine = Machine(folder, random, ledger=ledger)
    try:
        until_the_power_fails(machine, resume, random.randint(1, 120))
        return machine.after_a_power_cut().rename(folder.parent / "found")
    finally:
        machine.switch_off()


def until_the_power_fails(machine: Machine, during: Callable[[Machine], None], call: int) -> bool:
    """Whether it failed while something was going on."""
    machine.disk.cut_at(call)
    try:
        during(machine)
    except (PowerCut, HoldfastError):
        if not machine.disk.dead:
            raise
        machine.let_go()
    failed = machine.disk.dead
    machine.disk.cut()
    return failed


@pytest.fixture
def next_release(monkeypatch):
    """A release with one more migration."""
    monkeypatch.setattr(schema, "migrations", lambda: (*migrations(), (2, "extra", NEXT_MIGRATION)))


@pytest.mark.parametrize("name", SCENES)
def test_nothing_acknowledged_is_lost(quick_path, name, request):
    if name == "migrating":
        request.getfixturevalue("next_release")
    random = seeded(f"power cuts while {name}")
    cuts = [one_cut(quick_path / str(number), random, SCENES[name]) for number in range(volume(36, 1_250))]
    during = sum(cut.during for cut in cuts)
    print(f"{during} of {len(cuts)} power cuts while {name}")
    assert during > len(cuts) / 4, "too many cuts came too late"


def test_fast_may_lose_the_newest_and_is_never_damaged(quick_path):
    random = seeded("fast power cuts")
    scenes = [SCENES[name] for name in ("appending", "checkpointing while committing", "closing")]
    cuts = volume(60, 2_000)
    lost = [one_cut(quick_path / str(number), random, scenes[number % 3], "fast").lost for number in range(cuts)]
    print(f"{sum(lost)} acknowledged batches lost in {sum(map(bool, lost))} of {cuts} cuts")
    assert any(lost), "this harness cannot see a loss"


def cuts_until_found(folder: Path, scene: Scene, cuts: int) -> str:
    """What the harness says about a planted bug."""
    random = seeded("planted")
    for number in range(cuts):
        try:
            one_cut(folder / str(number), random, scene)
        except AssertionError as error:
            return str(error)
    raise AssertionError(f"{cuts} power cuts did not find it")


def test_it_finds_commits_that_are_not_synced(quick_path, monkeypatch):
    monkeypatch.setitem(connection.SYNCHRONOUS, "full", 1)
    assert "are lost" in cuts_until_found(quick_path, SCENES["appending"], 100)


def test_it_finds_answers_that_come_before_the_commit(quick_path, monkeypatch):
    append = SqliteJournal.append

    def hasty(journal, batch):
        try:
            return append(journal, batch)
        except BaseException:
            return AppendResult(
                parts=tuple(PartPlacement(stream=part.stream, first=1, last=1, seq=1) for part in batch.parts)
            )

    monkeypatch.setattr(SqliteJournal, "append", hasty)
    assert "are lost" in cuts_until_found(quick_path, SCENES["appending"], 100)


def test_it_finds_rows_that_are_written_in_their_own_transaction(quick_path, monkeypatch):
    write = SqlitePlan.write

    def twice(plan):
        changes, plan._changes = plan._changes, []
        write(plan)
        plan._connection.execute("COMMIT")
        plan._connection.execute("BEGIN IMMEDIATE")
        for sql, values in changes:
            plan._connection.execute(sql, values)

    monkeypatch.setattr(SqlitePlan, "write", twice)
    found = cuts_until_found(quick_path, SCENES["appending"], 300)
    assert "rows" in found or "that was refused is there" in found, "events without their rows, or without their answer"


# erasure


def holding(folder: Path, text: str) -> list[str]:
    """The files that hold a text."""
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def remember_ann(machine: Machine) -> Holdfast:
    client = Holdfast(machine.ledger.env(machine.open()))
    client.journal.append("s1", "app.noted", {"text": canary("ann")}, subject="ann")
    return client


def test_what_was_erased_is_on_no_byte_after_a_power_cut(quick_path):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        remember_ann(machine).journal.erase("ann")
        assert not holding(machine.after_a_power_cut("nothing"), canary("ann"))


def test_an_erasure_that_the_power_interrupted_is_finished_at_the_next_start(quick_path):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        client = remember_ann(machine)
        machine.disk.fail("truncate", sticky=True)
        with pytest.raises(HoldfastError):
            client.journal.erase("ann")
        found = machine.after_a_power_cut("everything")
        with reopened(found) as journal:
            assert journal.subjects("default")[0].name is None
            assert not holding(found, canary("ann"))


# files beside the database


def keep_a_file(machine: Machine) -> tuple[Holdfast, bytes]:
    client = Holdfast(machine.ledger.env(machine.open()))
    body = canary("ann").encode() * 100
    client.journal.append("s1", "app.noted", subject="ann", files=[body])
    return client, body


def is_kept(machine: Machine, files: Files, body: bytes) -> bool:
    found = machine.after_a_power_cut("nothing")
    files.undo(found)
    with reopened(found) as journal:
        client = Holdfast(machine.ledger.env(journal))
        (event,) = client.journal.events("s1")
        return client.journal.verify().ok and client.journal.artifact(event.facts.artifacts[0]) == body


def test_a_file_is_safe_before_the_event_that_names_it(quick_path, monkeypatch):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        files = Files(machine.path.parent, monkeypatch)
        _, body = keep_a_file(machine)
        assert is_kept(machine, files, body)


def test_it_finds_files_whose_folders_are_not_synced(quick_path, monkeypatch):
    monkeypatch.setattr(artifacts, "sync_folder", lambda folder: None)
    with switched_on(quick_path / "machine", Random(0)) as machine:
        files = Files(machine.path.parent, monkeypatch)
        _, body = keep_a_file(machine)
        assert not is_kept(machine, files, body)


def test_an_erased_file_does_not_come_back(quick_path, monkeypatch):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        files = Files(machine.path.parent, monkeypatch)
        client, _ = keep_a_file(machine)
        client.journal.erase("ann")
        found = machine.after_a_power_cut("nothing")
        files.undo(found)
        with reopened(found):
            assert not [name for name in holding(found, canary("ann")) if not name.endswith("-wal")]
