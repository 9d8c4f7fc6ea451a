"""What a record looks like to msgspec, worked out by one thread at a time.

msgspec works out a type the first time that it is used, and two threads that do so at once for the same type can crash
the process. So every type that is decoded or converted to goes through here first. The lock comes from above: nothing
here knows threads.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import msgspec

_turn: list[AbstractContextManager[Any]] = [nullcontext()]


def one_at_a_time(lock: AbstractContextManager[Any]) -> None:
    """Work types out under this lock from now on."""
    _turn[0] = lock


@cache
def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """What decodes JSON as a type; made once."""
    with _turn[0]:
        return msgspec.json.Decoder(kind)


def converted(value: Any, kind: Any, **how: Any) -> Any:
    """Plain data as a type."""
    worked_out(kind)
    return msgspec.convert(value, kind, **how)


def worked_out(kind: Any) -> None:
    """Work a type out, if msgspec can; whoever uses it hears what is wrong with it otherwise."""
    try:
        decoder(kind)
    except TypeError:
        pass  # Not hashable, or with parts that need a hook.
