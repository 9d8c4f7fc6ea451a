"""A disk that fails: every caller is told the truth, whatever fails, once or for ever.

Each round arms one fault, works until it was met, looks at what a power cut would leave,
heals the disk and asks again about everything that was in doubt.
"""

from __future__ import annotations

import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.errors import HoldfastError, NotFound, OutcomeUnknown, Unavailable
from holdfast.flow.journal.append import StreamWrite, seal_batch
from holdfast.flow.journal.verify import verify
from holdfast.journal.sqlite import transaction
from holdfast.records.batches import Batch
from holdfast.sqlite import pool
from holdfast.testing.disk import FaultKind
from holdfast.testing.writer import Writer, make_note
from tests.backends import rebuild_alone
from tests.crash.ledger import TENANT, canary, everything, name_of
from tests.crash.machine import Machine, reopened, switched_on
from tests.scale import seeded, volume

ROUNDS_A_JOURNAL = 25
GROUP = 8

COMMON: tuple[FaultKind, ...] = ("read", "short", "write", "full", "sync")
RARE: tuple[FaultKind, ...] = ("truncate", "size", "open", "delete", "access")
FAULTS = {
    **{(kind, 1): volume(500, 10_000) for kind in COMMON},
    **{(kind, GROUP): volume(300, 6_000) for kind in COMMON},
    **{(kind, 1): volume(150, 3_000) for kind in RARE},
    **{(kind, GROUP): volume(50, 1_000) for kind in RARE},
}


# what is tried while the disk fails


def append(machine: Machine, batches: list[Batch]) -> None:
    new = [batch for batch in batches if name_of(batch) not in machine.ledger.sent]
    if new:
        machine.told.update(type(answer).__name__ for answer in machine.ledger.send(machine.journal, *new))


def read(machine: Machine, batches: list[Batch]) -> None:
    part = batches[0].parts[0]
    machine.journal.position()
    machine.journal.head(TENANT, part.stream)
    machine.journal.load(TENANT, part.stream)
    machine.journal.events_by_key(TENANT, part.stream, part.key or "none")
    everything(machine.journal)


def check(machine: Machine, batches: list[Batch]) -> None:
    verify(machine.ledger.env(machine.journal))


def rebuild(machine: Machine, batches: list[Batch]) -> None:
    rebuild_alone(machine.journal)


def erase(machine: Machine, batches: list[Batch]) -> None:
    machine.ledger.erase(machine.journal)


def collect(machine: Machine, batches: list[Batch]) -> None:
    machine.journal.collect(machine.ledger.clock.now_ms() - 1_000)


def checkpoint(machine: Machine, batches: list[Batch]) -> None:
    machine.checkpoint()


def reopen(machine: Machine, batches: list[Batch]) -> None:
    machine.journal.close()
    machine.open()


