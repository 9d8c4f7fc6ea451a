"""Which turns the code that runs now works for, also in threads and tasks that it starts.

A tool may talk to other agents, and they to others. What none of them can do is wait for a conversation that waits
for them: `flow/turn/waiting.py` refuses that, by what is noted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.flow.turn.waiting import Work, caller, waits, within, working_within
from holdfast.ports import Ports


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
