"""Callbacks hear of commits, and a client that shuts down takes no new work."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import Draining, HoldfastError, InvalidValue, Unavailable
from holdfast.flow.journal.observers import EventCallbacks
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.events.envelope import Event
from holdfast.testing.clock import FrozenClock
from tests.frames.blocks import SCOPE, Watched, client, holder


def test_callbacks_hear_of_commits_in_order_and_after_them() -> None:
    journal = MemoryJournal()
    hf, other = client(journal), client(journal)
    heard: list[Event] = []

    def hear(event: Event) -> None:
        assert other.journal.version(event.stream) >= event.version, "it is committed already"
        heard.append(event)

    undo = hf.on("*", hear)
    with hf.frame("job", tokens=10) as frame:
        frame.spend(1, key="k")
        frame.spend(1, key="k")
        with pytest.raises(HoldfastError):
            frame.reserve("x", 100)
    stored = list(other.journal.events(SCOPE))
    assert [(e.seq, e.version, e.id, e.type, e.facts) for e in heard] == [
        (e.seq, e.version, e.id, e.type, e.facts) for e in stored
    ]
    undo()
    undo()
    hf.journal.append(SCOPE, "app.noted")
    assert len(heard) == len(stored)


def test_a_callback_that_fails_only_warns() -> None:
    hf = client()
    heard = []

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    hf.on("frame.pushed", broken)
    hf.on("frame.*", lambda event: heard.append(event.type))
    with pytest.warns(RuntimeWarning, match=r"frame\.pushed failed: ZeroDivisionError"), hf.frame("job") as frame:
        pass
    assert frame.status == "completed"
    assert heard == ["frame.pushed", "frame.popped"]


def test_callbacks_may_write_and_stay_within_their_tenant() -> None:
    hf = client()
    heard: list[str] = []
    acme = hf.tenant("acme")
    acme.on("app.*", lambda event: heard.append(event.tenant))
    hf.on("app.asked", lambda event: hf.journal.append("s", "app.heard"))
    hf.journal.append("s", "app.asked")
    acme.journal.append("s", "app.asked")
    assert heard == ["acme"]
    assert [event.type for event in hf.journal.events("s")] == ["app.asked", "app.heard"]
    for pattern in ("nothing.such", "zzz*", 1):
        with pytest.raises(InvalidValue):
            hf.on(pattern, print)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        hf.on("*", None)  # type: ignore[arg-type]


def note_heard_by_late_callbacks() -> tuple[list[str], list[str]]:
    """Append while other callbacks listen, while one more does, and once that one has gone."""
    with holdfast.open("memory:") as hf:
        early: list[str] = []
        late: list[str] = []
        hf.on("frame.*", lambda event: early.append(event.type))
        hf.journal.append("s", "app.noted")
        undo = hf.on("app.noted", lambda event: late.append(event.type))
        hf.journal.append("s", "app.noted")
        undo()
        hf.journal.append("s", "app.noted")
        return early, late


def test_a_callback_hears_types_that_nothing_wanted_before_it_came() -> None:
    assert note_heard_by_late_callbacks() == ([], ["app.noted"])


def test_what_callbacks_want_is_not_remembered_beyond_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = EventCallbacks._forget_wanted
    monkeypatch.setattr(EventCallbacks, "_forget_wanted", lambda self: self._wanted or sound(self))
    assert note_heard_by_late_callbacks() == ([], [])


def test_draining_takes_no_new_frames_and_waits_for_those_at_work() -> None:
    clock = FrozenClock()
    hf = client(clock=clock)
    block = hf.frame("job", key="job")
    block.open()
    assert hf.drain(grace=2) == 1
    assert 2 <= clock.monotonic() < 3
    with pytest.raises(Draining):
        hf.frame("new").open()
    assert issubclass(Draining, Unavailable)
    block.run(lambda: 1, key="a")
    block.leave()
    assert (block.status, hf.drain(grace=2), holder(hf)) == ("completed", 0, None)


def test_draining_ends_as_soon_as_the_last_block_does() -> None:
    hf = client(clock=Watched(lambda: block.leave()))
    block = hf.frame("job")
    block.open()
    assert hf.drain() == 0
    assert hf.env.clock.monotonic() < 1


def test_work_that_is_stopped_by_draining_stays_live_for_the_next_process() -> None:
    journal = MemoryJournal()
    hf = client(journal)
    root = hf.frame("job", key="job")

    def work() -> None:
        with root:
            hf.drain(0)
            root.frame("child", key="c").open()

    with pytest.raises(Draining):
        work()
    assert (root.status, holder(hf)) == ("active", None)
    with client(journal).frame("job", key="job") as root, root.frame("child", key="c"):
        pass
    assert root.status == "completed"


def test_callbacks_run_when_no_lock_is_held(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        both = threading.Barrier(2, timeout=5)
        errors: list[BaseException] = []

        def entered(event: holdfast.types.Event) -> None:
            if event.content.goal == "work":
                both.wait()
                with hf.frame("told", actor="b" if event.stream == "actor/a" else "a", key=f"of {event.stream}"):
                    pass

        stop = hf.on("frame.pushed", entered)

        def work(actor: str) -> None:
            try:
                with hf.frame("work", actor=actor):
                    stop()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(actor,), daemon=True) for actor in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert errors == []
        assert hf.env.leases.count_users() == 0
        hf.on("frame.popped", lambda event: hf.frame("after", actor="c", key="once").open())
        with hf.frame("again", actor="c"):
            pass
        assert [frame.goal for frame in hf.index.stack("actor/c")] == ["after"]