def back_up(machine: Machine, batches: list[Batch]) -> None:
    target = machine.folder / "backup.db"
    try:
        machine.journal.backup(target)
    finally:
        for path in machine.folder.glob("backup.db*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


WORK = (append, read, check, rebuild, erase, collect, checkpoint, reopen, back_up)
USUAL = (50, 10, 1, 2, 3, 2, 5, 5, 1)
READING = (20, 40, 1, 3, 3, 2, 10, 20, 1)
OPENING = (5, 10, 1, 10, 5, 2, 5, 50, 1)
TRUNCATING = (5, 1, 1, 1, 15, 1, 50, 10, 1)
ODDS = {
    "read": READING,
    "short": READING,
    "write": USUAL,
    "full": USUAL,
    "sync": USUAL,
    "truncate": TRUNCATING,
}


def one_round(machine: Machine, kind: FaultKind, members: int) -> bool:
    """One fault; whether it was met."""
    random, before = machine.random, machine.disk.hits
    batches = [machine.ledger.batch(machine.journal) for _ in range(members)]
    odds = ODDS.get(kind, OPENING)
    machine.disk.fail(kind, after=random.randint(0, 14), sticky=random.random() < 0.4)
    for work in random.choices(WORK, weights=odds, k=random.randint(1, 2)):
        machine.told[attempt(machine, work, batches)] += 1
    if random.random() < 0.04:
        look_after_a_power_cut(machine)
    machine.disk.heal()
    recover(machine, batches)
    return machine.disk.hits > before


def attempt(machine: Machine, work, batches: list[Batch]) -> str:
    """No other exception than ours comes out."""
    try:
        work(machine, batches)
    except HoldfastError as error:
        return type(error).__name__
    return "ok"


def look_after_a_power_cut(machine: Machine) -> None:
    found = machine.after_a_power_cut()
    with reopened(found) as journal:
        machine.ledger.compare(journal)
    shutil.rmtree(found)


def recover(machine: Machine, batches: list[Batch]) -> None:
    """The disk works again: so does the journal, unless it was closed."""
    if machine.journal.connections.closed:
        machine.open()
    if machine.ledger.erasing is not None:
        machine.ledger.erase(machine.journal)
    assert machine.ledger.catch_up(machine.journal), "the disk works again and the journal does not"
    append(machine, batches)


def meet_faults(folder: Path, random: Random, kind: FaultKind, members: int, wanted: int) -> None:
    met = journals = 0
    told: Counter[str] = Counter()
    while met < wanted:
        journals += 1
        with switched_on(folder / str(journals), random) as machine:
            machine.told = told
            machine.open()
            for _ in range(ROUNDS_A_JOURNAL):
                met += one_round(machine, kind, members)
            machine.journal.close()
            with reopened(machine.path.parent) as journal:
                machine.ledger.compare(journal)
    print(f"{kind} x {members}: {met} faults met in {journals} journals: {dict(told)}")


@pytest.mark.parametrize(("kind", "members"), FAULTS)
def test_every_caller_is_told_the_truth(quick_path, kind, members):
    meet_faults(quick_path, seeded(f"faults {kind} {members}"), kind, members, FAULTS[kind, members])


def test_a_kernel_that_forgets_what_it_could_not_sync(quick_path):
    meet_faults(quick_path, seeded("faults forget"), "forget", 1, volume(300, 6_000))


def test_it_finds_failed_commits_that_are_called_failed(quick_path, monkeypatch):
    translate = transaction.translate_error
    monkeypatch.setattr(transaction, "translate_error", lambda error, committing=False: translate(error))
    with pytest.raises(AssertionError, match="a batch that was refused is there"):
        meet_faults(quick_path, seeded("planted"), "sync", GROUP, 1_000)


def doubt(machine: Machine, kind: FaultKind) -> None:
    """A commit that fails and leaves its bytes in the log, and no connection that could fold them into the database."""
    machine.open()
    machine.append()
    machine.disk.fail("read", sticky=True)
    with pytest.raises(Unavailable):
        everything(machine.journal)
    machine.disk.fail(kind, sticky=True)
    (answer,) = machine.ledger.send(machine.journal, machine.ledger.notes(machine.journal))
    assert isinstance(answer, OutcomeUnknown)


def believe(machine: Machine) -> None:
    """It is asked for again, and then the power fails."""
    machine.disk.heal()
    assert machine.ledger.catch_up(machine.journal)
    with reopened(machine.after_a_power_cut("nothing")) as journal:
        machine.ledger.compare(journal)


def test_a_doubtful_commit_is_safe_before_it_is_believed(quick_path):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        doubt(machine, "sync")
        believe(machine)


def test_it_finds_doubtful_commits_that_are_believed(quick_path, monkeypatch):
    monkeypatch.setattr(pool, "rewrite_log", lambda connection, path, vfs: None)
    with switched_on(quick_path / "machine", Random(0)) as machine:
        doubt(machine, "sync")
        with pytest.raises(AssertionError, match="acknowledged batches are lost"):
            believe(machine)


def test_a_doubtful_commit_is_safe_also_for_the_next_process(quick_path):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        doubt(machine, "sync")
        machine.journal.close()
        machine.disk.heal()
        machine.open()
        believe(machine)


def test_a_doubtful_commit_is_safe_when_the_kernel_forgot_its_pages(quick_path):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        doubt(machine, "forget")
        believe(machine)


def test_a_batch_of_which_some_parts_have_a_key_can_be_asked_for_again(quick_path):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        writer = Writer(machine.open())
        parts = [
            StreamWrite(stream="session/a", events=(make_note(),), key="k"),
            StreamWrite(stream="session/b", events=(make_note(),)),
        ]
        batch = seal_batch(writer.env, parts)
        first, second = machine.journal.append(batch), machine.journal.append(batch)
        assert (first.parts, second.repeated) == (second.parts, True)


def test_an_erasure_that_failed_after_its_commit_can_be_finished(quick_path):
    with switched_on(quick_path / "machine", Random(0)) as machine:
        client = Holdfast(machine.ledger.env(machine.open()))
        client.journal.append("s1", "app.noted", {"text": canary("ann")}, subject="ann")
        machine.disk.fail("truncate")
        with pytest.raises(HoldfastError):
            client.journal.erase("ann")
        try:
            client.journal.erase("ann")
        except NotFound:
            pass  # The name is erased, so nobody knows that it was there; its bytes must go all the same.
        log = machine.path.with_name("agent.db-wal")
        assert canary("ann").encode() not in log.read_bytes()


def test_callers_in_threads_are_told_the_truth(quick_path):
    random = seeded("faults in threads")
    met = 0
    with ThreadPoolExecutor(GROUP) as pool:
        for number in range(volume(10, 200)):
            with switched_on(quick_path / str(number), random) as machine:
                machine.open()
                for kind in random.choices(("write", "full", "sync", "read"), k=10):
                    met += one_round_in_threads(machine, kind, pool)
                with reopened(machine.after_a_power_cut()) as journal:
                    machine.ledger.compare(journal)
    print(f"{met} faults met")


def one_round_in_threads(machine: Machine, kind: FaultKind, pool: ThreadPoolExecutor) -> bool:
    before = machine.disk.hits
    batches = [machine.ledger.notes(machine.journal) for _ in range(GROUP * 2)]
    machine.disk.fail(kind, after=machine.random.randint(0, 30), sticky=machine.random.random() < 0.3)
    machine.ledger.send(machine.journal, *batches, pool=pool)
    machine.disk.heal()
    assert machine.ledger.catch_up(machine.journal)
    return machine.disk.hits > before
