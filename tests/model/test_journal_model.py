"""The journal against a plain-Python model, step by step, through crashes, retries, erasures and clock jumps."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.fold import fold_events
from holdfast.errors import KeyReused, NotFound, StaleEpoch, VersionConflict
from holdfast.flow.journal import artifacts
from holdfast.flow.journal.verify import verify
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import LeaseTaken, StreamClosedFacts
from holdfast.records.reports import EventQuery
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.writer import Writer, make_note
from tests.backends import rebuild_alone
from tests.scale import SOAK, volume

STREAMS = ("session/a", "session/b", "session/c/thread/main")
SUBJECTS = ("alice", "bob", "carol")
TENANTS = ("default", "acme")
STEPS = 50


class JournalMachine(RuleBasedStateMachine):
    """Every operation is done to the journal and to lists and dicts; they must agree after each."""

    def open(self) -> Journal:
        raise NotImplementedError

    def crash(self) -> None:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.clock = FrozenClock()
        self.ids = SeededIds(self.clock)
        self.journal = self.open()
        self.writers = self.make_writers()
        self.streams: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.keys: dict[tuple[str, str, str], tuple[int, int, str]] = {}
        self.epochs: dict[tuple[str, str], int] = {}
        self.stories = {name: FrameGenerator(Random(7), self.ids, SUBJECTS) for name in TENANTS}

    def make_writers(self) -> dict[str, Writer]:
        return {name: Writer(self.journal, tenant=name, clock=self.clock, ids=self.ids) for name in TENANTS}

    def _note(self, place: tuple[str, str], draft: Draft, epoch: int | None = None) -> None:
        text = draft.content.data["text"] if draft.type == "app.noted" else None  # type: ignore[union-attr]
        self.streams.setdefault(place, []).append({"type": draft.type, "text": text, "subject": draft.subject})

    @rule(
        tenant=st.sampled_from(TENANTS),
        stream=st.sampled_from(STREAMS),
        text=st.text("ab\n🙂", max_size=5),
        count=st.integers(1, 3),
        subject=st.sampled_from((None, *SUBJECTS)),
        exact=st.booleans(),
    )
    def append(self, tenant: str, stream: str, text: str, count: int, subject: str | None, exact: bool) -> None:
        known = len(self.streams.get((tenant, stream), []))
        drafts = [make_note(f"{text}{number}", subject=subject) for number in range(count)]
        appended = self.writers[tenant].append(stream, *drafts, expected=known if exact else None)
        assert (appended.parts[0].first, appended.parts[0].last) == (known + 1, known + count)
        for draft in drafts:
            self._note((tenant, stream), draft)

    @rule(tenant=st.sampled_from(TENANTS), stream=st.sampled_from(STREAMS), off=st.sampled_from((-2, -1, 1, 5)))
    def append_at_a_wrong_version(self, tenant: str, stream: str, off: int) -> None:
        known = len(self.streams.get((tenant, stream), []))
        if known + off < 0:
            return
        with pytest.raises(VersionConflict):
            self.writers[tenant].append(stream, make_note("never"), expected=known + off)

    @rule(
        tenant=st.sampled_from(TENANTS),
        stream=st.sampled_from(STREAMS),
        key=st.sampled_from("xyz"),
        text=st.sampled_from("pq"),
        crash=st.booleans(),
    )
    def append_under_a_key(self, tenant: str, stream: str, key: str, text: str, crash: bool) -> None:
        place, known = (tenant, stream), self.keys.get((tenant, stream, key))
        draft = make_note(text)
        if known is not None and known[2] != text:
            with pytest.raises(KeyReused):
                self.writers[tenant].append(stream, draft, key=key)
            return
        appended = self.writers[tenant].append(stream, draft, key=key)
        assert appended.repeated == (known is not None)
        if known is None:
            self._note(place, draft)
            self.keys[tenant, stream, key] = (len(self.streams[place]), 1, text)
        assert appended.parts[0].first == self.keys[tenant, stream, key][0]
        if crash:
            self.crash()
            assert self.writers[tenant].append(stream, make_note(text), key=key).repeated

    @rule(tenant=st.sampled_from(TENANTS), steps=st.integers(1, 6))
    def live_frames(self, tenant: str, steps: int) -> None:
        for _ in range(steps):
            drafts = self.stories[tenant].step()
            epoch = self.epochs.get((tenant, "actor/main"), 0)
            self.writers[tenant].append("actor/main", *drafts, epoch=epoch)
            for draft in drafts:
                self._note((tenant, "actor/main"), draft)

    @rule(tenant=st.sampled_from(TENANTS))
    def take_the_lease(self, tenant: str) -> None:
        place = (tenant, "actor/main")
        epoch = self.epochs.get(place, 0) + 1
        draft = Draft(type="lease.taken", facts=LeaseTaken(epoch=epoch, owner="w"))
        self.writers[tenant].append("actor/main", draft)
        self._note(place, draft)
        self.epochs[place] = epoch
        zombie = Draft(type="stream.closed", facts=StreamClosedFacts())
        with pytest.raises(StaleEpoch):
            self.writers[tenant].append("actor/main", zombie, epoch=epoch - 1)

    @rule(tenant=st.sampled_from(TENANTS), subject=st.sampled_from(SUBJECTS))
    def erase(self, tenant: str, subject: str) -> None:
        writer = self.writers[tenant]
        theirs = [
            e for (t, _), events in self.streams.items() if t == tenant for e in events if e["subject"] == subject
        ]
        if not theirs:
            with pytest.raises(NotFound):
                artifacts.erase_subject(writer.env, subject)
            return
        artifacts.erase_subject(writer.env, subject)
        for event in theirs:
            event.update(text=None, subject="erased", gone=True)
        self.streams.setdefault((tenant, "global"), []).append(
            {"type": "subject.erased", "text": None, "subject": None}
        )

    @rule()
    def rebuild(self) -> None:
        before = dump_projections(self.journal)
        assert rebuild_alone(self.journal) == self.journal.position()
        assert dump_projections(self.journal) == before

    @rule(jump=st.sampled_from((-86_400_000 * 3650, -1000, -1, 1, 1000, 86_400_000)))
    def jump_the_clock(self, jump: int) -> None:
        self.clock.jump(jump)

    @precondition(lambda self: hasattr(self, "journal"))
    @rule()
    def die_and_come_back(self) -> None:
        self.crash()

    @invariant()
    def journal_and_model_agree(self) -> None:
        if not hasattr(self, "journal"):
            return
        assert self.journal.position() == sum(map(len, self.streams.values()))
        for (tenant, stream), model in self.streams.items():
            stored = self.journal.read(EventQuery(tenant=tenant, stream=stream, limit=10_000))
            assert [event.version for event in stored] == list(range(1, len(model) + 1))
            events = [decode_event(event) for event in stored]
            assert [event.type for event in events] == [event["type"] for event in model]
            for event, known in zip(events, model, strict=True):
                if event.type == "app.noted":
                    assert (event.content.data["text"] if event.content else None) == known["text"]
            if stream == "actor/main":
                assert self.journal.load(tenant, stream) == fold_events(events)

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            assert verify(self.writers["default"].env).findings == ()
            self.journal.close()


class MemoryMachine(JournalMachine):
    def open(self) -> Journal:
        return MemoryJournal()

    def crash(self) -> None:
        """A journal in memory has nothing to come back to; its writers are made anew all the same."""
        self.writers = self.make_writers()


class SqliteMachine(JournalMachine):
    def open(self) -> Journal:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-model-"))
        self.lives = 0
        return SqliteJournal(self.folder / "0.db")

    def crash(self) -> None:
        """What kill -9 leaves: the files as they are, with the log not folded in."""
        before, self.lives = self.lives, self.lives + 1
        for end in ("", "-wal"):
            source = self.folder / f"{before}.db{end}"
            if source.exists():
                shutil.copy(source, self.folder / f"{self.lives}.db{end}")
        self.journal.close()
        self.journal = SqliteJournal(self.folder / f"{self.lives}.db")
        self.writers = self.make_writers()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


@pytest.mark.parametrize(
    ("machine", "steps"), [(MemoryMachine, volume(2_000, 40_000)), (SqliteMachine, volume(3_000, 60_000))]
)
def test_journal_and_model_agree_after_every_step(machine: type[JournalMachine], steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=steps // STEPS,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            derandomize=not SOAK,
        ),
    )
