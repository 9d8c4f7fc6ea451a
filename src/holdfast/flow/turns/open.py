"""Open a turn: begin, join or resume it, and decide what happens to a message while the conversation is busy.

| the conversation's turn | a new message |
|---|---|
| there is none | begins one |
| is live without a worker: its process died, or it waits for a person | joins it, and is answered with it |
| … and it can only stop: a stop was requested, a limit is reached | has it stopped, then begins its own |
| … and it is another agent's, whose tools this one lacks | is refused with `ActorBusy`, unless it interrupts |
| is being worked on, `if_busy="queue"` | waits, then begins its own |
| … `"reject"` | is refused with `ActorBusy`; nothing is written |
| … `"interrupt"` | has it stopped, then begins its own |
| … `"join"` | is appended to it, and waits for its reply |

Within a process, waiters go on in order of arrival, interrupting ones before queued ones; between processes, the
first to see it free. Of several interrupting messages the last one stays.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice

import msgspec

from holdfast.core.frames.budgets import check_limits
from holdfast.core.numbers import is_number
from holdfast.errors import ActorBusy, Conflict, Draining, FrameEnded, InvalidValue, Refused
from holdfast.flow.compaction import rules
from holdfast.flow.frames import takeover
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.sessions import sessions
from holdfast.flow.turns import limits, stop, turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.deadlock import (
    Caller,
    ConversationNode,
    TurnWait,
    TurnWork,
    current_caller,
    enter_work,
    wait_graph,
)
from holdfast.flow.turns.turns import TurnTerms
from holdfast.ports import Env
from holdfast.records.messages import Message
from holdfast.records.recovery import StopCode
from holdfast.records.scope import Scope
from holdfast.system import renew_in_child

OPEN_POLL_SECONDS = 0.02
INTERRUPT_REASON = "Interrupted by a new message."


class TurnOpener:
    """The opener of one turn. `wait_steps` yields waits, which threads and tasks perform in their own ways."""

    def __init__(self, env: Env, thread: str, terms: TurnTerms) -> None:
        if terms.if_busy not in IF_BUSY:
            raise InvalidValue(f"if_busy must be one of {', '.join(IF_BUSY)}, not {terms.if_busy!r}.")
        if terms.wait is not None and not is_number(terms.wait, least=0, most=threading.TIMEOUT_MAX, whole=False):
            raise InvalidValue(
                f"wait must be seconds, 0 or more, or None for as long as it takes, not {terms.wait!r:.40}."
            )
        self._env, self._terms = env, terms
        self.env = env
        """The environment of the turn, once there is one: it acts for the user who began it."""
        self.place = turns.turns_place(thread)
        self._here = (env.tenant, self.place.actor)
        self.found: TurnPlace | None = None
        """The turn, once there is one: begun, joined, or known by its key."""
        self.said: tuple[Message, ...] = ()
        self.new = False
        """True if the turn was begun just now."""
        self._inside = False
        self._until: float | None = None
        self._ticket: Ticket | None = None
        self.caller: Caller | None = None
        """The code that wants the turn, if it is not the code that takes the first step."""
        self._waiting: TurnWait | None = None
        self.work: tuple[TurnWork, ...] = ()
        """The turn as work that others may wait for, while it is worked on here."""
        self._interrupted: set[str] = set()
        """Turns that were asked to stop."""
        self.epoch: int | None = None
        self.ended = False

    @property
    def turn_place(self) -> TurnPlace:
        """The turn's place; refused before the block is entered."""
        if self.found is None:
            raise Refused("The turn exists once its block is entered: with session.turn(…) as turn.")
        return self.found

    def wait_steps(self) -> Generator[OpeningWait, None, None]:
        """Yield waits until the turn is ours or has ended. If abandoned, nothing is left behind."""
        if self._terms.limits is not None:
            check_limits(self._terms.limits)
        if self._terms.wait is not None:
            self._until = self._env.clock.monotonic() + self._terms.wait
        self.caller = self.caller or current_caller(self._env)
        try:
            while not (yield from self._try_once()):
                pass
            if self._waiting is not None:
                wait_graph.end_wait(self._waiting)
            self._waiting = None
            if self.said:
                with enter_work(*self.work):
                    rules.fire_rules(self.env, self.place.thread, self.said)
        except BaseException:
            self.leave()
            raise

    def _try_once(self) -> Generator[OpeningWait, None, bool]:
        """Try once; return True if the turn is ours or has ended."""
        if self._is_over():
            return True
        self._check_not_draining()
        if not self._inside:
            yield from self._line_up()
            if self._is_over():
                self.leave()
                return True
        for seconds in self._env.leases.watch(*self._here):
            if self._is_over():
                self.leave()
                return True
            self._check_not_draining()
            self._register_wait()
            self._handle_busy()
            self._check_timeout()
            yield seconds
        self._check_not_draining()
        return self._take()

    def _check_not_draining(self) -> None:
        """Refuse waiters once the client is shutting down."""
        if self._env.leases.draining:
            raise Draining

    def _is_over(self) -> bool:
        """Return True if the turn of the key, or the joined one, has ended."""
        if self.found is None and self._terms.key is not None:
            self.found = turns.find_turn_by_key(self._env, self.place, self._terms)
        found = self.found
        self.ended = found is not None and found.frame not in load_current_state(self._env, found.actor).frames
        return self.ended

    # Waiting

    def _line_up(self) -> Iterator[OpeningWait]:
        queues = self._env.queues
        if queues.enter(self._here):
            self._inside = True
            return
        self._register_wait()
        self._handle_busy()
        if self.found is not None:  # The worker is on the turn that we joined: wait for its end.
            while not queues.enter(self._here):
                if self._is_over():
                    return
                self._check_timeout()
                yield OPEN_POLL_SECONDS
            self._inside = True
            return
        interrupts = self._terms.if_busy == "interrupt"
        lined = self._ticket = queues.wait(self._here, ahead=interrupts)
        self._check_not_draining()  # A ticket taken while waiters are dismissed would never be called.
        yield from self._interrupt_until_called(lined) if interrupts else (lined,)
        self._check_not_draining()
        if not lined.event.is_set():
            raise self._timeout_error()
        self._ticket, self._inside = None, True

    def _interrupt_until_called(self, lined: Ticket) -> Iterator[OpeningWait]:
        """Wait, and stop the turns of waiters that come before us as well."""
        while not lined.event.is_set() and self.remaining_wait() != 0:
            self._check_not_draining()
            self._handle_busy()
            yield OPEN_POLL_SECONDS

    def _register_wait(self) -> None:
        """Register the wait. Refused if that conversation waits for the caller's own work: a deadlock."""
        assert self.caller is not None
        waits_at_all = self._terms.if_busy != "reject" and self._terms.wait != 0
        if self._waiting is None and waits_at_all:
            node = ConversationNode(self._env.journal.secret, self._env.tenant, self.place.thread)
            self._waiting = wait_graph.begin_wait(self.caller, node, self._terms.if_busy)

    def _handle_busy(self) -> None:
        """Act on `if_busy` while the conversation is being worked on."""
        if self._terms.if_busy != "reject" and (self.found is not None or self._terms.if_busy == "queue"):
            return
        if self._terms.if_busy == "reject" or not self._terms.messages:
            raise ActorBusy(
                f"Another worker holds {self.place.thread} now. Nothing was written: send it again later, or with "
                "if_busy='queue'."
            )
        live = turns.find_live_turn(self._env, self.place)
        if live is None:
            return
        if self._terms.if_busy == "interrupt":
            if live.frame not in self._interrupted:
                turns.request_stop(self._env, live, INTERRUPT_REASON)
                self._interrupted.add(live.frame)
            return
        joined = turns.join_turn(turns.act_for_session(self._env, live.thread), live, self._terms)
        if joined is not None:
            self.found, self.said = joined

    def _check_timeout(self) -> None:
        if self._until is not None and self._env.clock.monotonic() > self._until:
            raise self._timeout_error()

    def _timeout_error(self) -> ActorBusy:
        said = "Nothing was written."
        if self.found is not None:
            said = "The message was said and is answered with that turn."
        elif self._interrupted:
            said = "The message was not appended, but the other worker was asked to stop."
        return ActorBusy(f"Other workers held {self.place.thread} until the wait timed out. {said}")

    def remaining_wait(self) -> float | None:
        """Return the seconds left to wait; None for no limit."""
        return None if self._until is None else max(0.0, self._until - self._env.clock.monotonic())

    # Taking

    def _take(self) -> bool:
        """Begin, join or resume the turn, which seems free. Return False if another process was faster."""
        env = self._env
        with ExitStack() as told, env.observers.defer(), env.leases.lock(*self._here):
            try:
                live, taken = turns.find_live_turn(env, self.place), True
                other = self._find_other_agent(self.found or live)
                if self.found is not None and other is None:
                    self.epoch = takeover.take_free_stream(env, self.found.actor)
                elif live is None:
                    self._begin()
                elif self.found is None and self._terms.messages and (ends := self._find_forced_end(live, other)):
                    self._replace_turn(live, *ends)  # A message that joined it would never be answered.
                else:
                    taken = other is None and self._join(live)
            except (ActorBusy, Conflict):
                return False
            if taken and not self.ended:
                if not self.new and self.found is not None:
                    self.env = turns.act_for_turn(env, self.found)
                assert self.caller is not None
                node = ConversationNode(env.journal.secret, env.tenant, self.place.thread)
                self.work = (wait_graph.begin_work(self.caller, node),)
                # Callbacks for these events work for this turn: a message that they send would wait for it.
                told.enter_context(enter_work(*self.work))
        if other is not None and not taken:
            said = "The message was said and is answered with it" if self.found is not None else "Nothing was written"
            raise ActorBusy(
                f"Agent {other!r} has a turn of {self.place.thread} that has not ended, and {self._terms.agent!r} "
                f"cannot go on with it. {said}: answer its question, or let {other!r} go on with it, then send this "
                "again; or send with if_busy='interrupt', which stops it and begins another."
            )
        return taken

    def _find_other_agent(self, turn: TurnPlace | None) -> str | None:
        """Return the turn's agent if it is another one: its tools and instructions are not ours.

        A caller's own loop is no agent; it decides itself what to resume.
        """
        if turn is None or self._terms.agent is None:
            return None
        frame = load_current_state(self._env, turn.actor).frames.get(turn.frame)
        agent = None if frame is None else turns.find_turn_agent(self._env, turn.actor, frame)
        return None if agent == self._terms.agent else agent

    def _begin(self) -> None:
        if not self._terms.messages:
            raise Refused(f"No turn of {self.place.thread} is live, so there is nothing to continue. Send a message.")
        self.env = turns.act_for_session(self._env, self.place.thread)
        self.found, self.said = turns.begin_turn(self.env, self.place, self._terms)
        self.new = bool(self.said)
        if self.new:
            self.epoch = takeover.join_lease(self._env, self.place.actor)
        elif not self._is_over():
            self.epoch = takeover.take_free_stream(self._env, self.found.actor)

    def _find_forced_end(self, live: TurnPlace, other: str | None) -> limits.ForcedEnd | None:
        """Return the end of a turn without a worker that can only be stopped; None if it can go on."""
        asked = turns.find_stop_reason(self._env, live)
        if asked is not None:
            return asked, "cancelled", None
        if other is not None and self._terms.if_busy == "interrupt":
            return INTERRUPT_REASON, "cancelled", None
        # This agent's limits do not apply to another agent's turn.
        loops, cost = (self._terms.loops, self._terms.cost) if other is None else (None, None)
        return limits.find_exhausted_limit(self._env, live, loops, cost)

    def _replace_turn(self, live: TurnPlace, why: str, status: str, code: StopCode | None) -> None:
        """End a turn without a worker that can only be stopped, then begin another."""
        epoch = takeover.take_free_stream(self._env, live.actor)
        try:
            stop.stop_turn(self._env, live, reason=why, status=status, code=code)
            self._begin()
        finally:
            takeover.release_stream(self._env, live.actor, epoch)

    def _join(self, live: TurnPlace) -> bool:
        joined: turns.Admission | None = (live, ())
        if self._terms.messages:
            joined = turns.join_turn(turns.act_for_session(self._env, live.thread), live, self._terms)
        if joined is None:
            return False
        self.found, self.said = joined
        if not self._is_over():
            self.epoch = takeover.take_free_stream(self._env, self.found.actor)
        return True

    def leave(self) -> None:
        """Let the next waiter of this process go on."""
        queues = self._env.queues
        if self._waiting is not None:
            wait_graph.end_wait(self._waiting)
        self._waiting = None
        work, self.work = self.work, ()
        if work and self.caller is not None:
            wait_graph.end_work(self.caller, work[0])
        self.caller = None  # The caller may be a task that holds the turn's result: drop it, or neither is ever freed.
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            queues.give_up(ticket)
        if self._inside:
            self._inside = False
            queues.leave(self._here)


