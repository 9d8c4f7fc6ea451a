"""Operators for tests: the same one as a plain function and as one that is awaited."""

from __future__ import annotations

import asyncio

from holdfast.effects import Custom, OperatorOutput, WriteState
from holdfast.types import AsyncStateReader, StateReader

MANY = 20
"""More than there are threads of a kind."""


def tidy(order: int, view: StateReader) -> OperatorOutput:
    """The operator of most tests, as a plain function."""
    assert asyncio._get_running_loop() is None, "a plain operator reads in a thread"
    return declared(order, view("user/42").read("seen", default=0))


async def tidy_async(order: int, view: AsyncStateReader) -> OperatorOutput:
    """The same, awaited."""
    return declared(order, await view("user/42").read("seen", default=0))


def declared(order: int, seen: int) -> OperatorOutput:
    """A sum on the journaled store, and a note for a sink."""
    wanted = [WriteState("user/42", "seen", 1, reducer="sum"), Custom("note", {"order": order}, "crm")]
    return OperatorOutput({"order": order, "seen": seen}, wanted)
