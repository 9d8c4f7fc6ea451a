"""Random lives of conversations, and two ways of looking at them: one remembers, one looks anew each time.

Turns are begun, asked in, answered, joined, stopped, rewound and taken over by two clients of one file; timers ring,
deadlines pass, clocks are set back. After each event both ways are compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import holdfast
from holdfast import CallModel, CallTool, Holdfast, Limits
from holdfast.core.frames.questions import is_resumable
from holdfast.core.frames.stack import walk_root_first
from holdfast.errors import HoldfastError
from holdfast.flow.frames.read import list_streams_with_work, load_current_state
from holdfast.flow.turns import sweep as frame_sweep
from holdfast.flow.turns import turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.runnable import RunnableTurn, RunnableTurnWatch
from holdfast.ports import Env
from holdfast.records.scope import parse_scope
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from tests.turns.loops import asks, place

SECOND = 1_000
LEASE = 60 * SECOND
"""So long that no thread gives a sign of life by itself: the test says when one is given."""
SESSIONS = ("s", "t", "u")
TENANTS = ("default", "acme")
MOVES = 30


# the same, remembering nothing, and as simply as it can be said


def looking_anew(env: Env, tenants: list[str]) -> list[RunnableTurn]:
    """Sweep everything, then look at every stream that has live frames."""
    found = []
    for env in [replace(env, tenant=name) for name in tenants]:
        frame_sweep.sweep(env, patient=False)
        for stream in list_streams_with_work(env):
            found += _turns_of(env, stream)
    return found


def _turns_of(env: Env, stream: str) -> list[RunnableTurn]:
    scope = parse_scope(stream)
    session, thread = scope.get("session"), scope.get("thread")
    if session is None or thread is None or env.leases.holds(env.tenant, stream):
        return []
    for frame in walk_root_first(load_current_state(env, stream).frames):
        at = TurnPlace(actor=stream, thread="")
        turn = turns.find_frame_turn(env, at, frame) if frame.parent is None else None
        view = None if turn is None else turns.read_turn(env, turn)
        if view is None:
            continue
        question = view.frame.question
        if view.step.next != "wait" or (question is not None and is_resumable(question, env.clock.now_ms())):
            free = env.leases.seems_free(env.tenant, stream)
            return [RunnableTurn(tenant=env.tenant, frame=frame.id, session=session, thread=thread)] if free else []
    return []


# lives


class Life:
    """Two clients of one file, which are two processes to each other, on a clock that is moved by hand."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.chance, self.clock, self.stack = chance, FrozenClock(), ExitStack()
        how: dict[str, Any] = {"clock": self.clock, "settings": Settings(lease_ms=LEASE), "durability": "fast"}
        self.clients = [self.stack.enter_context(holdfast.open(path, **how)) for _ in range(2)]
        env = self.clients[1].env
        self.env, self.watching = env, RunnableTurnWatch(replace(env, tenant="default"), None, None)
        self.working: list[ExitStack] = []
        self.found = 0

    def move(self) -> None:
        """Something happens, or is refused."""
        kind = self.chance.choice(KINDS)
        hf = self.chance.choice(self.clients).tenant(self.chance.choice(TENANTS))
        try:
            kind(self, hf)
        except HoldfastError:
            pass

    def compare(self) -> None:
        """Both ways of looking find the same, and the one that remembers left nothing for the other one to do."""
        found = self._settled()
        position = self.env.journal.position()
        tenants = self.env.journal.tenants(live=True)
        assert found == looking_anew(self.env, tenants), "looking again from the beginning finds something else"
        assert self.env.journal.position() == position, "something was due and was not done"
        self.found += len(found)

    def _settled(self) -> list[RunnableTurn]:
        """What the last of some looks finds: one thing that is settled can be what makes another one due."""
        for _ in range(10):
            position = self.env.journal.position()
            found = self.watching.find_runnable_turns()
            if self.env.journal.position() == position:
                return found
        raise AssertionError("every look finds something to do")

    def end(self) -> None:
        for work in self.working:
            self._left(work)
        self.stack.close()

    # what happens

    def begin(self, hf: Holdfast) -> None:
        """A turn that comes so far as to call a tool, or is left before; its owner may stay at work."""
        work = ExitStack()
        session = hf.session(self.chance.choice(SESSIONS))
        limits = Limits(timeout_ms=self.chance.choice([None, 20 * SECOND, 60 * SECOND]))
        policy = self.chance.choice(["ask", "retry", "fail"])
        try:
            turn = work.enter_context(session.turn("Hello", if_busy="reject", limits=limits, if_interrupted=policy))
            for step in turn:
                if isinstance(step, CallModel) and self.chance.random() < 0.9:
                    step.done(asks(("look", {}), ("look", {})) if self.chance.random() < 0.8 else "Done.")
                elif isinstance(step, CallTool) and self.chance.random() < 0.8:
                    hf.index.suspend_frame(step.key, "Sure?", **self._terms())
                else:
                    break
        finally:
            self.working.append(work)
            if self.chance.random() < 0.8:
                self.leave(hf)

    def leave(self, hf: Holdfast) -> None:
        if self.working:
            self._left(self.working.pop())

    def _left(self, work: ExitStack) -> None:
        try:
            work.close()
        except HoldfastError:
            pass  # Somebody took it over.

    def go_on(self, hf: Holdfast) -> None:
        with hf.session(self.chance.choice(SESSIONS)).turn(if_busy="reject") as turn:
            for step in turn:
                if isinstance(step, CallModel | CallTool):
                    step.done("Done.")
                else:
                    break

    def join(self, hf: Holdfast) -> None:
        with hf.session(self.chance.choice(SESSIONS)).turn("And this", if_busy="join") as turn:
            turn.steps()

    def stop(self, hf: Holdfast) -> None:
        hf.session(self.chance.choice(SESSIONS)).stop()

    def say(self, hf: Holdfast) -> None:
        session = hf.session(self.chance.choice(SESSIONS))
        calls = session.details.open_calls()
        if calls and self.chance.random() < 0.7:
            session.append_result(calls[0].id, "found by hand")
        else:
            session.append("By the way")

    def rewind(self, hf: Holdfast) -> None:
        session = hf.session(self.chance.choice(SESSIONS))
        said = session.messages()
        if self.chance.random() < 0.5 and said:
            session.rewind(to=self.chance.choice(said))
        else:
            session.reset()

    def answer(self, hf: Holdfast) -> None:
        questions = [one for one in hf.questions() if not one.answered]
        if questions:
            hf.answer(self.chance.choice(questions).id, approve=self.chance.random() < 0.7)

    def suspend(self, hf: Holdfast) -> None:
        frame = self._frame(hf)
        if frame is not None:
            hf.index.suspend_frame(frame.id, "Now?", subtree=self.chance.random() < 0.7, **self._terms())

    def resume(self, hf: Holdfast) -> None:
        frame = self._frame(hf)
        if frame is not None:
            hf.index.resume_frame(frame.id)

    def push(self, hf: Holdfast) -> None:
        """Work below something, here or in another stream, or work of its own."""
        frame = self._frame(hf)
        scope = self.chance.choice([None, "actor/helper"])
        parent = None if frame is None or self.chance.random() < 0.2 else frame.id
        limits = Limits(depth=8, timeout_ms=self.chance.choice([None, 8 * SECOND, 30 * SECOND]))
        hf.index.push_frame("more", parent=parent, scope=scope if parent else scope or "actor/own", limits=limits)

    def pop(self, hf: Holdfast) -> None:
        frame = self._frame(hf)
        if frame is not None:
            hf.index.pop_frame(frame.id, self.chance.choice(["failed", "cancelled"]), error="no")

    def take(self, hf: Holdfast) -> None:
        hf.index.resume_actor(place(self.chance.choice(SESSIONS)), incarnation=f"i{self.chance.random()}")

    def give_back(self, hf: Holdfast) -> None:
        hf.index.release_actor(place(self.chance.choice(SESSIONS)))

    def sign(self, hf: Holdfast) -> None:
        stream = place(self.chance.choice(SESSIONS))
        head = hf.env.journal.head(hf.env.tenant, stream)
        if head is not None:
            hf.env.journal.renew_lease(hf.env.tenant, stream, head.epoch)

    def sweep(self, hf: Holdfast) -> None:
        frame_sweep.sweep(hf.env, patient=False)

    def time(self, hf: Holdfast) -> None:
        self.clock.advance(self.chance.choice([1, SECOND, 4 * SECOND, 11 * SECOND, LEASE // 2, LEASE + 1]))

    def set_back(self, hf: Holdfast) -> None:
        self.clock.jump(-self.chance.choice([SECOND, 10 * SECOND, LEASE]))

    def _terms(self) -> dict[str, Any]:
        now = self.clock.now_ms()
        return self.chance.choice(
            [
                {},
                {"kind": "timer", "until": now + 5 * SECOND},
                {"kind": "timer", "until": now + 12 * SECOND},
                {"expires_ms": 5 * SECOND, "on_expiry": "fail"},
                {"expires_ms": 9 * SECOND, "on_expiry": "cancel"},
                {"expires_ms": 5 * SECOND, "on_expiry": "keep"},
            ]
        )

    def _frame(self, hf: Holdfast) -> Any:
        live = [frame for _, frames in hf.index.stacks() for frame in frames]
        return self.chance.choice(live) if live else None


KINDS: list[Callable[[Life, Holdfast], None]] = [
    *(Life.begin, Life.begin, Life.begin, Life.leave, Life.go_on, Life.join, Life.stop, Life.say, Life.rewind),
    *(Life.answer, Life.answer, Life.answer, Life.suspend, Life.suspend, Life.resume, Life.push, Life.pop),
    *(Life.take, Life.give_back, Life.sign, Life.sweep, Life.time, Life.time, Life.time, Life.set_back),
]


@contextmanager
def lived(path: Path, chance: random.Random) -> Iterator[Life]:
    life = Life(path, chance)
    try:
        yield life
    finally:
        life.end()


def live(folder: Path, chance: random.Random, lives: int) -> int:
    """Many lives, compared all the time; gives how often a turn could go on."""
    found = 0
    for number in range(lives):
        with lived(folder / f"{number}.db", chance) as life:
            for _ in range(MOVES):
                life.move()
                if chance.random() < 0.8:
                    life.compare()
            life.compare()
            found += life.found
    return found