def end_conversation(env: Env, id: str, *, cause: str, reset: bool, quiet_at: int | None = None) -> bool:
    """End a session, and its turns with their questions; return False if there was nothing to end.

    With `quiet_at`, end it only if it has been idle for its timeout at that time. A turn at work is not idle.
    """
    threads = [Scope.thread(id, thread).text for thread in sessions.session_state(env, id).threads]
    at_work = partial(turns.is_at_work, env)
    ended = sessions.end_session(env, id, cause=cause, reset=reset, quiet_at=quiet_at, is_at_work=at_work)
    for thread in threads if ended or quiet_at is None else ():
        end_if_over(env, thread)
    return ended


def end_if_over(env: Env, thread: str) -> None:
    """End a turn with nothing left to answer, if it has no worker: its questions are obsolete."""
    live = turns.find_live_turn(env, turns.turns_place(thread))
    why = None if live is None else turns.find_stop_reason(env, live)
    if live is not None and why is not None:
        end_if_free(env, live, why)


def end_if_free(env: Env, turn: TurnPlace, reason: str) -> None:
    """End a turn that is to be stopped, if it has no worker. Otherwise its worker stops it."""
    here, queues = (env.tenant, turn.actor), env.queues
    if not queues.enter(here):
        return
    try:
        if any(True for _ in islice(env.leases.watch(*here), 1)):
            return  # Another process may be at work: it sees the request itself.
        stop.stop_turn(env, turn, reason=reason, unowned=True)
    except (Conflict, FrameEnded, ActorBusy):
        pass  # Another worker was faster.
    finally:
        queues.leave(here)


