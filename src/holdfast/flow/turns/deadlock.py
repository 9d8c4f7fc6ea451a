"""Deadlock detection: the conversations that code works for, those it waits for, and no cycle of them in a process.

A turn ends when everything that works for it has ended. Code that works for one conversation and waits for another
keeps the first one waiting as well; a wait that would close a cycle could never end, and is refused before anything
is written. Code that works for no turn keeps nothing waiting, and is never refused.

Waits are not journaled, so cycles between processes are not detected; there `wait=` bounds them.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from itertools import takewhile

import msgspec

from holdfast.errors import Refused
from holdfast.ports import Env
from holdfast.system import renew_in_child


class ConversationNode(msgspec.Struct, frozen=True):
    """A conversation: the secret of its journal, its tenant and its thread. The same for all clients here."""

    journal: bytes
    tenant: str
    thread: str


class TurnWork(msgspec.Struct, eq=False):
    """A turn that is worked on, or one of its running tools (without a node), until it ends.

    Code that was started by it and outlives it no longer works for it.
    """

    node: ConversationNode | None = None
    going_on: bool = True
    heeds_stops: bool = False
    """True if a request to stop ends it even while its tools wait."""


current_work: ContextVar[tuple[TurnWork, ...]] = ContextVar("holdfast_within", default=())
"""The work that the running code was started by, outermost first: turns of agents and their tools."""


class enter_work:  # noqa: N801  A class only because a generator takes twice as many calls, and each step enters one.
    """Mark everything called in this block as started by `work`: turns, or a tool of the innermost turn.

    A tool's work ends with the block: code that it left running holds no turn.
    """

    __slots__ = ("_token", "_work")

    def __init__(self, *work: TurnWork) -> None:
        self._work = work

    def __enter__(self) -> None:
        self._token = current_work.set((*current_work.get(), *self._work))

    def __exit__(self, *error: object) -> None:
        current_work.reset(self._token)
        for one in self._work:
            one.going_on = one.going_on and one.node is not None


class Caller(msgspec.Struct, frozen=True):
    """The code that wants a turn, and the work it was started by."""

    owners: tuple[object, ...]
    """The keys of its own work: its client with its thread, which blocks as a whole, and with its task, if any."""
    chain: tuple[TurnWork, ...]

    def list_held_turns(self) -> list[TurnWork]:
        """Return the turns that the caller keeps waiting through the work it was started by.

        A tool that has ended or was given up is no longer waited for, so code that it left running holds no turn.
        """
        waited_for = takewhile(lambda work: work.going_on, reversed(self.chain))
        return [work for work in waited_for if work.node is not None]


def current_caller(env: Env, task: object | None = None) -> Caller:
    """Return the running code as a caller; `task` is its task if it does not block its thread."""
    mine = (threading.current_thread(),) if task is None else (threading.current_thread(), task)
    return Caller(tuple([(env.queues, one) for one in mine]), current_work.get())


class TurnWait(msgspec.Struct, eq=False):
    """A wait for a conversation, and the turns that wait with it."""

    who: Caller
    own: tuple[TurnWork, ...]
    node: ConversationNode

    def list_held_turns(self) -> list[TurnWork]:
        """Return the turns that cannot end before this wait does."""
        return [*self.who.list_held_turns(), *(work for work in self.own if work.going_on)]


class WaitGraph:
    """The work and the waits of this process, across all its clients."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """Reset: nothing works or waits in a child yet."""
        self._mutex = threading.Lock()
        self._at_work: dict[object, dict[TurnWork, None]] = {}
        self._waiting: dict[TurnWait, None] = {}

    def caller_turns(self, who: Caller) -> tuple[TurnWork, ...]:
        """Return the turns whose blocks the caller is in: they wait for work that it starts and waits for."""
        with self._mutex:
            return tuple(self._at_work.get(who.owners[-1], ()))

    def begin_work(self, who: Caller, node: ConversationNode) -> TurnWork:
        """Note that the caller works on a turn in a block of its own, until `end_work`."""
        work = TurnWork(node)
        with self._mutex:
            for owner in who.owners:
                self._at_work.setdefault(owner, {})[work] = None
        return work

    def end_work(self, who: Caller, work: TurnWork) -> None:
        """Note that the block was left."""
        work.going_on = False
        with self._mutex:
            for owner in who.owners:
                theirs = self._at_work.get(owner, {})
                theirs.pop(work, None)
                if not theirs:
                    self._at_work.pop(owner, None)

    def begin_wait(self, who: Caller, node: ConversationNode, if_busy: str) -> TurnWait:
        """Register a wait for a conversation. Refuse it if that conversation waits for the caller's own work."""
        wait = TurnWait(who, self.caller_turns(who), node)
        with self._mutex:
            held = {work.node for work in wait.list_held_turns()}
            circle = self._find_cycle(held, node, stopping=if_busy == "interrupt") if held else None
            if held and circle is None:  # A caller that holds nothing now never will, so its wait needs no record.
                self._waiting[wait] = None
        if circle is not None:
            raise _refusal(circle)
        return wait

    def end_wait(self, wait: TurnWait) -> None:
        """Remove a wait, whatever its outcome."""
        with self._mutex:
            self._waiting.pop(wait, None)

    def _find_cycle(
        self, held: set[ConversationNode | None], node: ConversationNode, *, stopping: bool
    ) -> list[ConversationNode] | None:
        """Return the path from a conversation along the waits back to a held one; None if there is none."""
        ways, seen = [[node]], {node}
        for way in ways:  # The list grows while it is iterated (breadth first): the shortest cycle is found first.
            if way[-1] in held:
                return way
            for wait in self._waiting:
                # A turn that is asked to stop gives up its waits, if it heeds stops.
                gives_up = stopping and len(way) == 1
                holding = [
                    work
                    for work in wait.list_held_turns()
                    if work.node == way[-1] and not (gives_up and work.heeds_stops)
                ]
                if holding and wait.node not in seen:
                    seen.add(wait.node)
                    ways.append([*way, wait.node])
        return None


def _refusal(way: list[ConversationNode]) -> Refused:
    thread = way[-1].thread
    if len(way) == 1:
        return Refused(
            f"This runs within a turn of {thread}, which would wait for itself. Use another conversation, give back "
            "from the tool what you want said, or send it once the turn has ended and its block is left."
        )
    circle = " → ".join(node.thread for node in (way[-1], *way))
    return Refused(
        f"This runs within a turn of {thread} and would wait for ever, because these wait for each other: {circle}. "
        "Nothing was written. Give back from the tool what you want said, send it once the turn has ended, or use "
        "another conversation."
    )


wait_graph = WaitGraph()
"""The waits of this process."""
