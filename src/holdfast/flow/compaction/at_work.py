"""Whether a rule is at work here: what it does itself is no occasion for rules, or one that appends would never end.

Known to whatever the rule runs, in other threads and on a loop as well, for as long as it runs. What others do
meanwhile is an occasion as always, and so is what a task does that outlives the rule that began it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final


class _Turn:
    """One time that rules are looked at."""

    over = False


_TURN: Final[ContextVar[_Turn | None]] = ContextVar("holdfast_rule_at_work", default=None)


def is_at_work() -> bool:
    """Whether this is done by a rule."""
    turn = _TURN.get()
    return turn is not None and not turn.over


@contextmanager
def at_work() -> Iterator[None]:
    """Rules are looked at, and do what they do."""
    turn = _Turn()
    before = _TURN.set(turn)
    try:
        yield
    finally:
        turn.over = True
        _TURN.reset(before)
