"""What a journal was asked for, what its callers were told, and whether a journal found later agrees.

Every batch is acknowledged, refused (nothing was written) or in doubt. A journal that is
found later must hold all of the first, none of the second, and all or nothing of each of
the third; and nothing that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Literal

from msgspec.structs import replace

from holdfast.connect import assemble_env
from holdfast.errors import Conflict, HoldfastError, NotFound, OutcomeUnknown, Refused, Unavailable
from holdfast.flow.journal.append import StreamWrite, seal_batch
from holdfast.flow.journal.artifacts import erase_subject, prepare_artifact
from holdfast.flow.journal.verify import verify
from holdfast.journal.sqlite import SqliteJournal
from holdfast.journal.sqlite.transaction import GroupMember
from holdfast.ports import Env
from holdfast.records.batches import AppendResult, Batch
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.reports import EventQuery
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.writer import make_note

TENANT = "default"
SETTINGS = Settings(inline_artifact_bytes=600, busy_ms=200)
SESSIONS = tuple(f"session/s{number}" for number in range(4))
ACTORS = ("actor/planner", "actor/worker")
SUBJECTS = ("ann", "bob")

Fate = Literal["acknowledged", "refused", "in doubt"]


class Ledger:
    """Makes batches, sends them and remembers what became of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.clock = FrozenClock()
        self.ids = SeededIds(self.clock, seed=random.getrandbits(32))
        self.stories = {actor: FrameGenerator(random, self.ids) for actor in ACTORS}
        self.sent: dict[bytes, Batch] = {}
        self.fates: dict[bytes, Fate] = {}
        self.erased: set[bytes] = set()
        self.erasing: tuple[str, frozenset[bytes]] | None = None
        self._keys = 0
        self._env: Env | None = None

    def of(self, fate: Fate) -> list[Batch]:
        """Batches that met a fate, in the order in which they were first sent."""
        return [batch for name, batch in self.sent.items() if self.fates[name] == fate]

    # making

    def env(self, journal: SqliteJournal) -> Env:
        """A journal with this ledger's clock and ids."""
        if self._env is None or self._env.journal is not journal:
            self._env = assemble_env(journal, SETTINGS, self.clock, self.ids)
        return self._env

    def batch(self, journal: SqliteJournal) -> Batch:
        """Something to append: the next step in the life of a frame, or notes."""
        if self.random.random() >= 0.4:
            return self.notes(journal)
        actor = self.random.choice(ACTORS)
        self.clock.advance(1)
        steps = StreamWrite(stream=actor, events=tuple(self.stories[actor].step()))
        batch = seal_batch(replace(self.env(journal), tenant=TENANT), [steps])
        # The power may fail before it is sent, while a file for its neighbour is placed; the story has gone on.
        self.sent[name_of(batch)] = batch
        self.fates[name_of(batch)] = "refused"
        return batch

    def notes(self, journal: SqliteJournal) -> Batch:
        """Events of an application's own, with or without key, file and second stream. They come in any order."""
        env = replace(self.env(journal), tenant=TENANT)
        self.clock.advance(1)
        subject = self.random.choice((*SUBJECTS, None))
        text = "" if subject is None else canary(subject)
        placed = []
        if self.random.random() < 0.1:
            body = text.encode() + self.random.randbytes(self.random.choice((100, 900)))
            placed = [prepare_artifact(env, body)]
        names = tuple(artifact.name.hex() for artifact in placed)
        streams = self.random.sample(SESSIONS, self.random.choice((1, 1, 1, 2)))
        keyed = self.random.random() < 0.5
        return seal_batch(env, [self._part(name, text, subject, names, keyed) for name in streams], placed)

    def _part(self, stream: str, text: str, subject: str | None, artifacts: Sequence[str], keyed: bool) -> StreamWrite:
        text += "x" * self.random.choice((1, 10, 100, 100, 100, 2_000, 20_000))
        drafts = [
            make_note(text, subject=subject, artifacts=artifacts) for _ in range(self.random.choice((1, 1, 1, 3)))
        ]
        self._keys += keyed
        return StreamWrite(stream=stream, events=tuple(drafts), key=f"k{self._keys}" if keyed else None)

    # sending

    def send(
        self, journal: SqliteJournal, *batches: Batch, pool: ThreadPoolExecutor | None = None
    ) -> list[AppendResult | HoldfastError]:
        """One batch, or several in one group or by the threads of a pool; what each of their callers is told."""
        before = [self.fates.get(name_of(batch)) for batch in batches]
        for batch in batches:
            self.sent[name_of(batch)] = batch
            self.fates[name_of(batch)] = "in doubt"
        if pool is None and len(batches) > 1:
            told = _together(journal, batches)
        else:
            told = list((map if pool is None else pool.map)(partial(_alone, journal), batches))
        for batch, earlier, answer in zip(batches, before, told, strict=True):
            self.fates[name_of(batch)] = self._fate(earlier, answer)
        return told

    def _fate(self, earlier: Fate | None, answer: AppendResult | HoldfastError) -> Fate:
        if isinstance(answer, AppendResult):
            return "acknowledged"
        if isinstance(answer, OutcomeUnknown):
            return "in doubt"
        assert isinstance(answer, Refused | Conflict | Unavailable), repr(answer)
        # Nothing was written this time, which says nothing about the time before.
        return "refused" if earlier is None else earlier

    def catch_up(self, journal: SqliteJournal) -> bool:
        """Send again what is in doubt, and some of what was refused; whether all of it is there now, once."""
        again = [batch for batch in self.sent.values() if self._wanted(batch)]
        if not again:
            return True
        before = set(stored_ids(journal))
        doubtful = {name_of(batch) for batch in self.of("in doubt")}
        told = self.send(journal, *again)
        if not all(isinstance(answer, AppendResult) for answer in told):
            return False
        for batch, answer in zip(again, told, strict=True):
            assert answer.repeated == is_stored(batch, before), "a batch was written twice, or not at all"
            assert name_of(batch) in doubtful or not answer.repeated, "a batch that was refused is there"
        after = stored_ids(journal)
        assert len(after) == len(set(after)), "an event is there twice"
        assert all(is_stored(batch, set(after)) for batch in again)
        return True

    def _wanted(self, batch: Batch) -> bool:
        fate = self.fates[name_of(batch)]
        # A frame's story goes on, so no step of it may be left out.
        return fate == "in doubt" or (
            fate == "refused" and (batch.parts[0].stream in ACTORS or self.random.random() < 0.5)
        )

    def erase(self, journal: SqliteJournal) -> None:
        """Erase a subject, or go on with the erasure that is in doubt."""
        if self.erasing is None:
            subject = self.random.choice(SUBJECTS)
            owned = (event.id for batch in self.of("acknowledged") for event in events_of(batch, subject))
            self.erasing = subject, frozenset(owned)
        try:
            erase_subject(replace(self.env(journal), tenant=TENANT), self.erasing[0])
        except NotFound:
            pass  # Nobody wrote for this subject, or an erasure that was in doubt had happened.
        self.erased |= self.erasing[1]
        self.erasing = None

    # comparing

    def compare(self, journal: SqliteJournal, *, lossy: bool = False) -> int:
        """Assert that a journal holds what it must and nothing else; returns how many acknowledged batches it lost."""
        report = verify(self.env(journal))
        assert report.ok, report.findings
        found = everything(journal)
        ids = {event.id for event in found if event.type != "subject.erased"}
        acknowledged = self.of("acknowledged")
        lost = sum(not is_stored(batch, ids) for batch in acknowledged)
        assert lossy or not lost, f"{lost} of {len(acknowledged)} acknowledged batches are lost"
        assert not any(is_stored(batch, ids) for batch in self.of("refused")), "a batch that was refused is there"
        asked = {event.id for batch in acknowledged for event in events_of(batch)}
        for batch in self.of("in doubt"):
            is_stored(batch, ids)
            asked |= {event.id for event in events_of(batch)}
        assert ids <= asked, f"{len(ids - asked)} events are there that nobody asked for"
        _compare_content(found, set() if lossy else self.erased)
        return lost


