"""One owner at a time, whoever sleeps, dies or has a wrong clock: real processes, stopped and killed.

An owner that was stopped for longer than its lease finds, when it goes on, that the journal
refuses what only an owner may write, and still takes what anybody may.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.connect import assemble_env
from holdfast.core.journal import chain
from holdfast.errors import ActorBusy, Busy, StaleEpoch, TokenNotFound
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.batches import RowQuery
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from tests.crash.lease_process import SCOPE
from tests.scale import volume

LEASE_MS = 500
LONG_MS = 60_000
TEN_YEARS_MS = 10 * 365 * 86_400_000
PATIENCE = 60


class Other:
    """Another process, told what to do."""

    def __init__(self, path: Path, lease_ms: int = LEASE_MS) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.lease_process", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOLDFAST_LEASE_MS": str(lease_ms)},
            text=True,
            bufsize=1,
        )

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert ready, "the other process says nothing"
        return self._process.stdout.readline().strip()

    def do(self, command: str) -> str:
        self.tell(command)
        return self.hear()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, also if it is stopped."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Callable[..., Other]]:
    """Starts processes on one file; none outlives the test."""
    started: list[Other] = []

    def start(lease_ms: int = LEASE_MS) -> Other:
        started.append(Other(tmp_path / "a.db", lease_ms))
        return started[-1]

    yield start
    for other in started:
        other.kill()


def here(folder: Path, lease_ms: int = LEASE_MS) -> holdfast.Holdfast:
    """This process, which does not wait long for a lock: a stopped process may hold it."""
    return holdfast.open(folder / "a.db", settings=Settings(lease_ms=lease_ms, busy_ms=500))


def holder(hf: holdfast.Holdfast) -> str | None:
    return hf.index.resume_actor(SCOPE).holder


def stop(owner: Other, hf: holdfast.Holdfast) -> None:
    """Stop a process somewhere; not in the middle of a commit, where it would keep everybody from writing."""
    while True:
        owner.signal(signal.SIGSTOP)
        try:
            hf.journal.append("probe", "app.noted")
        except Busy:
            owner.signal(signal.SIGCONT)
            time.sleep(0.01)
        else:
            return


def test_an_owner_that_slept_too_long_can_write_as_an_owner_no_more(
    tmp_path: Path, others: Callable[..., Other]
) -> None:
    with here(tmp_path) as hf:
        zombie = others()
        assert zombie.hear() == "ok ready"
        for number in range(volume(3, 200)):
            _one_sleep(hf, zombie, f"job-{number}")
        assert hf.journal.verify().findings == ()


def _one_sleep(hf: holdfast.Holdfast, zombie: Other, key: str) -> None:
    question = hf.index.suspend_frame(hf.index.push_frame("aside", scope=f"actor/{key}"), "Well?").question
    frame = zombie.do(f"enter {key}").removeprefix("ok ")
    assert zombie.do("run before") == "ok done"
    with pytest.raises(ActorBusy):
        hf.frame("job", key=key).open()
    stop(zombie, hf)
    with hf.frame("job", key=key) as mine:
        assert (mine.id, holder(hf)) == (frame, hf.env.leases.process.name)
        assert mine.run(lambda: "mine", key="after") == "mine"
        before = hf.journal.version(SCOPE)
        zombie.signal(signal.SIGCONT)
        # What only an owner may write is refused; what anybody may write arrives.
        assert zombie.do("run too-late") == "StaleEpoch"
        assert zombie.do("note") == f"ok {before + 1}"
        assert zombie.do(f"answer {question}") == f"ok {question}"
        assert zombie.do("leave") == "StaleEpoch"
        assert holder(hf) == hf.env.leases.process.name, "exactly one owner"
        assert hf.journal.version(SCOPE) == before + 1
        assert mine.run(lambda: "lost", key="before") == "done"
    assert mine.status == "completed"
    assert hf.index.question(question).answered


def test_an_owner_that_computes_for_many_leases_keeps_its_lease(tmp_path: Path, others: Callable[..., Other]) -> None:
    owner = others()
    assert owner.hear() == "ok ready"
    owner.do("enter job")
    owner.tell(f"busy {4 * LEASE_MS}")
    tries, began = 0, time.monotonic()
    with here(tmp_path) as hf:
        while time.monotonic() - began < 3.2 * LEASE_MS / 1000:
            with pytest.raises(ActorBusy):
                hf.frame("job", key="job").open()
            tries += 1
        assert owner.hear() == "ok True"
        assert owner.do("leave") == "ok completed"
        assert (tries >= 3, holder(hf)) == (True, None)


def test_of_many_that_come_at_once_one_gets_the_actor(tmp_path: Path, others: Callable[..., Other]) -> None:
    with here(tmp_path) as hf:
        all_of_them = [others() for _ in range(volume(3, 8))]
        assert {other.hear() for other in all_of_them} == {"ok ready"}
        for number in range(volume(3, 50)):
            for other in all_of_them:
                other.tell(f"enter race-{number}")
            said = [other.hear() for other in all_of_them]
            won = [other for other, words in zip(all_of_them, said, strict=True) if words.startswith("ok")]
            assert len(won) == 1, said
            assert min(said) == "ActorBusy"
            assert won[0].do("run a") == "ok done"
            assert won[0].do("leave") == "ok completed"
        assert hf.journal.verify().findings == ()


def test_a_killed_owner_is_followed_at_once(tmp_path: Path, others: Callable[..., Other]) -> None:
    owner = others(LONG_MS)
    assert owner.hear() == "ok ready"
    frame = owner.do("enter job").removeprefix("ok ")
    owner.kill()
    began = time.monotonic()
    with here(tmp_path, LONG_MS) as hf, hf.frame("job", key="job") as taken:
        assert taken.id == frame
    assert time.monotonic() - began < LONG_MS / 4000


def test_a_question_survives_whoever_asked_it_before_the_token_was_shown(
    tmp_path: Path, others: Callable[..., Other]
) -> None:
    by_id, again, lost = (_asked_and_killed(tmp_path, others, f"job-{number}") for number in range(3))
    with here(tmp_path) as hf:
        # Answered by id, by whoever is authorised.
        hf.answer(by_id, approve=True)
        with hf.frame("job", key="job-0") as frame:
            assert frame.ask("Publish?", key="ask", token=True).approved
        # Run again with its key, the code has a token to show.
        with hf.frame("job", key="job-1") as frame:
            asked = frame.suspend("Publish?", key="ask", token=True)
        assert asked.question == again
        assert asked.token is not None
        hf.answer(token=asked.token, approve=True)
        # Issued anew: the token that nobody saw opens nothing any more.
        old = _token_id(hf, lost)
        new = hf.index.reissue_token(lost)
        assert (
            hf.env.journal.select("default", RowQuery(table="suspended_frames", column="token_id", value=old, limit=1))
            == []
        )
        assert _token_id(hf, lost) != old
        assert hf.answer(token=new, approve=True) == lost
        with pytest.raises(TokenNotFound):
            hf.answer(token=new, approve=True)
        assert hf.journal.verify().findings == ()


def _asked_and_killed(folder: Path, others: Callable[..., Other], key: str) -> str:
    asker = others()
    assert asker.hear() == "ok ready"
    asker.do(f"enter {key}")
    asker.tell("ask")
    with here(folder) as hf:
        known = {info.id for info in hf.questions() if info.answered}
        while True:
            found = [info.id for info in hf.questions() if info.id not in known and info.frame == _newest(hf)]
            if found:
                break
            time.sleep(0.005)
    asker.kill()
    return found[0]


def _newest(hf: holdfast.Holdfast) -> str:
    pushed: list[Any] = [event.facts for event in hf.journal.events(SCOPE, types=["frame.pushed"])]
    return str(pushed[-1].frame)


def _token_id(hf: holdfast.Holdfast, question: str) -> bytes:
    rows = hf.env.journal.select("default", RowQuery(table="suspended_frames", limit=100))
    raw = next(row["token_id"] for _, row in rows if row["frame_id"] == _frame_id(hf, question))
    assert isinstance(raw, bytes)
    return raw


def _frame_id(hf: holdfast.Holdfast, question: str) -> bytes:
    from holdfast.records.ids import ulid_bytes

    return ulid_bytes(hf.index.question(question).frame)


# clocks


class Jumping(FrozenClock):
    """A clock that is set by years while somebody waits by it; `sign` happens meanwhile."""

    def __init__(self, years_ms: int, sign: Callable[[], object] | None = None) -> None:
        super().__init__(now_ms=3 * TEN_YEARS_MS)
        self._years_ms, self._sign = years_ms, sign
        self._slept = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._slept += 1
        self.jump(self._years_ms if self._slept % 2 else -self._years_ms)
        if self._sign is not None:
            self._sign()


def client(journal: Any, clock: FrozenClock) -> holdfast.Holdfast:
    return holdfast.Holdfast(assemble_env(journal, Settings(lease_ms=10_000), clock))


@pytest.mark.parametrize("years_ms", [TEN_YEARS_MS, -TEN_YEARS_MS])
def test_the_wall_clock_neither_extends_nor_ends_a_lease(years_ms: int) -> None:
    journal = MemoryJournal()
    mine = FrozenClock(now_ms=3 * TEN_YEARS_MS)
    owner = client(journal, mine)
    block = owner.frame("job", key="job")
    block.open()
    mine.jump(years_ms)
    block.run(lambda: 1, key="a")
    alive = client(journal, Jumping(years_ms, lambda: journal.renew_lease("default", SCOPE, 1)))
    with pytest.raises(ActorBusy):
        alive.frame("job", key="job").open()
    mine.jump(-years_ms)
    block.run(lambda: 1, key="b")
    clock = Jumping(years_ms)
    with client(journal, clock).frame("job", key="job") as taken:
        assert 10 <= clock.monotonic() < 11, "a lease lasts as long as it lasts"
        assert taken.id == block.id
        with pytest.raises(StaleEpoch):
            block.run(lambda: 1, key="c")


# tests that can fail


def one_owner() -> None:
    """The same without processes: two clients, one of which was away for too long."""
    journal = MemoryJournal()
    first, second = client(journal, FrozenClock()), client(journal, FrozenClock())
    block = first.frame("job", key="job")
    block.open()
    with second.frame("job", key="job") as mine:
        before = second.journal.version(SCOPE)
        for write in (lambda: block.run(lambda: 1, key="a"), lambda: block.spend(1), lambda: block.reserve("p", 0)):
            try:
                write()
            except StaleEpoch:
                continue
            assert second.journal.version(SCOPE) == before, "two owners"
        assert second.journal.version(SCOPE) == before, "two owners"
        first.journal.append(SCOPE, "app.noted")
        mine.run(lambda: 1, key="b")
    block.leave(KeyboardInterrupt())
    assert mine.status == "completed"
    assert first.journal.verify().findings == ()


def test_two_clients_are_never_both_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    one_owner()
    with monkeypatch.context() as patch:
        patch.setattr(chain, "OWNER_TYPES", frozenset())
        with pytest.raises(AssertionError, match="two owners"):
            one_owner()
