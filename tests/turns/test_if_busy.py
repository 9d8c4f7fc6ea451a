"""Who comes while somebody works on a conversation: queue, reject, interrupt, join; in threads and in processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CallModel
from holdfast.errors import ActorBusy
from holdfast.flow.turns.engine import UNSEEN_NOTICE
from holdfast.flow.turns.open import TurnQueue
from tests.scale import volume
from tests.turns.loops import SESSION, asks, check_whole, kinds, leave_at, loop, place, replies, spoken, take

Holdfast = holdfast.Holdfast
LEASE_MS = 400
PATIENCE = 30
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    """A client with a real clock: threads wait in real time."""
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    settings = holdfast.Settings(lease_ms=LEASE_MS)
    with holdfast.open(url, settings=settings, durability="fast") as client:
        client.session(SESSION)
        yield client
        check_whole(client)


class Working:
    """Somebody who works on a turn until told to go on."""

    def __init__(self, hf: Holdfast, text: str = "first") -> None:
        self.done: Any = None
        self._go, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, args=(hf, text))
        self._thread.start()
        assert self._begun.wait(PATIENCE)

    def _work(self, hf: Holdfast, text: str) -> None:
        def model(step: CallModel) -> None:
            self._begun.set()
            assert self._go.wait(PATIENCE)
            heard = [one["content"] for one in step.pack.to_openai()["messages"] if one["role"] == "user"]
            step.done(f"heard {' '.join(text for text in heard if text != UNSEEN_NOTICE)}")

        try:
            self.done = take(hf, text, model, key=text)
        except (holdfast.HoldfastError, AssertionError) as error:
            self.done = error

    def finish(self) -> Any:
        self._go.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.done


class Sender(threading.Thread):
    """A thread that sends one message; `heard` is called with its turn as it begins."""

    def __init__(self, hf: Holdfast, text: str, heard: Callable[[str], object] = lambda text: None, **how: Any) -> None:
        super().__init__()
        self._hf, self._text, self._heard, self._how = hf, text, heard, how
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            with self._hf.session(SESSION).turn(self._text, **self._how) as turn:
                self._heard(self._text)
                self.result = loop(turn, lambda step: step.done(f"to {self._text}"))[-1]
        except holdfast.HoldfastError as error:
            self.result = error

    def ended(self) -> Any:
        self.join(PATIENCE)
        assert not self.is_alive(), "it waits for ever"
        return self.result


def lined_up(hf: Holdfast, count: int) -> None:
    """Return once so many wait in this process."""
    queues = hf.env.queues
    assert queues is not None
    until = time.monotonic() + PATIENCE
    while len(queues._waiting.get(("default", place()), ())) < count:
        assert time.monotonic() < until
        time.sleep(0.001)


# threads of one process


def in_order(hf: Holdfast, count: int) -> None:
    """So many come one after the other while somebody works; each goes on when it is their turn."""
    working, order, senders = Working(hf), [], []
    names = [f"m{number}" for number in range(count)]
    try:
        for number, name in enumerate(names):
            senders.append(Sender(hf, name, order.append))
            lined_up(hf, number + 1)
    finally:
        working.finish()
        ended = [sender.ended() for sender in senders]
    assert [done.text for done in ended] == [f"to {name}" for name in names]
    assert order == names
    assert [text for role, text in spoken(hf) if role == "user"] == ["first", *names]
    never_together(hf)


def test_those_who_queue_go_on_in_the_order_in_which_they_came(hf: Holdfast) -> None:
    in_order(hf, volume(6, 40))


def test_who_would_not_wait_is_rejected_and_nothing_is_written(hf: Holdfast) -> None:
    working = Working(hf)
    before = hf.journal.position()
    with pytest.raises(ActorBusy, match="Nothing was written"):
        take(hf, "second", replies(), if_busy="reject", key="k")
    assert hf.journal.position() == before
    working.finish()
    assert take(hf, "second", replies("Yes."), if_busy="reject", key="k").text == "Yes."


def test_who_is_joined_is_answered_by_the_turn_that_is_under_way(hf: Holdfast) -> None:
    working = Working(hf)
    sender = Sender(hf, "second", if_busy="join", key="k")
    until = time.monotonic() + PATIENCE
    while ("user", "second") not in spoken(hf):
        assert time.monotonic() < until
        time.sleep(0.001)
    done = working.finish()
    assert done.text == "heard first second"
    assert (sender.ended().status, sender.ended().text) == ("done", "heard first second")
    assert take(hf, "second", replies(), key="k").text == "heard first second"
    assert [text for role, text in spoken(hf) if role == "assistant"] == ["heard first", "heard first second"]


def test_who_interrupts_has_it_stopped_and_gets_a_turn_of_their_own(hf: Holdfast) -> None:
    working = Working(hf)
    sender = Sender(hf, "second", if_busy="interrupt")
    lined_up(hf, 1)
    done = working.finish()
    assert sender.ended().text == "to second"
    assert [text for _, text in spoken(hf)][:1] == ["first"]
    assert done.status in ("done", "stopped"), "a reply that was there when the stop was seen is its reply"


def test_an_interrupted_tool_is_not_gone_on_with(hf: Holdfast) -> None:
    sender: list[Sender] = []

    def tool(step: Any) -> None:
        sender.append(Sender(hf, "second", if_busy="interrupt"))
        lined_up(hf, 1)
        step.done("ok")

    done = take(hf, "first", replies(asks(("a", {}), ("b", {}))), tool)
    assert (done.status, done.reason) == ("stopped", "Interrupted by a new message.")
    assert sender[0].ended().text == "to second"
    assert [role for role, _ in spoken(hf)] == ["user", "assistant", "tool", "tool", "user", "assistant"]


@pytest.mark.parametrize("if_busy", ["queue", "join", "interrupt"])
def test_patience_ends_and_says_what_was_written(hf: Holdfast, if_busy: str) -> None:
    working = Working(hf)
    sender = Sender(hf, "second", if_busy=if_busy, wait=0.05, key="k")
    told = {"join": "was said", "interrupt": "was not appended, but the other worker was asked to stop"}
    assert told.get(if_busy, "Nothing was written") in str(sender.ended())
    assert (("user", "second") in spoken(hf)) == (if_busy == "join")
    working.finish()
    assert take(hf, "second", lambda step: step.done("Yes."), key="k").status == "done"


def test_one_who_waits_and_gives_up_does_not_keep_the_others_waiting(hf: Holdfast) -> None:
    working = Working(hf)
    leaves = Sender(hf, "leaves", wait=0.05)
    lined_up(hf, 1)
    stays = Sender(hf, "stays")
    assert isinstance(leaves.ended(), ActorBusy)
    working.finish()
    assert stays.ended().text == "to stays"
    assert not hf.env.queues._waiting, "nobody is forgotten in the line"


def test_the_same_key_at_the_same_time_is_one_turn(hf: Holdfast) -> None:
    working = Working(hf, "same")
    senders = [Sender(hf, "same", key="same") for _ in range(3)]
    done = working.finish()
    assert {sender.ended().text for sender in senders} == {done.text}
    assert [role for role, _ in spoken(hf)] == ["user", "assistant"]


def test_whoever_goes_on_without_a_message_waits_or_is_rejected(hf: Holdfast) -> None:
    working = Working(hf)
    with pytest.raises(ActorBusy):
        take(hf, None, replies(), if_busy="join")
    working.finish()
    with pytest.raises(holdfast.Refused):
        take(hf, None, replies())


def test_a_turn_that_waits_for_a_person_is_nobodys_work(hf: Holdfast) -> None:
    for if_busy in ("queue", "reject", "interrupt", "join"):
        ask = take(hf, f"{if_busy} 1", replies(asks(("pay", {}))), needs_approval=["pay"])
        with hf.session(SESSION).turn(f"{if_busy} 2", if_busy=if_busy, needs_approval=["pay"]) as turn:
            assert kinds(loop(turn, replies())) == ["Ask"], "it is joined, and its question comes first"
        hf.answer(ask.id, approve=False)
        assert take(hf, None, replies("No.")).text == "No."


def test_a_turn_left_behind_is_joined_by_whoever_comes(hf: Holdfast) -> None:
    leave_at(hf, "first", CallModel, replies(), key="first")
    for if_busy in ("queue", "reject", "interrupt", "join"):
        with hf.session(SESSION).turn(f"{if_busy}", if_busy=if_busy) as turn:
            assert isinstance(turn.steps()[0], CallModel)
    assert take(hf, None, lambda step: step.done("Yes.")).text == "Yes."
    never_together(hf)
    assert len([role for role, _ in spoken(hf) if role == "user"]) == 5


def test_a_queue_serves_and_forgets() -> None:
    queue, called = TurnQueue(), []
    assert queue.enter(("t", "a"))
    assert not queue.enter(("t", "a"))
    assert queue.enter(("t", "b")), "places are apart"
    tickets = [queue.wait(("t", "a")) for _ in range(4)]
    for at, ticket in enumerate(tickets):
        ticket.call_when_ready(lambda at=at: called.append(at))
    queue.give_up(tickets[1])
    queue.leave(("t", "a"))
    assert called == [0]
    queue.give_up(tickets[0])
    assert called == [0, 2], "a place that was given to somebody who left goes to the next"
    queue.leave(("t", "a"))
    queue.leave(("t", "a"))
    assert called == [0, 2, 3]
    assert queue.enter(("t", "a"))


# processes


def never_together(hf: Holdfast, session: str = SESSION) -> None:
    """One turn at a time: the journal says that each ended before the next one began."""
    live: set[str] = set()
    for event in hf.journal.events(place(session)):
        facts: Any = event.facts
        if event.type == "frame.pushed" and facts.parent is None:
            assert not live, f"{facts.frame} began beside {live}"
            live.add(facts.frame)
        elif event.type == "frame.popped":
            live.discard(facts.frame)


class Processes:
    """Processes on one file, told to send at the same time."""

    def __init__(self, path: Path, number: int, messages: int) -> None:
        self.messages = messages
        self._every = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.turns.busy_process", str(path), f"p{at}", str(messages), str(LEASE_MS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for at in range(number)
        ]
        self._patience = threading.Timer(PATIENCE * 4, self._end)
        self._patience.start()

    def __len__(self) -> int:
        return len(self._every)

    def await_ready(self) -> None:
        for process in self._every:
            assert self._read(process) == "ready"

    def send(self, if_busy: str) -> dict[str, str]:
        """Gives what became of each message, as its sender was told."""
        for process in self._every:
            assert process.stdin is not None
            process.stdin.write(f"{if_busy}\n")
            process.stdin.flush()
        found: dict[str, str] = {}
        for process in self._every:
            while (line := self._read(process)) != "end":
                key, _, became = line.partition(" ")
                found[key] = became
        return found

    def _read(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "a process says nothing more"
        return line.strip()

    def _end(self) -> None:
        for process in self._every:
            process.kill()

    def kill(self) -> None:
        self._patience.cancel()
        self._end()
        for process in self._every:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def check_outcomes(hf: Holdfast, session: str, results: dict[str, str]) -> None:
    """As documented: every message that was taken is there once, and its sender has the answer that it got."""
    said = [text for role, text in spoken(hf, session) if role == "user"]
    rejected = {key for key, result in results.items() if result == "rejected"}
    assert len(said) == len(set(said)), "nothing is said twice"
    assert set(said) == set(results) - rejected, "nothing that was taken is lost, nothing that was refused is there"
    assert not rejected or session == "reject"
    for key in said:
        status, _, text = results[key].partition(" ")
        assert status == "done" or (session == "interrupt" and status == "stopped"), (key, results[key])
        if status == "done":
            assert key in text.split(), (key, "the model has not heard it", text)
    never_together(hf, session)
    assert hf.index.resume_actor(place(session)).frames == ()


def test_processes_that_send_to_one_session(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "p.db", durability="fast") as hf:
        every = Processes(tmp_path / "p.db", volume(4, 16), volume(3, 20))
        try:
            every.await_ready()
            for if_busy in ("queue", "reject", "interrupt", "join"):
                hf.session(if_busy)
                results = every.send(if_busy)
                assert len(results) == len(every) * every.messages
                assert "never" not in results.values()
                check_outcomes(hf, if_busy, results)
        finally:
            every.kill()
        begun = list(hf.journal.events(place("queue"), types=["frame.pushed", "turn.joined"]))
        assert len(begun) == len(every) * every.messages, "a turn of their own, or one that was left behind"
        check_whole(hf)


def dies_at_work(path: Path) -> int:
    """A process that works on a turn and never ends it; gives its id."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        with holdfast.open(path, settings=holdfast.Settings(lease_ms=LEASE_MS), durability="fast") as hf:
            turn = hf.session(SESSION).turn("dies", key="dies")
            turn.engine.open()
            turn.steps()
            os.write(writing, b"x")
            time.sleep(PATIENCE)
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    return child


