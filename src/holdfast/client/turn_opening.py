"""Opening a turn: whose turn it is, and what becomes of a message when somebody works on the conversation already.

| the conversation's turn | a new message |
|---|---|
| there is none | begins one |
| is live and nobody works on it: its process died, or it waits for a person | joins it, and is answered with it |
| … and somebody wanted it stopped, or the conversation was reset | has it stopped, then begins one of its own |
| somebody works on it, `if_busy="queue"` | waits, then begins one of its own |
| … `"reject"` | is refused with `ActorBusy`; nothing is written |
| … `"interrupt"` | has it stopped, then begins one of its own |
| … `"join"` | is said in it, and waits for its reply |

Within a process those who wait go on in the order in which they came; between processes whoever sees it free first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from itertools import islice

import msgspec

from holdfast.errors import ActorBusy, Conflict, Draining, FrameEnded, InvalidValue, Refused
from holdfast.flow.compaction import ruling
from holdfast.flow.stack import owning
from holdfast.flow.stack.showing import current
from holdfast.flow.turn import stopping, turns
from holdfast.flow.turn.turns import Taken, Wanted
from holdfast.flow.turn.writing import Place
from holdfast.ports import Acting, Ports
from holdfast.records.frames import Limits
from holdfast.records.messages import Message

IF_BUSY = ("queue", "reject", "interrupt", "join")
LOOK = 0.02


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants of a turn. No messages: go on with the one that is live."""

    messages: tuple[Message, ...] = ()
    key: str | None = None
    if_busy: str = "queue"
    wait: float | None = None
    """Seconds to wait for others, at most."""
    tokens: int | None = None
    limits: Limits | None = None
    agent: str | None = None


