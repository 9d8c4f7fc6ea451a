"""A program with turns that stand in the middle of something when it is told to end; and the same agent for going on.

What a turn does is in its first word: `quick` ends soon after the signal, `model` hangs in the model, `lookup` in a
tool that may run again, `pay` in one that may not and that blocks its thread. `ask` waits for a person.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.model.scripted import Scripted, call
from holdfast.runtime import shutdown
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from holdfast.runtime.tools.tool import tool

KINDS = ("quick", "model", "lookup", "quick", "pay", "model", "lookup", "ask", "quick", "lookup")
KINDS = (*KINDS, *(kind if kind != "pay" else "lookup" for kind in KINDS))  # Each that pays takes a thread.
LONG = 600.0


class World:
    """The agent's parts. `stuck` ones never come to their end by themselves."""

    def __init__(self, folder: Path, *, stuck: bool) -> None:
        self.effects, self.stuck = folder / "effects", stuck
        self.told: Callable[[], Awaitable[None]] | None = None
        """Returns once the process is told to end."""
        self.inside = 0
        self._mutex = threading.Lock()

    def agent(self, hf: Any) -> Any:
        """The same agent in every process."""

        @tool(if_interrupted="retry")
        async def lookup(order: int, call: AsyncToolCall) -> str:
            """Find an order."""
            self._note("lookup", call.key)
            if self.stuck:
                await asyncio.sleep(LONG)
            return f"order {order}"

        @tool
        def pay(order: int, call: ToolCall) -> str:
            """Pay for an order."""
            self._note("pay", call.key)
            if self.stuck:
                time.sleep(LONG)
            return f"paid {order}"

        @tool(needs_approval=True)
        def ask(order: int, call: ToolCall) -> str:
            """Order something."""
            self._note("ask", call.key)
            return f"ordered {order}"

        rules = {name: [call(name, order=17), "Done."] for name in ("lookup", "pay", "ask")}
        model = Scripted({"quick": [self._quick], "model": [self._model], **rules}, otherwise="Pardon?")
        return hf.agent("support", model=model, tools=[lookup, pay, ask], history=False)

    async def _quick(self, pack: Any) -> str:
        self.inside += 1
        if self.told is not None:
            await self.told()
            await asyncio.sleep(0.1)
        return "Quick."

    async def _model(self, pack: Any) -> str:
        self.inside += 1
        if self.stuck:
            await asyncio.sleep(LONG)
        return "Done."

    def _note(self, name: str, key: str) -> None:
        with self._mutex, self.effects.open("a", encoding="ascii") as file:
            file.write(f"{name} {key}\n")
            self.inside += 1


def kind_of(number: int) -> str:
    """What a turn stands in the middle of."""
    return KINDS[number % len(KINDS)]


async def main(folder: Path, turns: int, grace: float) -> dict[str, Any]:
    """Take many turns until told to end; gives what became of each request."""
    world = World(folder, stuck=True)
    async with holdfast.open_async(folder / "a.db") as hf, hf.graceful_shutdown(grace=grace) as stop:
        world.told = stop.wait
        agent = world.agent(hf)
        async with agent.recovering(every=0.1):
            sent = [asyncio.ensure_future(agent.send(f"s{n}", kind_of(n), key=f"k{n}")) for n in range(turns)]
            waiting = sum(kind_of(n) == "ask" for n in range(turns))
            while world.inside < turns - waiting or sum(one.done() for one in sent) < waiting:
                broken = [one.exception() for one in sent if one.done() and one.exception() is not None]
                assert not broken, f"it does not come so far: {broken[0]!r}"
                await asyncio.sleep(0.01)
            busy = [n for n in range(turns) if kind_of(n) == "model"]
            queued = [asyncio.ensure_future(agent.send(f"s{n}", "and this?", key=f"q{n}")) for n in busy]
            await asyncio.sleep(0.05)
            print("ready", flush=True)
            await stop.wait()
            late = asyncio.ensure_future(agent.send("late", "quick"))
            ended = await asyncio.gather(*sent, *queued, late, return_exceptions=True)
    words = [one.status if isinstance(one, holdfast.Reply) else type(one).__name__ for one in ended]
    return {"sent": words[:turns], "queued": words[turns:-1], "late": words[-1]}


def main_without_asyncio(folder: Path, turns: int, grace: float) -> dict[str, Any]:
    """Threads that send, and a loop of the program's own in the main thread; all of it hangs."""
    world = World(folder, stuck=True)
    ended: list[str] = []

    def send(number: int) -> None:
        try:
            agent.send(f"s{number}", "pay" if number % 2 else "model", key=f"k{number}")
        except holdfast.errors.Draining as error:
            ended.append(type(error).__name__)

    after = ""
    with holdfast.open(folder / "a.db") as hf:
        agent = world.agent(hf)
        threads = [threading.Thread(target=send, args=(number,)) for number in range(turns)]
        with hf.graceful_shutdown(grace=grace), hf.session("own").turn("Hello") as turn:
            for thread in threads:
                thread.start()
            while world.inside < turns:
                time.sleep(0.01)
            for _ in turn:
                print("ready", flush=True)
                time.sleep(LONG)
        for thread in threads:
            thread.join()
        try:
            agent.send("late", "quick")
        except holdfast.errors.Draining as error:
            after = type(error).__name__
    return {"after": after, "sent": ended}


if __name__ == "__main__":
    # Most of the grace is for leaving: however slow the machine is, only what is not done right takes longer.
    shutdown.CANCEL_SHARE, shutdown.CANCEL_SECONDS_LIMIT = 0.8, 60.0
    given = (Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
    said = main_without_asyncio(*given) if sys.argv[4] == "sync" else asyncio.run(main(*given))
    print(json.dumps(said), flush=True)
