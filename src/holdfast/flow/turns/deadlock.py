"""Nobody waits for ever: which conversations code works for, which it waits for, and no circle of those in a process.

A turn ends when all that works for it has ended. So whoever works for one conversation and waits for another keeps the
first one waiting as well, and a wait that would close a circle could never end: it is refused before anything is
written. Whoever works for no turn keeps nobody waiting, and is never refused.

Between processes nobody can tell: those who wait write nothing. There `wait=` bounds it.

Which turns the code that runs now works for, also in threads and tasks that it starts.

A tool may talk to other agents, and they to others. What none of them can do is wait for a conversation that waits
for them: `flow/turn/waiting.py` refuses that, by what is noted here.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from holdfast.errors import Refused
from holdfast.ports import Acting, Ports
from holdfast.system import renew_in_child


class Node(msgspec.Struct, frozen=True):
    """A conversation: of which journal, which tenant, and its line."""

    journal: bytes
    tenant: str
    line: str


class Work:
    """A turn that is worked on, or one of its tools that runs (then it has no node), until it ends.

    What was started by it and outlives it does not work for it any more.
    """

    __slots__ = ("__weakref__", "going_on", "heeds_stops", "node")

    def __init__(self, node: Node | None = None) -> None:
        self.node, self.going_on = node, True
        self.heeds_stops = False
        """Whether a request to stop ends it even while its tools wait."""


within: ContextVar[tuple[Work, ...]] = ContextVar("holdfast_within", default=())
"""What the code that runs here was started by, from the outside in: turns of agents and their tools."""


@contextmanager
def working_within(work: Work | None) -> Iterator[None]:
    """Whatever is called in this block was started by some work; by none if that has ended before."""
    token = None if work is None else within.set((*within.get(), work))
    try:
        yield
    finally:
        if token is not None:
            within.reset(token)


class Caller(msgspec.Struct, frozen=True):
    """Who wants a turn: a thread, which waits as a whole, or one task of it; and what it was started by."""

    client: object
    """What the turns of its client line up in."""
    thread: threading.Thread
    task: object | None
    chain: tuple[Work, ...]

    def held(self) -> list[Work]:
        """The turns that it keeps waiting because of what it was started by.

        A tool that has ended, or was given up, is waited for no more; so whatever it left running holds nobody.
        """
        found: list[Work] = []
        for work in reversed(self.chain):
            if not work.going_on:
                break
            found.append(work)
        return [work for work in found if work.node is not None]


def caller(ports: Ports, task: object | None = None) -> Caller:
    """The code that runs here; `task` is its own if it does not block its thread."""
    return Caller(ports.queues, threading.current_thread(), task, within.get())


class Waiting:
    """Somebody waits for a conversation, and these turns wait with it."""

    __slots__ = ("_chain", "_own", "node")

    def __init__(self, who: Caller, own: Iterable[Work], node: Node) -> None:
        self._chain, self._own, self.node = who, tuple(own), node

    def held(self) -> list[Work]:
        """The turns that cannot end before it does."""
        return [*self._chain.held(), *(work for work in self._own if work.going_on)]


class Waits:
    """Who works for what and waits for what in this process, whichever client it uses."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Nobody works or waits in a child yet."""
        self._mutex = threading.Lock()
        self._at_work: dict[object, dict[Work, None]] = {}
        self._waiting: dict[Waiting, None] = {}
        self._names: weakref.WeakKeyDictionary[object, bytes] = weakref.WeakKeyDictionary()

    def node(self, ports: Ports, acting: Acting, line: str) -> Node:
        """A conversation as all clients of this process know it."""
        with self._mutex:
            name = self._names.get(ports.queues)
        if name is None:
            name = ports.journal.secret
            with self._mutex:
                self._names[ports.queues] = name
        return Node(name, acting.tenant, line)

    def own(self, who: Caller) -> tuple[Work, ...]:
        """The turns of a client whose blocks somebody is in."""
        with self._mutex:
            return tuple(self._at_work.get((who.client, who.task or who.thread), ()))

    def begin_work(self, who: Caller, node: Node) -> Work:
        """Somebody works on a turn in a block of their own, until `end_work`."""
        work = Work(node)
        with self._mutex:
            for owner in _owners(who):
                self._at_work.setdefault(owner, {})[work] = None
        return work

    def end_work(self, who: Caller, work: Work) -> None:
        """The block is left."""
        work.going_on = False
        with self._mutex:
            for owner in _owners(who):
                theirs = self._at_work.get(owner, {})
                theirs.pop(work, None)
                if not theirs:
                    self._at_work.pop(owner, None)

    def begin(self, who: Caller, node: Node, if_busy: str) -> Waiting:
        """Somebody is about to wait for a conversation. Refused if that one waits for what they work for."""
        wait = Waiting(who, self.own(who), node)
        with self._mutex:
            held = {work.node for work in wait.held()}
            circle = self._circle(held, node, stopping=if_busy == "interrupt") if held else None
            if held and circle is None:  # Whoever holds nothing now never will: it waits.
                self._waiting[wait] = None
        if circle is not None:
            raise _refusal(circle)
        return wait

    @contextmanager
    def waiting(self, who: Caller, node: Node, if_busy: str) -> Iterator[None]:
        """Somebody waits for a conversation in this block."""
        wait = self.begin(who, node, if_busy)
        try:
            yield
        finally:
            self.end(wait)

    def end(self, wait: Waiting) -> None:
        """It is waited for no more, whatever came of it."""
        with self._mutex:
            self._waiting.pop(wait, None)

    def _circle(self, held: set[Node | None], node: Node, *, stopping: bool) -> list[Node] | None:
        """From a conversation along those that wait, back to one that is held; None if there is no such way."""
        ways, seen = [[node]], {node}
        for way in ways:  # It grows: the shortest circle is found first.
            if way[-1] in held:
                return way
            for wait in self._waiting:
                # A turn that is to be stopped gives up its waits, if it is one that hears of it.
                gives_up = stopping and len(way) == 1
                holding = [work for work in wait.held() if work.node == way[-1] and not (gives_up and work.heeds_stops)]
                if holding and wait.node not in seen:
                    seen.add(wait.node)
                    ways.append([*way, wait.node])
        return None


