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
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from itertools import islice

import msgspec

from holdfast.errors import ActorBusy, Conflict, Draining, FrameEnded, InvalidValue, Refused
from holdfast.flow.compaction import rules
from holdfast.flow.frames import takeover
from holdfast.flow.frames.read import current
from holdfast.flow.turns import outcome, stop, turns
from holdfast.flow.turns.append import Place
from holdfast.flow.turns.deadlock import Caller, Node, Waiting, Work, caller, waits, working_within
from holdfast.flow.turns.turns import Taken, Wanted
from holdfast.ports import Acting, Ports
from holdfast.records.frames import FrameLimits, Limits
from holdfast.records.messages import Message

LOOK = 0.02
INTERRUPTED = "Interrupted by a new message."


class Opening:
    """The opener of one turn. `wait_steps` yields waits, which threads and tasks perform in their own ways."""

    def __init__(
        self, ports: Ports, acting: Acting, line: str, terms: Terms, limits: Callable[[], FrameLimits]
    ) -> None:
        check_terms(terms)
        self._ports, self._acting, self._terms, self._limits = ports, acting, terms, limits
        self.place = turns.place_of_turns(line)
        self._here = (acting.tenant, self.place.actor)
        self._found: Place | None = None
        self.said: tuple[Message, ...] = ()
        self.new = False
        """True if the turn was begun just now."""
        self._inside = False
        self._until: float | None = None
        self._ticket: object = None
        self.caller: Caller | None = None
        """The code that wants the turn, if it is not the code that takes the first step."""
        self._waiting: Waiting | None = None
        self.work: Work | None = None
        """The turn as work that others may wait for, while it is worked on here."""
        self._interrupted: set[str] = set()
        """Turns that were asked to stop."""
        self.epoch: int | None = None
        self.ended = False

    @property
    def is_found(self) -> bool:
        """True if there is a turn: begun, joined, or known by its key."""
        return self._found is not None

    @property
    def taken(self) -> Place:
        """The turn's place; refused before the block is entered."""
        if self._found is None:
            raise Refused("The turn exists once its block is entered: with session.turn(…) as turn.")
        return self._found

    def steps(self) -> Generator[Wait, None, None]:
        """Yield waits until the turn is ours or has ended. If abandoned, nothing is left behind."""
        if self._terms.wait is not None:
            self._until = self._ports.clock.monotonic() + self._terms.wait
        self.caller = self.caller or caller(self._ports)
        try:
            while not (yield from self._tried()):
                pass
            self._wait_no_more()
            if self.said:
                with working_within(self.work):
                    rules.after_append(self._ports, self._acting, self.place.line, self.said)
        except BaseException:
            self.leave()
            raise

    def _tried(self) -> Generator[Wait, None, bool]:
        """Try once; return True if the turn is ours or has ended."""
        if self._is_over():
            return True
        self._check_open()
        if not self._inside:
            yield from self._line_up()
            if self._is_over():
                self.leave()
                return True
        for seconds in self._ports.leases.watching(*self._here):
            if self._is_over():
                self.leave()
                return True
            self._check_open()
            self._about_to_wait()
            self._busy()
            self._check_patience()
            yield seconds
        self._check_open()
        return self._take()

    def _check_open(self) -> None:
        """Refuse waiters once the client is shutting down."""
        if self._ports.leases.draining:
            raise Draining

    def _is_over(self) -> bool:
        """Return True if the turn of the key, or the joined one, has ended."""
        found = self._found
        if found is None and self._terms.key is not None:
            known = turns.by_key(self._ports, self._acting, self.place, self._wanted())
            found = self._found = None if known is None else known.place
        if found is None:
            return False
        self.ended = found.frame not in current(self._ports, self._acting, found.actor).frames
        return self.ended

    def _wanted(self) -> Wanted:
        terms = self._terms
        return Wanted(
            messages=terms.messages, key=terms.key, tokens=terms.tokens, limits=self._limits(), agent=terms.agent
        )

    # Waiting

    def _line_up(self) -> Iterator[Wait]:
        queues = self._ports.queues
        assert queues is not None, "every client lines its turns up"
        if queues.enter(self._here):
            self._inside = True
            return
        self._about_to_wait()
        self._busy()
        if self._found is not None:  # The worker is on the turn that we joined: wait for its end.
            while not queues.enter(self._here):
                if self._is_over():
                    return
                self._check_patience()
                yield LOOK
            self._inside = True
            return
        lined = Lined()
        interrupts = self._terms.if_busy == "interrupt"
        self._ticket = queues.wait(self._here, lined.wake, ahead=interrupts)
        self._check_open()  # A ticket taken while waiters are dismissed would never be called.
        yield from self._interrupting(lined) if interrupts else (lined,)
        self._check_open()
        if not lined.event.is_set():
            raise self._gave_up()
        self._ticket, self._inside = None, True

    def _interrupting(self, lined: Lined) -> Iterator[Wait]:
        """Wait, and stop the turns of waiters that come before us as well."""
        while not lined.event.is_set() and self.patience() != 0:
            self._check_open()
            self._busy()
            yield LOOK

    def _about_to_wait(self) -> None:
        """Register the wait. Refused if that conversation waits for the caller's own work: a deadlock."""
        assert self.caller is not None
        waits_at_all = self._terms.if_busy != "reject" and self._terms.wait != 0
        if self._waiting is None and waits_at_all:
            self._waiting = waits.begin(self.caller, self._node(), self._terms.if_busy)

    def _wait_no_more(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waits.end(waiting)

    def _node(self) -> Node:
        return waits.node(self._ports, self._acting, self.place.line)

    def _busy(self) -> None:
        """Act on `if_busy` while the conversation is being worked on."""
        if self._terms.if_busy != "reject" and (self._found is not None or self._terms.if_busy == "queue"):
            return
        if self._terms.if_busy == "reject" or not self._terms.messages:
            raise ActorBusy(
                f"Somebody works on {self.place.line} now. Nothing was written: send it again later, or with "
                "if_busy='queue'."
            )
        live = turns.live_turn(self._ports, self._acting, self.place)
        if live is None:
            return
        if self._terms.if_busy == "interrupt":
            if live.frame not in self._interrupted:
                turns.request_stop(self._ports, self._acting, live, INTERRUPTED)
                self._interrupted.add(live.frame)
            return
        joined = turns.join(self._ports, self._acting, live, self._wanted())
        if joined is not None:
            self._found, self.said = joined.place, joined.messages

    def _check_patience(self) -> None:
        if self._until is not None and self._ports.clock.monotonic() > self._until:
            raise self._gave_up()

    def _gave_up(self) -> ActorBusy:
        said = "Nothing was written."
        if self._found is not None:
            said = "The message was said and is answered with that turn."
        elif self._interrupted:
            said = "The message was not said, but whoever worked on it was asked to stop."
        return ActorBusy(f"Others worked on {self.place.line} for as long as this was to wait. {said}")

    def patience(self) -> float | None:
        """Return the seconds left to wait; None for no limit."""
        return None if self._until is None else max(0.0, self._until - self._ports.clock.monotonic())

    def sleep(self, wait: Wait) -> None:
        """Wait in a thread."""
        if isinstance(wait, Lined):
            wait.event.wait(self.patience())
        else:
            self._ports.clock.sleep(wait)

    # Taking

    def _take(self) -> bool:
        """Begin, join or resume the turn, which seems free. Return False if another process was faster."""
        ports, acting = self._ports, self._acting
        with ExitStack() as told, ports.observers.later(), ports.leases.taking(*self._here):
            try:
                live = turns.live_turn(ports, acting, self.place)
                other = self._other_agent(self._found or live)
                taken = self._taken(live, other)
            except (ActorBusy, Conflict):
                return False
            if taken and not self.ended:
                assert self.caller is not None
                self.work = waits.begin_work(self.caller, self._node())
                # Callbacks for these events work for this turn: a message that they send would wait for it.
                told.enter_context(working_within(self.work))
        if other is not None and not taken:
            raise self._not_ours(other)
        return taken

    def _taken(self, live: Place | None, other: str | None) -> bool:
        """Take the turn; return True if it is ours or has ended."""
        if self._found is not None and other is None:
            self.epoch = turns.take(self._ports, self._acting, self._found)
            return True
        if live is None:
            self._begin()
            return True
        if self._found is None and self._terms.messages and (ends := self._ends_anyway(live, other)):
            self._replace(live, *ends)  # A message that joined it would never be answered.
            return True
        return other is None and self._join(live)

    def _other_agent(self, turn: Place | None) -> str | None:
        """Return the turn's agent if it is another one: its tools and instructions are not ours.

        A caller's own loop is no agent; it decides itself what to resume.
        """
        if turn is None or self._terms.agent is None:
            return None
        frame = current(self._ports, self._acting, turn.actor).frames.get(turn.frame)
        agent = None if frame is None else turns.agent_of(self._ports, self._acting, turn.actor, frame)
        return None if agent == self._terms.agent else agent

    def _not_ours(self, other: str) -> ActorBusy:
        said = "The message was said and is answered with it" if self._found is not None else "Nothing was written"
        return ActorBusy(
            f"Agent {other!r} has a turn of {self.place.line} that has not ended, and {self._terms.agent!r} cannot go "
            f"on with it. {said}: answer its question, or let {other!r} go on with it, then send this again; or send "
            "with if_busy='interrupt', which stops it and begins another."
        )

    def _begin(self) -> None:
        if not self._terms.messages:
            raise Refused(
                f"No turn of {self.place.line} is under way, so there is nothing to go on with. Say something."
            )
        self._note(turns.begin(self._ports, self._acting, self.place, self._wanted()))

    def _note(self, taken: Taken) -> None:
        self._found, self.said, self.new = taken.place, taken.messages, taken.new
        if taken.new:
            self.epoch = takeover.note_taken(self._ports, self._acting, self.place.actor)
        elif not self._is_over():
            self.epoch = turns.take(self._ports, self._acting, taken.place)

    def _ends_anyway(self, live: Place, other: str | None) -> tuple[str, str] | None:
        """Return why a turn without a worker can only be stopped, and its final status; None if it can go on."""
        asked = turns.why_stopping(self._ports, self._acting, live)
        if asked is not None:
            return asked, "cancelled"
        if other is not None and self._terms.if_busy == "interrupt":
            return INTERRUPTED, "cancelled"
        # This agent's limits do not apply to another agent's turn.
        loops, cost = (self._terms.loops, self._terms.cost) if other is None else (None, None)
        why = outcome.why_spent(self._ports, self._acting, live, loops, cost)
        return None if why is None else (why, "failed")

    def _replace(self, live: Place, why: str, status: str) -> None:
        """End a turn without a worker that can only be stopped, then begin another."""
        epoch = turns.take(self._ports, self._acting, live)
        try:
            stop.stop(self._ports, self._acting, live, reason=why, status=status)
            self._begin()
        finally:
            takeover.let_go(self._ports, self._acting, live.actor, epoch)

    def _join(self, live: Place) -> bool:
        joined = (
            turns.join(self._ports, self._acting, live, self._wanted()) if self._terms.messages else Taken(place=live)
        )
        if joined is None:
            return False
        self._found, self.said = joined.place, joined.messages
        if not self._is_over():
            self.epoch = turns.take(self._ports, self._acting, joined.place)
        return True

    def leave(self) -> None:
        """Let the next waiter of this process go on."""
        queues = self._ports.queues
        assert queues is not None
        self._wait_no_more()
        work, self.work = self.work, None
        if work is not None and self.caller is not None:
            waits.end_work(self.caller, work)
        self.caller = None  # The caller may be a task that holds the turn's result: drop it, or neither is ever freed.
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            queues.give_up(ticket)
        if self._inside:
            self._inside = False
            queues.leave(self._here)


def end_if_over(ports: Ports, acting: Acting, line: str) -> None:
    """End a turn with nothing left to answer, if it has no worker: its questions are obsolete."""
    live = turns.live_turn(ports, acting, turns.place_of_turns(line))
    why = None if live is None else turns.why_stopping(ports, acting, live)
    if live is not None and why is not None:
        end_if_free(ports, acting, live, why)


def end_if_free(ports: Ports, acting: Acting, turn: Place, reason: str) -> None:
    """End a turn that is to be stopped, if it has no worker. Otherwise its worker stops it."""
    here, queues = (acting.tenant, turn.actor), ports.queues
    assert queues is not None
    if not queues.enter(here):
        return
    try:
        if any(True for _ in islice(ports.leases.watching(*here), 1)):
            return  # Another process may be at work: it sees the request itself.
        stop.stop(ports, acting, turn, reason=reason, unowned=True)
    except (Conflict, FrameEnded, ActorBusy):
        pass  # Another worker was faster.
    finally:
        queues.leave(here)


IF_BUSY = ("queue", "reject", "interrupt", "join")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a turn. Without messages: continue the live one."""

    messages: tuple[Message, ...] = ()
    key: str | None = None
    if_busy: str = "queue"
    wait: float | None = None
    """The most seconds to wait for others."""
    tokens: int | None = None
    limits: Limits | None = None
    agent: str | None = None
    loops: int | None = None
    """The limit of model calls, to be checked before a message joins the turn."""
    cost: int | None = None
    """The limit of its cost in billionths of a US dollar, checked likewise."""


class Lined:
    """A wait for our place in the queue of this process."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.then: Callable[[], object] | None = None
        self._mutex = threading.Lock()

    def wake(self) -> None:
        """Signal that it is our turn."""
        with self._mutex:
            self.event.set()
            then = self.then
        if then is not None:
            then()

    def tell(self, then: Callable[[], object]) -> None:
        """Call `then` when it is our turn, at once if it already is."""
        with self._mutex:
            self.then = then
            ready = self.event.is_set()
        if ready:
            then()


Wait = Lined | float
"""The thing that an opening waits for: its place in the queue, or some seconds."""


def check_terms(terms: Terms) -> None:
    """Refuse invalid terms."""
    if terms.if_busy not in IF_BUSY:
        raise InvalidValue(f"if_busy must be one of {', '.join(IF_BUSY)}, not {terms.if_busy!r}.")
    wait: object = terms.wait
    number = isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= threading.TIMEOUT_MAX
    if wait is not None and not number:
        raise InvalidValue(f"wait must be seconds, 0 or more, or None for as long as it takes, not {wait!r:.40}.")
