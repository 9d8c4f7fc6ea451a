"""Tell whoever holds file locks before and after this process forks."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that must let go before a fork."""

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_WATCHED: weakref.WeakSet[Forkable] = weakref.WeakSet()
_FORKING: list[Forkable] = []


def watch_forks(one: Forkable) -> None:
    """From now on, until it is gone."""
    _WATCHED.add(one)


def unwatch_forks(one: Forkable) -> None:
    """It has nothing left to lose."""
    _WATCHED.discard(one)


def _before() -> None:
    # Always in the same order, so that two forking threads cannot wait for each other.
    _FORKING[:] = sorted(_WATCHED, key=id)
    for one in _FORKING:
        one.before_fork()


def _in_parent() -> None:
    for one in _FORKING:
        one.after_fork_in_parent()
    _FORKING.clear()


def _in_child() -> None:
    for one in _FORKING:
        one.after_fork_in_child()
    _FORKING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
