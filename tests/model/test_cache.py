"""The cache of stream states: a hint with a cap. Answers are the same with it, without it, and after any error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import OutcomeUnknown, Refused, Unavailable, VersionConflict
from holdfast.flow.journal import append as changing
from holdfast.flow.journal.append import decide_and_append, load_state
from holdfast.flow.journal.caches import StateCache, run_locked
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.batches import AppendResult, Batch
from holdfast.records.frames import StreamState
from holdfast.records.settings import Settings
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.journal_contract import make_push
from holdfast.testing.writer import Writer
from tests.scale import seeded, volume

ACTOR = "actor/main"


class Flaky:
    """A journal whose appends fail as told: before they happen, or after."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.before: BaseException | None = None
        self.after: BaseException | None = None
        self.loads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def load(self, tenant: str, stream: str) -> StreamState:
        self.loads += 1
        return self._journal.load(tenant, stream)

    def append(self, batch: Batch) -> AppendResult:
        if self.before is not None:
            error, self.before = self.before, None
            raise error
        appended = self._journal.append(batch)
        if self.after is not None:
            error, self.after = self.after, None
            raise error
        return appended


def push_one(writer: Writer) -> AppendResult:
    """Push a frame at the version that was loaded."""

    appended = decide_and_append(writer.env, [ACTOR], lambda states: {ACTOR: [make_push(writer)]}).appended
    assert appended is not None
    return appended


def test_what_was_written_is_not_read_back() -> None:
    flaky = Flaky(MemoryJournal())
    writer = Writer(flaky)  # type: ignore[arg-type]
    for _ in range(10):
        push_one(writer)
    assert flaky.loads == 1
    assert load_state(writer.env, ACTOR) == flaky.load("default", ACTOR)


@pytest.mark.parametrize("error", [Unavailable(), KeyboardInterrupt(), VersionConflict(ACTOR, 1, 2)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_after_any_error_the_next_answer_is_the_journal_s(error: BaseException, when: str) -> None:
    flaky = Flaky(MemoryJournal())
    writer = Writer(flaky)  # type: ignore[arg-type]
    push_one(writer)
    setattr(flaky, when, error)
    try:
        push_one(writer)
    except (Unavailable, KeyboardInterrupt):
        pass
    assert load_state(writer.env, ACTOR) == flaky.load("default", ACTOR)
    push_one(writer)
    assert load_state(writer.env, ACTOR) == flaky.load("default", ACTOR)


def test_an_unknown_outcome_is_asked_about_until_it_is_known() -> None:
    for when in ("before", "after"):
        flaky = Flaky(MemoryJournal())
        writer = Writer(flaky)  # type: ignore[arg-type]
        push_one(writer)
        setattr(flaky, when, OutcomeUnknown())
        assert push_one(writer).version == 2
        assert flaky.position() == 2
        assert load_state(writer.env, ACTOR) == flaky.load("default", ACTOR)


def test_unknown_stays_unknown_when_nobody_can_be_asked() -> None:
    class Gone(Flaky):
        def append(self, batch: Batch) -> AppendResult:
            self.calls = getattr(self, "calls", 0) + 1
            raise OutcomeUnknown if self.calls == 1 else Unavailable

    writer = Writer(Gone(MemoryJournal()))  # type: ignore[arg-type]
    with pytest.raises(OutcomeUnknown):
        push_one(writer)


def test_a_decision_overtaken_by_another_process_is_made_again(tmp_path: Path) -> None:
    mine, theirs = (Writer(SqliteJournal(tmp_path / "a.db")) for _ in range(2))
    for _ in range(10):
        push_one(mine)
        push_one(theirs)
    assert mine.env.journal.load("default", ACTOR).version == 20
    assert load_state(theirs.env, ACTOR).version == 20
    for writer in (mine, theirs):
        writer.env.journal.close()


def test_a_refusal_counts_only_on_a_state_that_was_just_loaded() -> None:
    writer = Writer(MemoryJournal())
    push_one(writer)
    seen = []

    def decide(states: changing.States) -> changing.Drafts:
        seen.append(states[ACTOR].version)
        raise Refused("no")

    other = Writer(writer.env.journal)
    push_one(other)
    with pytest.raises(Refused, match="no"):
        decide_and_append(writer.env, [ACTOR], decide)
    assert seen == [1, 2]


@pytest.mark.parametrize("capacity", [0, 1, 3, 1000])
def test_answers_are_the_same_with_and_without_the_cache(capacity: int) -> None:
    random = seeded("cache")
    journal = MemoryJournal()
    writer = Writer(journal, settings=Settings(cached_streams=capacity))
    other = Writer(journal)
    stories = {f"actor/a{number}": FrameGenerator(random, writer.env.ids) for number in range(6)}
    for _ in range(volume(400, 20_000)):
        stream = random.choice(list(stories))
        who = random.choice((writer, writer, other))
        decide_and_append(who.env, [stream], _next(stream, stories[stream]))
        seen = load_state(writer.env, stream)
        if who is writer:
            assert seen == journal.load("default", stream)
    assert len(writer.env.states) <= capacity  # type: ignore[arg-type]


def _next(stream: str, story: FrameGenerator) -> Callable[[changing.States], changing.Drafts]:
    drafts = tuple(story.step())
    return lambda states: {stream: drafts}


def test_the_least_recently_used_goes_first_and_an_older_state_never_replaces_a_newer() -> None:
    cache = StateCache(2)
    for name in "ab":
        cache.put("t", name, StreamState(version=5))
    assert cache.streams.get(("t", "a")) is not None
    cache.put("t", "c", StreamState(version=1))
    assert cache.streams.get(("t", "b")) is None
    cache.put("t", "a", StreamState(version=4))
    assert cache.streams.get(("t", "a")) == StreamState(version=5)
    assert cache.streams.get(("other", "a")) is None


def test_many_scopes_pass_through_a_bounded_cache() -> None:
    cache = StateCache(1000)
    state = StreamState(version=1)
    for number in range(volume(20_000, 1_000_000)):
        cache.put("t", f"session/{number}", replace(state, version=number))
        assert len(cache) <= 1000
    assert cache.streams.get(("t", "session/0")) is None


def test_streams_are_locked_in_one_order_whatever_order_is_asked_for() -> None:
    cache = StateCache(10)
    names = [f"session/{number}" for number in range(40)]
    done: list[int] = []

    def work(seed: int) -> None:
        random = seeded(f"locks {seed}")
        for _ in range(200):
            run_locked(cache.locks("t", random.sample(names, 5)), lambda: done.append(seed))

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(done) == 800