def _alone(journal: SqliteJournal, batch: Batch) -> AppendResult | HoldfastError:
    try:
        return journal.append(batch)
    except HoldfastError as error:
        return error


def _together(journal: SqliteJournal, batches: Sequence[Batch]) -> list[AppendResult | HoldfastError]:
    members = [GroupMember(batch) for batch in batches]
    journal.writer.commit(members)
    told = [member.outcome for member in members]
    assert all(answer is not None for answer in told), "a caller was told nothing"
    return told


def _compare_content(found: Sequence[StoredEvent], erased: set[bytes]) -> None:
    assert not any(event.id in erased and event.content is not None for event in found), "erased content is back"
    for pseudonym in {event.subject for event in found if event.subject is not None}:
        states = {event.erased for event in found if event.subject == pseudonym and event.mac is not None}
        assert len(states) <= 1, "an erasure happened by half"


def canary(subject: str) -> str:
    """The text that all content of a subject holds."""
    return f"canary-of-{subject}-"


def name_of(batch: Batch) -> bytes:
    """What a batch is known by."""
    return batch.parts[0].events[0].id


def events_of(batch: Batch, subject: str | None = None) -> list:
    """A batch's events, or those of one subject."""
    events = [event for part in batch.parts for event in part.events]
    return [event for event in events if subject in (None, event.subject)]


def is_stored(batch: Batch, ids: set[bytes]) -> bool:
    """Whether a batch is among some ids, as a whole."""
    found = {event.id in ids for event in events_of(batch)}
    assert len(found) == 1, "half of a batch is there"
    return found.pop()


def everything(journal: SqliteJournal) -> list[StoredEvent]:
    """Every event of the tenant, in order of seq."""
    found: list[StoredEvent] = []
    while page := journal.read(EventQuery(tenant=TENANT, after=found[-1].seq if found else 0, limit=1_000)):
        found += page
    return found


def stored_ids(journal: SqliteJournal) -> list[bytes]:
    """The id of every event."""
    with journal.connections.reader() as connection:
        return [id for (id,) in connection.execute("SELECT event_id FROM events")]
