"""However a connection to an MCP server ends, the process that was started for it is waited for, and nothing is left.

Whatever is left to the garbage collector warns there, in whichever test comes next. So each way is taken with
warnings as errors, and the garbage is collected at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Scripted
from holdfast.errors import EffectFailed, ToolFailed
from holdfast.model.scripted import call
from holdfast.runtime.tools import mcp
from holdfast.runtime.tools.mcp import McpServer
from tests.scale import volume

COMMAND = [sys.executable, "-S", str(Path(__file__).with_name("mcp_lingering.py"))]
SILENT = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
Way = Callable[[McpServer], Awaitable[object]]


async def closed(server: McpServer) -> None:
    await server.close()


async def never_closed(server: McpServer) -> None:
    pass


async def died(server: McpServer) -> None:
    with pytest.raises(ToolFailed, match="is gone"):
        await server._call_tool("die", {})


async def died_and_connected_again(server: McpServer) -> None:
    await died(server)
    assert await server._call_tool("pay", {}) == "paid"


async def cancelled_in_a_call(server: McpServer) -> None:
    calling = asyncio.ensure_future(server._call_tool("hang", {}))
    await asyncio.sleep(0.01)
    calling.cancel()


async def closed_in_a_call(server: McpServer) -> None:
    calling = asyncio.ensure_future(server._call_tool("hang", {}))
    await asyncio.sleep(0.01)
    await server.close()
    with pytest.raises(ToolFailed, match="may or may not"):
        await calling


async def given_up_just_before_the_end(server: McpServer) -> None:
    server._links[0].give_up()
    await asyncio.sleep(0.03)  # By now it waits for the process.


async def closed_by_somebody_who_was_cancelled(server: McpServer) -> None:
    closing = asyncio.ensure_future(server.close())
    await asyncio.sleep(0.03)
    closing.cancel()


WAYS: list[Way] = [
    closed,
    never_closed,
    died,
    died_and_connected_again,
    cancelled_in_a_call,
    closed_in_a_call,
    given_up_just_before_the_end,
    closed_by_somebody_who_was_cancelled,
]


@contextmanager
def nothing_left() -> Iterator[None]:
    """Whatever is left to the garbage collector in this block is found."""
    gc.collect()
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "unraisablehook", lambda one: found.append(repr(one.exc_value)[:200]))
        warnings.simplefilter("error")
        yield
        gc.collect()
    assert found == [], found


def is_there(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


async def connected(server: McpServer) -> int:
    """Its process."""
    return int((await server.tools())[0].description or "")


async def taken(way: Way, command: list[str]) -> int:
    server = McpServer(command=command)
    process = await connected(server)
    await way(server)
    return process


def repeated(way: Way, times: int, command: list[str] = COMMAND) -> None:
    for _ in range(times):
        with nothing_left():
            process = asyncio.run(taken(way, command))
        assert not is_there(process), f"process {process} is still running"


@pytest.mark.parametrize("way", WAYS)
def test_a_process_is_waited_for_however_its_connection_ends(way: Way) -> None:
    repeated(way, volume(2, 100))


def elsewhere(work: str) -> tuple[str, str]:
    """Run one of these functions in a process of its own, where what it leaves is no other test's; what it printed."""
    code = f"from tests.turns import test_mcp_endings as here; here.{work}()"
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root)
    return done.stdout, done.stderr


def interrupted_in_the_middle() -> None:
    mcp._ConnectionTask.cancel = asyncio.Task.cancel  # type: ignore[method-assign]  # the bug

    async def given_up(server: McpServer) -> None:
        server._links[0].give_up()
        await asyncio.sleep(0.3)  # However busy the machine is, it waits for the process now.

    try:
        repeated(given_up, 5, [*COMMAND, "1"])
    except AssertionError as error:
        print(error)


def test_a_process_that_is_left_to_the_collector_is_found() -> None:
    said, logged = elsewhere("interrupted_in_the_middle")
    # Who collects it first decides: the collector warns of it, or asyncio, once its loop is gone.
    assert "is still running" in said or "that handles pid" in logged


def test_a_process_that_never_answers_is_waited_for() -> None:
    async def asked() -> None:
        with pytest.raises(EffectFailed, match="did not answer within"):
            await McpServer(command=SILENT, connect_timeout=0.05).tools()

    for _ in range(volume(2, 100)):
        with nothing_left():
            asyncio.run(asked())


def ended_while_servers_start() -> None:
    async def asked(rounds: int) -> None:
        asking = asyncio.ensure_future(McpServer(command=SILENT).tools())
        for _ in range(rounds):
            await asyncio.sleep(0)
        asking.cancel()

    for rounds in (2, 8, *range(volume(0, 100))):
        asyncio.run(asked(rounds % 12))
    print("all ended")


def test_a_loop_that_ends_while_a_server_starts_does_end() -> None:
    # In those few moments asyncio leaves pipes open that it had not come to yet, and says so.
    assert elsewhere("ended_while_servers_start")[0] == "all ended\n"


def test_who_closes_from_another_loop_waits_as_well() -> None:
    loop, server = asyncio.new_event_loop(), McpServer(command=COMMAND)
    running = threading.Thread(target=loop.run_forever)
    running.start()
    with nothing_left():
        process = asyncio.run_coroutine_threadsafe(connected(server), loop).result(20)
        asyncio.run(server.close())
        assert not is_there(process)
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()


def test_what_an_agent_without_asyncio_started_ends_with_its_client() -> None:
    processes: list[int] = []

    class Noted(McpServer):
        async def tools(self) -> Any:
            found = await super().tools()
            processes.append(int(found[0].description or ""))
            return found

    with nothing_left():
        with holdfast.open("memory:") as hf:
            server = Noted(command=COMMAND)
            agent: Any = hf.agent("clerk", model=Scripted([call("pay"), "Paid."]), tools=[server])
            assert agent.send("alice", "Pay.").text == "Paid."
        assert processes
        assert not any(is_there(one) for one in processes)
        del hf, agent, server


def test_a_late_failure_of_a_lost_connection_leaves_the_new_one_alone() -> None:
    async def lost_twice() -> None:
        async with McpServer(command=COMMAND) as server:
            old = server._links[0]
            await died(server)
            first = await connected(server)
            server._describe_failure(old, ConnectionError("gone"), "gave no result")
            assert await connected(server) == first

    with nothing_left():
        asyncio.run(lost_twice())