def test_an_owner_that_is_killed_is_followed_by_the_others(tmp_path: Path) -> None:
    owner = dies_at_work(tmp_path / "p.db")
    settings = holdfast.Settings(lease_ms=LEASE_MS)
    with (
        holdfast.open(tmp_path / "p.db", settings=settings, durability="fast") as one,
        holdfast.open(tmp_path / "p.db", settings=settings, durability="fast") as two,
    ):
        senders = [Sender(one, "queues", key="queues"), Sender(two, "joins", key="joins", if_busy="join")]
        until = time.monotonic() + PATIENCE
        while ("user", "joins") not in spoken(one):
            assert time.monotonic() < until
            time.sleep(0.005)
        assert all(sender.is_alive() for sender in senders), "it is at work"
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        assert [sender.ended().status for sender in senders] == ["done", "done"]
        assert sorted(text for role, text in spoken(one) if role == "user") == ["dies", "joins", "queues"]
        assert take(one, "dies", replies(), key="dies").status == "done", "what it began was gone on with"
        never_together(one)
        check_whole(one)


# tests that can fail


def queue_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnQueue, "enter", lambda self, place: True)


def last_come_first_served(patch: pytest.MonkeyPatch) -> None:
    original = TurnQueue.wait

    def wait(self: Any, place: Any, **how: Any) -> Any:
        ticket = original(self, place, **how)
        line = self._waiting[place]
        if ticket in line:
            line.remove(ticket)
            line.appendleft(ticket)
        return ticket

    patch.setattr(TurnQueue, "wait", wait)


@pytest.mark.parametrize("plant", [queue_ignored, last_come_first_served])
def test_a_planted_bug_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, holdfast.open("memory:") as hf:
        plant(patch)
        patch.setattr(sys.modules[__name__], "PATIENCE", 0.5)
        with pytest.raises(AssertionError):
            in_order(hf, 3)
