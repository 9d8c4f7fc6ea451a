"""Handing a conversation over to memory: processes die at any moment, sweep at once, and people go on talking."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.flow.sessions import sessions
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports import EndedConversation
from holdfast.ports.journal import Journal
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.faults import FaultPoints, SimulatedDeath
from tests.crash.test_frame_crashes import bury
from tests.model.frames_walk import StillClock
from tests.model.meanwhile import Meanwhile
from tests.model.sessions_walk import Engine, count_fours
from tests.scale import SOAK, volume
from tests.sessions.test_handover import ENDS, HOUR, client, only, talk

# dying anywhere


class Mortal(Engine):
    """Memory whose caller may die just before, or just after, it has the conversation."""

    def __init__(self) -> None:
        super().__init__()
        self.dies: str | None = None
        self.points: Any = None

    def take(self, ended: EndedConversation) -> None:
        for when in ("before", "after"):
            if self.dies == when:
                self.dies, self.points._dead = None, True
                raise SimulatedDeath(f"{when} memory has it")
            if when == "before":
                super().take(ended)


Left = tuple[str, Journal, Mortal, dict[str, list[str]]]


def deaths(cause: str, make: Callable[[], Journal], kind: str) -> Iterator[Left]:
    """Die at every point of ending a session, and around memory itself; gives what is left."""

    def run(die_at: int | None, dies: str | None) -> tuple[list[str], Left]:
        journal, engine = make(), Mortal()
        said = talk(client(journal, engine))
        engine.points = points = FaultPoints(journal, die_at=die_at)
        engine.dies = dies
        dying = client(points, engine, later=HOUR)
        death = ""
        try:
            ENDS[cause](dying)
        except SimulatedDeath as died:
            death = str(died)
            bury(dying, known=bool((die_at or 0) % 2))
        return points.passed, (f"{die_at}: {death}", journal, engine, said)

    whole, _ = run(None, None)
    for when in ("before", "after"):
        yield run(None, when)[1]
    for number, name in enumerate(whole, 1):
        if kind in name:
            passed, left = run(number, None)
            assert passed == whole[:number], "the end of a session is not repeatable"
            yield left


@pytest.mark.parametrize("cause", ENDS)
def test_whoever_sweeps_after_a_crash_hands_it_over_once(cause: str) -> None:
    torture(cause, MemoryJournal)


def test_whoever_sweeps_after_a_crash_hands_it_over_once_on_a_file(tmp_path: Path) -> None:
    numbers = itertools.count()
    kind = "" if SOAK else "append"
    torture("reset", lambda: SqliteJournal(tmp_path / f"{next(numbers)}.db", durability="fast"), kind)


def torture(cause: str, make: Callable[[], Journal], kind: str = "") -> None:
    outcomes = set()
    for point, journal, engine, said in deaths(cause, make, kind):
        hf = client(journal, engine, later=2 * HOUR)
        status = hf.session("a").details.status
        outcomes.add(status)
        assert status in ("open", "closing", "closed", "ended"), point
        hf.sweep_sessions()  # What was not ended yet was idle all the time.
        ended = "timeout" if status == "open" else cause
        assert only(engine) == ("a", ended, said), point
        assert engine.asked <= 2, point
        assert hf.session("a").details.status == ("closed" if ended == "close" else "ended"), point
        assert hf.sweep_sessions().handed_over == 0, point
        assert hf.journal.verify().findings == (), point
        journal.close()
    assert outcomes >= {"open", "closing"}


# others at the same time


def test_of_two_processes_that_sweep_only_one_offers() -> None:
    journal, clock = MemoryJournal(), StillClock()

    def give_sign() -> None:
        head = journal.head("default", "session/a")
        assert head is not None
        journal.renew_lease("default", "session/a", head.epoch)

    clock.meanwhile = give_sign
    swept = []

    class Slow(Engine):
        def take(self, ended: EndedConversation) -> None:
            super().take(ended)
            swept.append(other.sweep_sessions().handed_over)

    engine = Slow()
    hf, other = (client(journal, engine, clock=clock) for _ in range(2))
    hf.session("a").append("one")
    hf.session("a").close()
    assert (swept, engine.asked, len(engine.taken)) == ([0], 1, 1)


def test_a_process_that_slept_while_memory_worked_is_not_in_the_way() -> None:
    journal = MemoryJournal()

    class Slow(Engine):
        def take(self, ended: EndedConversation) -> None:
            super().take(ended)
            if self.asked == 1:
                assert other.sweep_sessions().handed_over == 1

    engine = Slow()
    hf, other = (client(journal, engine) for _ in range(2))
    chat = hf.session("a")
    chat.append("one")
    chat.close()
    assert (chat.details.status, engine.asked, len(engine.taken)) == ("closed", 2, 1)
    assert hf.journal.verify().findings == ()


class Patient(FrozenClock):
    """Whoever watches an owner does not think that time passes, and waits for as long as it works."""

    def sleep(self, seconds: float) -> None:
        time.sleep(0)


@pytest.mark.parametrize("clock", [Patient(), FrozenClock()], ids=["patient", "impatient"])
def test_processes_that_sweep_at_once_hand_everything_over_once(clock: FrozenClock, tmp_path: Path) -> None:
    many, engine, lock = volume(12, 200), Engine(), threading.Lock()

    class Locked:
        def take(self, ended: EndedConversation) -> None:
            with lock:
                engine.take(ended)

    settings = Settings(lease_ms=60_000)
    beside = ClientExtensions(tokenizer=count_fours, memory=Locked())
    journals = [SqliteJournal(tmp_path / "sweep.db", durability="fast") for _ in range(3)]
    clients = [Holdfast(assemble_env(journal, settings, clock, None, beside)) for journal in journals]
    for number in range(many):
        clients[0].session(f"s{number}", idle_timeout=60).append([f"{number}", "so"])
    clock.advance(HOUR)
    with ThreadPoolExecutor(3) as pool:
        swept = list(pool.map(lambda hf: hf.sweep_sessions(), clients))
    assert sum(one.ended for one in swept) == many
    found = sorted((session, said["main"]) for session, _, said in engine.taken.values())
    assert found == sorted((f"s{number}", [f"{number}", "so"]) for number in range(many))
    assert engine.asked == many or type(clock) is FrozenClock
    assert {info.status for info in clients[0].sessions()} == {"ended"}
    assert clients[0].journal.verify().findings == ()
    for hf in clients:
        hf.close()


def sweep(hf: Holdfast) -> object:
    return hf.sweep_sessions()


def append(hf: Holdfast) -> object:
    return hf.session("a").append("late")


def raced(number: int, mine: Callable[[Holdfast], object], theirs: Callable[[Holdfast], object]) -> bool:
    """One process does the first, and just before its n-th look at the journal another does the second."""
    journal, engine = MemoryJournal(), Engine()
    client(journal, engine).session("a", idle_timeout=60).append(["one", "two"])
    racing = Meanwhile(journal)
    hf, other = client(racing, engine, later=HOUR), client(journal, engine, later=HOUR)
    hf.session("a").messages()  # It remembers how things stood.
    racing.after(number, lambda: theirs(other))
    mine(hf)
    if racing.calls < number:
        return False
    handed = [text for _, _, said in engine.taken.values() for text in said["main"]]
    shown = [message.text for message in hf.session("a").messages()]
    # It was said in time, so that the session was not idle; or it begins the next conversation.
    assert [*handed, *shown] == ["one", "two", "late"]
    assert (hf.session("a").details.status, len(handed)) in {("open", 0), ("open", 2)}
    client(journal, engine, later=3 * HOUR).sweep_sessions()
    assert [text for _, _, said in engine.taken.values() for text in said["main"]] == ["one", "two", "late"]
    assert hf.journal.verify().findings == ()
    return True


@pytest.mark.parametrize(("mine", "theirs"), [(sweep, append), (append, sweep)], ids=["sweep", "append"])
def test_a_message_that_races_with_the_sweep_is_never_lost(
    mine: Callable[[Holdfast], object], theirs: Callable[[Holdfast], object]
) -> None:
    number = next(number for number in itertools.count(1) if not raced(number, mine, theirs))
    assert number > 2


def test_a_sweep_that_does_not_look_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: whether something was said meanwhile is not compared."""
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "_is_busy", lambda known, lines, now: False)
        with pytest.raises(AssertionError):
            test_a_message_that_races_with_the_sweep_is_never_lost(sweep, append)