IF_BUSY = ("queue", "reject", "interrupt", "join")


class Ticket(msgspec.Struct, eq=False):
    """A position in the queue of this process. It is woken once, by whichever thread lets the waiter go on."""

    place: tuple[str, str]
    ahead: bool = False
    called: bool = False
    """True once the place is the waiter's."""
    event: threading.Event = msgspec.field(default_factory=threading.Event)
    then: Callable[[], object] | None = None
    mutex: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def wake(self) -> None:
        """Signal that it is our turn."""
        with self.mutex:
            self.event.set()
            then = self.then
        if then is not None:
            then()

    def call_when_ready(self, then: Callable[[], object]) -> None:
        """Call `then` when it is our turn, at once if it already is."""
        with self.mutex:
            self.then = then
            ready = self.event.is_set()
        if ready:
            then()


OpeningWait = Ticket | float
"""The thing that an opening waits for: its place in the queue, or some seconds."""


class TurnQueue:
    """The conversations that are worked on in this process, and their waiters: first come, first served.

    Between processes leases decide; within one, threads and tasks share a lease, so they queue here before it.
    """

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Reset: nothing runs in a child yet."""
        self._waiting: dict[tuple[str, str], deque[Ticket]] = {}
        self._mutex = threading.Lock()

    def enter(self, place: tuple[str, str]) -> bool:
        """Return True if the place was free; then it is the caller's until `leave`."""
        with self._mutex:
            if place in self._waiting:
                return False
            self._waiting[place] = deque()
            return True

    def wait(self, place: tuple[str, str], *, ahead: bool = False) -> Ticket:
        """Queue, with `ahead` before all others without it. When the ticket wakes, the place is the caller's."""
        ticket = Ticket(place, ahead)
        with self._mutex:
            thread = self._waiting.get(place)
            if thread is not None:
                thread.insert(sum(one.ahead for one in thread) if ahead else len(thread), ticket)
                return ticket
            self._waiting[place] = deque()
            ticket.called = True
        ticket.wake()
        return ticket

    def give_up(self, ticket: Ticket) -> None:
        """Withdraw a ticket; a place that was already the caller's goes to the next waiter."""
        with self._mutex:
            if not ticket.called:
                thread = self._waiting.get(ticket.place)
                if thread is not None and ticket in thread:
                    thread.remove(ticket)
                return
        self.leave(ticket.place)

    def dismiss(self) -> None:
        """Wake every waiter without giving it the place: the client is shutting down."""
        with self._mutex:
            waiting = [ticket for thread in self._waiting.values() for ticket in thread]
            for thread in self._waiting.values():
                thread.clear()
        for ticket in waiting:
            ticket.wake()

    def leave(self, place: tuple[str, str]) -> None:
        """Give the place to the next waiter."""
        with self._mutex:
            thread = self._waiting.get(place)
            if thread is None:
                return
            if not thread:
                del self._waiting[place]
                return
            following = thread.popleft()
            following.called = True
        following.wake()
