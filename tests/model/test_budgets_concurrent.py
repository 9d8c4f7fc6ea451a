"""Many children of one root at once, some of which die: they never hold and spend more than the root was granted.

Children live in the root's scope or in their own, and work through several clients, one of
which never knows at first whether its commits arrived. A watcher looks all the time; at the
end every version that ever was is looked at, every grant is back, and what was used is
exactly what was spent.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.connect import assemble_env
from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.fold import fold_event
from holdfast.errors import (
    Conflict,
    FrameEnded,
    InsufficientTokens,
    KeyReused,
    OutcomeUnknown,
    QuestionNotFound,
    Unavailable,
)
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.batches import AppendResult, Batch
from holdfast.records.frames import FrameState, Limits, StreamState
from holdfast.records.reports import EventQuery
from holdfast.records.settings import Settings
from tests.scale import seeded, volume

TENANT, ROOT = "default", "actor/root"
CHILDREN = 64
MOST = 200
"""The largest grant. The root has about as much as all children spend, so that some are refused towards the end."""
EACH_ROUND = 600
PATIENCE = 1_000
ROOMY = Limits(timeout_ms=None, tool_calls=1000)

T = TypeVar("T")


class Doubtful:
    """A journal that often cannot say whether a commit arrived, although it did or did not."""

    def __init__(self, journal: Journal, seed: int) -> None:
        self._journal = journal
        self._random = random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append(self, batch: Batch) -> AppendResult:
        chance = self._random.random()
        if chance < 0.2:
            raise OutcomeUnknown
        appended = self._journal.append(batch)
        if chance < 0.4:
            raise OutcomeUnknown
        return appended


def surely(do: Callable[[], T]) -> T:
    """Try again while others are quicker, or nobody knows what happened; a key makes that safe."""
    for _ in range(PATIENCE):
        try:
            return do()
        except KeyReused:
            raise
        except (Conflict, OutcomeUnknown, Unavailable):
            continue
    raise AssertionError("nothing got through")


class Family:
    """One root, its children, and the ledger of what they spent."""

    def __init__(self, make: Callable[[], Journal], seed: int, total: int) -> None:
        self.make, self.total = make, total
        self.journals = [make() for _ in range(4)]
        self.journals[-1] = Doubtful(self.journals[-1], seed)
        self.clients = [self.client(journal) for journal in self.journals]
        self.root = self.clients[0].index.push_frame("all", scope=ROOT, tokens=total, limits=ROOMY)
        self.mutex = threading.Lock()
        self.spent = 0
        self.pushed = self.refused = 0
        self.abandoned: list[str] = []
        self.errors: list[BaseException] = []
        self.done = threading.Event()
        self.seen: set[int] = set()

    def client(self, journal: Journal) -> Holdfast:
        return Holdfast(assemble_env(journal, Settings(cached_streams=8)))

    def close(self) -> None:
        for client in self.clients:
            client.close()

    # a child

    def work(self, number: int, rounds: int, seed: int) -> None:
        chance = random.Random(seed)
        try:
            for turn in range(rounds):
                self.one_child(chance, number, turn)
        except BaseException as error:
            self.errors.append(error)

    def one_child(self, chance: random.Random, number: int, turn: int) -> None:
        index, name = self.clients[number % len(self.clients)].index, f"{number}-{turn}"
        grant = chance.randint(1, MOST)
        scope = f"actor/{number}" if chance.random() < 0.3 else None
        try:
            frame = surely(
                lambda: index.push_frame("part", parent=self.root, scope=scope, tokens=grant, key=f"push {name}")
            )
        except InsufficientTokens:
            with self.mutex:
                self.refused += 1
            return
        left = grant
        with self.mutex:
            self.pushed += 1
        for step in range(chance.randint(1, 3)):
            dies = chance.random() < 0.12
            if dies or (chance.random() < 0.25 and not self.pause(index, frame, f"{name}-{step}", chance)):
                self.abandon(frame)
                return
            left -= self.spend(index, frame, f"{name}-{step}", chance.randint(0, left // 6), chance)
        status = chance.choice(("completed", "failed"))
        surely(lambda: index.pop_frame(frame, status, key=f"pop {name}"))

    def abandon(self, frame: str) -> None:
        """As if the process were gone: the frame stays as it is, until somebody finds it."""
        with self.mutex:
            self.abandoned.append(frame)

    def spend(self, index: Any, frame: str, name: str, amount: int, chance: random.Random) -> int:
        if chance.random() < 0.5:
            surely(lambda: index.record_usage(frame, amount, key=f"spend {name}"))
        else:
            surely(lambda: index.reserve(frame, "part", amount, key=f"reserve {name}"))
            if amount:
                surely(lambda: index.spend_reserved(frame, "part", amount, key=f"spend {name}"))
        with self.mutex:
            self.spent += amount
        return amount

    def pause(self, index: Any, frame: str, name: str, chance: random.Random) -> bool:
        """Wait for an answer, with the grant given back meanwhile; False if it cannot be had again."""
        asked = surely(lambda: index.suspend_frame(frame, "?", key=f"ask {name}"))
        if chance.random() < 0.2:
            return False
        try:
            surely(lambda: index.resume_frame(asked.question, approve=True))
        except QuestionNotFound:
            # A resume of unknown outcome had happened: then there is nothing left to resume.
            assert index.get_frame(frame).status == "active"
        except InsufficientTokens:
            return False
        return True

    # around the children

    def clear_up(self) -> None:
        """Another client cancels what was abandoned, while the others work and once more afterwards."""
        try:
            client = self.client(self.make())
            while True:
                last = self.done.is_set()
                with self.mutex:
                    found, self.abandoned = self.abandoned, []
                for frame in found:
                    self.cancel(client, frame)
                if last:
                    break
                self.done.wait(0.005)
            client.close()
        except BaseException as error:
            self.errors.append(error)

    def cancel(self, client: Holdfast, frame: str) -> None:
        try:
            surely(lambda: client.index.pop_frame(frame, "cancelled", error="abandoned"))
        except FrameEnded:
            raise AssertionError("what was abandoned had ended") from None

    def watch(self) -> None:
        """Whenever anybody looks, it adds up."""
        try:
            journal = self.make()
            while not self.done.is_set():
                self.seen.add(check(journal.load(TENANT, ROOT), self.root))
            journal.close()
        except BaseException as error:
            self.errors.append(error)


def check(state: StreamState, root_id: str) -> int:
    """What children hold, what is reserved and what is used is within what was granted."""
    root = state.frames[root_id]
    assert root.granted is not None
    here = sum(held(frame) for frame in state.frames.values() if frame.parent == root_id)
    assert root.used + root.reserved + root.lent <= root.granted, f"at {state.version}: {root.tokens}"
    assert root.lent >= here if root.away else root.lent == here, f"at {state.version}: {root.lent}, {here} held"
    assert root.tokens.overdraft == 0
    return state.version


def held(frame: FrameState) -> int:
    return (frame.granted or 0) - (0 if frame.question is None else frame.question.released)


@contextmanager
def family(backend: str, folder: Path, seed: int, total: int) -> Iterator[Family]:
    memory = MemoryJournal()
    memory.close = lambda: None  # type: ignore[method-assign]  # one journal in memory is shared by all its clients

    def make() -> Journal:
        return memory if backend == "memory" else SqliteJournal(folder / "family.db", durability="fast")

    one, before = Family(make, seed, total), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # Threads that take turns politely meet each other too seldom.
    try:
        yield one
    finally:
        sys.setswitchinterval(before)
        one.close()


@pytest.mark.parametrize(
    ("backend", "rounds"),
    # In memory the cost of loading follows all frames that ever were, so it wears out sooner.
    [("memory", volume(6, 30)), ("sqlite", volume(6, 100))],
)
def test_64_children_at_once_never_hold_more_than_the_root_was_granted(
    backend: str, rounds: int, tmp_path: Path
) -> None:
    live_and_look_back(backend, tmp_path, rounds)


def live_and_look_back(backend: str, folder: Path, rounds: int) -> None:
    """Let every child live so many times, all at once, and count."""
    chance = seeded(f"children on {backend}")
    with family(backend, folder, chance.randrange(2**32), EACH_ROUND * rounds) as one:
        children = [
            threading.Thread(target=one.work, args=(number, rounds, chance.randrange(2**32)), daemon=True)
            for number in range(CHILDREN)
        ]
        others = [threading.Thread(target=run, daemon=True) for run in (one.watch, one.clear_up)]
        for thread in (*others, *children):
            thread.start()
        for thread in children:
            thread.join(600)
        one.done.set()
        for thread in others:
            thread.join(60)
        assert not any(thread.is_alive() for thread in (*children, *others))
        for error in one.errors:
            raise error
        look_back(one)


def look_back(one: Family) -> None:
    """Every version that ever was, and what is left at the end."""
    journal, index = one.journals[0], one.clients[0].index
    state, grants = StreamState(), 0
    for stored in journal.read(EventQuery(tenant=TENANT, stream=ROOT, limit=10_000_000)):
        state = fold_event(state, decode_event(stored))
        grants += stored.type in ("frame.pushed", "child.pushed")
        check(state, one.root)
    assert grants == one.pushed + 1
    assert one.pushed > CHILDREN // 2
    assert one.refused > 0
    assert len(one.seen) > 1
    print(f"{one.pushed} pushed, {one.refused} refused, {one.spent} of {one.total} spent, {len(one.seen)} looks")
    root = index.get_frame(one.root)
    assert (root.tokens.lent, root.tokens.reserved, root.tokens.used) == (0, 0, one.spent)
    assert root.tokens.available == one.total - one.spent >= 0
    assert root.status == "active"
    assert [info.id for info in index.stack(ROOT)] == [one.root]
    assert [scope for scope, _ in index.stacks()] == [ROOT]
    index.pop_frame(one.root)
    assert one.clients[0].journal.verify().findings == ()
