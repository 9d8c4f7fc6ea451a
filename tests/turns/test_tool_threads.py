"""Threads of tools that hang: others keep theirs, too many are refused, and each tool has its whole time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Scripted, Tool, ToolDef, tool
from holdfast.aio import executor as async_pool
from holdfast.aio.executor import THREADS, CallbackPool
from holdfast.errors import ToolFailed
from tests.turns.agent_world import until

# tools that hang


def test_tools_that_hang_take_no_thread_from_others() -> None:
    let_go, begun = threading.Event(), threading.Semaphore(0)

    @tool(timeout=0.05)
    def hang() -> str:
        """Hang."""
        begun.release()
        let_go.wait(20)
        return "late"

    @tool
    def quick() -> str:
        """Be quick."""
        return "quick"

    calls = [{"name": "hang", "arguments": {}}] * (THREADS + 4)
    try:
        with holdfast.open("memory:") as hf:
            model = Scripted([calls, {"name": "quick", "arguments": {}}, "Done."])
            assert hf.agent("a", model=model, tools=[hang, quick]).send("s", "Go").status == "done"
            told = [one.result for message in hf.session("s").messages() for one in message.tool_results]
    finally:
        let_go.set()
    assert told[-1] == "quick"
    assert all(begun.acquire(timeout=5) for _ in calls), "each of them has begun, also those that had to wait"


def test_a_thread_that_was_left_ends_with_what_it_did() -> None:
    pool, let_go = CallbackPool(1, "left"), threading.Event()
    try:
        hung = pool.submit(let_go.wait, 20)
        until(hung.running)
        behind = pool.submit(threading.current_thread)
        pool.abandon(hung)
        pool.abandon(hung)
        stand_in = behind.result(5)
    finally:
        let_go.set()
    assert hung.result(5)
    until(lambda: sum(one.name.startswith("left_") for one in threading.enumerate()) == 1)
    assert pool.submit(threading.current_thread).result(5) is stand_in
    pool.abandon(behind)  # It has ended: there is nothing to leave.
    assert pool.submit(threading.current_thread).result(5) is stand_in
    pool.shutdown()


def test_too_many_tools_that_hang_are_said_and_begin_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_pool, "MAX_ABANDONED", 2)
    pool, let_go = CallbackPool(1, "many"), threading.Event()
    try:
        for _ in range(2):
            hung = pool.submit(let_go.wait, 20)
            until(hung.running)
            pool.abandon(hung)
        with pytest.raises(ToolFailed, match="Too many tools hang"):
            pool.submit(lambda: 1)
    finally:
        let_go.set()
    until(lambda: not pool._left)
    assert pool.submit(lambda: 1).result(5) == 1
    pool.shutdown()


def test_the_time_of_a_tool_runs_from_when_it_begins() -> None:
    async def lined_up(work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0.1)
        return await asyncio.to_thread(work)

    async def test() -> Any:
        return await Tool(lambda: "ran", ToolDef(name="t"), timeout=0.05).run({}, None, lined_up)

    assert asyncio.run(test()) == "ran"