def _owners(who: Caller) -> tuple[object, ...]:
    """Under what a turn is known: its task, and its thread, which a wait that blocks would stop as a whole."""
    return tuple((who.client, one) for one in (who.thread, who.task) if one is not None)


def _refusal(way: list[Node]) -> Refused:
    line = way[-1].line
    if len(way) == 1:
        return Refused(
            f"This runs within a turn of {line}, which would wait for itself. Use another conversation, give back from "
            "the tool what you want said, or send it once the turn has ended and its block is left."
        )
    circle = " → ".join(node.line for node in (way[-1], *way))
    return Refused(
        f"This runs within a turn of {line} and would wait for ever, because these wait for each other: {circle}. "
        "Nothing was written. Give back from the tool what you want said, send it once the turn has ended, or use "
        "another conversation."
    )


waits = Waits()
"""Of this process."""


@contextmanager
def working_for(turn: Work | None) -> Iterator[None]:
    """Whatever is called in this block works for a turn that hears of stops; for none if it has ended before."""
    if turn is not None:
        turn.heeds_stops = True
    with working_within(turn):
        yield


@contextmanager
def tool_at_work() -> Iterator[None]:
    """A tool of the innermost turn runs. Once it has ended, or was given up, what it left running holds nobody."""
    tool = Work()
    try:
        with working_within(tool):
            yield
    finally:
        tool.going_on = False


@contextmanager
def waited_for_here(ports: Ports, task: object | None = None) -> Iterator[None]:
    """What is started in this block is waited for: by `task`, or by this thread, and by the turns that it is in."""
    own = waits.own(caller(ports, task))
    token = within.set((*within.get(), *own))
    try:
        yield
    finally:
        within.reset(token)


def depth() -> int:
    """How many turns of agents work within each other here."""
    return sum(work.going_on and work.heeds_stops for work in within.get())