class Lined:
    """Wait until it is our turn in this process."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.then: Callable[[], object] | None = None
        self._mutex = threading.Lock()

    def wake(self) -> None:
        """It is our turn."""
        with self._mutex:
            self.event.set()
            then = self.then
        if then is not None:
            then()

    def tell(self, then: Callable[[], object]) -> None:
        """Call this when it is our turn, at once if it is already."""
        with self._mutex:
            self.then = then
            ready = self.event.is_set()
        if ready:
            then()


_of_this_thread = threading.local()
"""The openings that this thread is in, by conversation."""

Wait = Lined | float
"""What an opening waits for: its place in the line, or some seconds."""


def _check_wait(wait: object) -> None:
    number = isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait <= threading.TIMEOUT_MAX
    if wait is not None and not number:
        raise InvalidValue(f"wait must be seconds, 0 or more, or None for as long as it takes, not {wait!r:.40}.")


class Opening:
    """Takes a turn of one conversation. `steps` gives what to wait for: threads and tasks wait in their own ways."""

    def __init__(self, ports: Ports, acting: Acting, line: str, terms: Terms, limits: Callable[[], Limits]) -> None:
        if terms.if_busy not in IF_BUSY:
            raise InvalidValue(f"if_busy must be one of {', '.join(IF_BUSY)}, not {terms.if_busy!r}.")
        _check_wait(terms.wait)
        self._ports, self._acting, self._terms, self._limits = ports, acting, terms, limits
        self.place = turns.place_of_turns(line)
        self._here = (acting.tenant, self.place.actor)
        self._found: Place | None = None
        self.said: tuple[Message, ...] = ()
        self.new = False
        """Whether the turn was begun just now."""
        self._inside = False
        self._until: float | None = None
        self._ticket: object = None
        self.epoch: int | None = None
        self.ended = False

    @property
    def taken(self) -> Place:
        """The turn; refused before the block is entered."""
        if self._found is None:
            raise Refused("The turn exists once its block is entered: with session.turn(…) as turn.")
        return self._found

    def check_not_within(self) -> None:
        """Refuse to wait for a turn that this very thread is in: nobody else would ever end it."""
        before = _of_this_thread.__dict__.setdefault("open", {}).get(self._here)
        mine = before is not None and before._inside and before._ports.queues is self._ports.queues
        if mine and self._terms.if_busy != "reject":
            raise Refused(
                f"This code is within a turn of {self.place.line}, which would wait for itself. Leave its block first, "
                "or use another conversation."
            )
        _of_this_thread.open[self._here] = self

    def steps(self) -> Generator[Wait, None, None]:
        """What to wait for, until the turn is ours or has ended. If it is given up, nothing is left behind."""
        if self._terms.wait is not None:
            self._until = self._ports.clock.monotonic() + self._terms.wait
        try:
            while not (yield from self._tried()):
                pass
            if self.said:
                ruling.after_append(self._ports, self._acting, self.place.line, self.said)
        except BaseException:
            self.leave()
            raise

    def _tried(self) -> Generator[Wait, None, bool]:
        """One attempt; gives whether it is settled."""
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
            self._busy()
            self._check_patience()
            yield seconds
        self._check_open()
        return self._take()

    def _check_open(self) -> None:
        """Nobody who had to wait is let in by a client that shuts down meanwhile."""
        if self._ports.leases.draining:
            raise Draining

    def _is_over(self) -> bool:
        """Whether the turn that the key stands for, or that was joined, has ended."""
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

    # waiting

    def _line_up(self) -> Iterator[Wait]:
        queues = self._ports.queues
        assert queues is not None, "every client lines its turns up"
        if queues.enter(self._here):
            self._inside = True
            return
        self._busy()
        if self._found is not None:  # It works on what we joined: its end is what we wait for.
            while not queues.enter(self._here):
                if self._is_over():
                    return
                self._check_patience()
                yield LOOK
            self._inside = True
            return
        lined = Lined()
        self._ticket = queues.wait(self._here, lined.wake)
        self._check_open()  # Who lines up while everybody is dismissed would wait for nothing.
        yield lined
        self._check_open()
        if not lined.event.is_set():
            raise self._gave_up()
        self._ticket, self._inside = None, True

    def _busy(self) -> None:
        """Somebody works on the conversation: act as the caller wants it."""
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
            turns.request_stop(self._ports, self._acting, live, "Interrupted by a new message.")
            return
        joined = turns.join(self._ports, self._acting, live, self._wanted())
        if joined is not None:
            self._found, self.said = joined.place, joined.messages

    def _check_patience(self) -> None:
        if self._until is not None and self._ports.clock.monotonic() > self._until:
            raise self._gave_up()

    def _gave_up(self) -> ActorBusy:
        joined = self._found is not None
        said = "The message was said and is answered with that turn." if joined else "Nothing was written."
        return ActorBusy(f"Others worked on {self.place.line} for as long as this was to wait. {said}")

    def patience(self) -> float | None:
        """Seconds that are left to wait; None for as long as it takes."""
        return None if self._until is None else max(0.0, self._until - self._ports.clock.monotonic())

    def sleep(self, wait: Wait) -> None:
        """Wait in a thread."""
        if isinstance(wait, Lined):
            wait.event.wait(self.patience())
        else:
            self._ports.clock.sleep(wait)

    # taking

    def _take(self) -> bool:
        """Nobody else works on it, as far as can be seen: begin, join or take up. False if somebody was quicker."""
        ports, acting = self._ports, self._acting
        with ports.observers.later(), ports.leases.taking(*self._here):
            try:
                live = turns.live_turn(ports, acting, self.place)
                if self._found is not None:
                    self.epoch = turns.take(ports, acting, self._found)
                elif live is None:
                    self._begin()
                elif self._terms.messages and turns.is_stopping(ports, acting, live):
                    self._replace(live)  # What is said in it now would never be answered.
                else:
                    return self._join(live)
            except (ActorBusy, Conflict):
                return False
        return True

    def _begin(self) -> None:
        if not self._terms.messages:
            raise Refused(
                f"No turn of {self.place.line} is under way, so there is nothing to go on with. Say something."
            )
        self._note(turns.begin(self._ports, self._acting, self.place, self._wanted()))

    def _note(self, taken: Taken) -> None:
        self._found, self.said, self.new = taken.place, taken.messages, taken.new
        if taken.new:
            self.epoch = owning.note_taken(self._ports, self._acting, self.place.actor)
        elif not self._is_over():
            self.epoch = turns.take(self._ports, self._acting, taken.place)

    def _replace(self, live: Place) -> None:
        """End a turn that is to be stopped and that nobody works on, then begin another."""
        epoch = turns.take(self._ports, self._acting, live)
        try:
            why = turns.stop_requested(self._ports, self._acting, live) or turns.OVER
            stopping.stop(self._ports, self._acting, live, reason=why)
            self._begin()
        finally:
            owning.let_go(self._ports, self._acting, live.actor, epoch)

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
        """Let the next one in this process go on."""
        queues = self._ports.queues
        assert queues is not None
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            queues.give_up(ticket)
        if self._inside:
            self._inside = False
            queues.leave(self._here)


def end_if_free(ports: Ports, acting: Acting, turn: Place, reason: str) -> None:
    """End a turn that is to be stopped, if nobody works on it. Else it is for whoever does."""
    here, queues = (acting.tenant, turn.actor), ports.queues
    assert queues is not None
    if not queues.enter(here):
        return
    try:
        if any(True for _ in islice(ports.leases.watching(*here), 1)):
            return  # Another process may be at work: it hears of it.
        stopping.stop(ports, acting, turn, reason=reason, unowned=True)
    except (Conflict, FrameEnded, ActorBusy):
        pass  # Somebody was quicker.
    finally:
        queues.leave(here)
