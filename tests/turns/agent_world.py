"""What tests of agents share: conversations and the journal as somebody outside sees them, and waiting for a sign."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import holdfast
from holdfast import Holdfast, Usage, tool
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.model.scripted import Scripted, call
from holdfast.models import ModelReply
from holdfast.records.messages import Delta, Message, ModelCall
from holdfast.runtime.reply import AgentEvent
from tests.turns.loops import place

SESSION = "s"


class Counted(Scripted):
    """A scripted model that counts how often it was asked."""

    @property
    def asked(self) -> int:
        return len(self.requests)


class Gated(Scripted):
    """A scripted model that says the first words, gives a sign, and goes on when it may."""

    def __init__(self, replies: Any, *, words: str = "So far", **how: Any) -> None:
        super().__init__(replies, **how)
        self.words, self.begun, self.go_on = words, asyncio.Event(), asyncio.Event()

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        if say is not None and self.words:
            say(Delta(text=self.words))
        self.begun.set()
        await self.go_on.wait()
        return await super().reply(asked, None)


def costing(text: str, **usage: int) -> ModelReply:
    """A reply that says what it used."""
    return ModelReply(message=Message(role="assistant", content=text), usage=Usage(**usage))


async def spoken_async(hf: AsyncHoldfast, session: str = SESSION) -> list[tuple[str, Any]]:
    """A conversation: who said what."""
    chat = await hf.session(session)
    found = []
    for one in await chat.messages():
        results = [result.result for result in one.tool_results]
        found.append((one.role, one.text or results or [call.name for call in one.tool_calls]))
    return found


def kinds(events: Iterable[AgentEvent]) -> list[str]:
    """What was heard, by kind, with runs of deltas as one."""
    found: list[str] = []
    for event in events:
        if event.kind not in ("delta", "thinking", "tool_call") or not found or found[-1] != event.kind:
            found.append(event.kind)
    return found


def journaled(events: Iterable[AgentEvent]) -> list[AgentEvent]:
    """The events that have a place in the journal."""
    return [event for event in events if event.id is not None]


def facts(hf: Holdfast, type: str, session: str = SESSION) -> list[Any]:
    """The facts of the events of a type, in the place where a conversation's turns live."""
    return [event.facts for event in hf.journal.events(place(session)) if event.type == type]


def until(happened: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.001)


async def until_async(happened: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait for something that another task does."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.001)


def on_loop(work: Callable[[AsyncHoldfast], Awaitable[None]]) -> None:
    """Something with a client in memory. Whoever is left waiting at its end is heard, so that nobody reports it."""

    async def main() -> None:
        others: set[asyncio.Task[Any]] = set()
        try:
            async with holdfast.open_async("memory:") as hf:
                try:
                    async with asyncio.timeout(10):
                        await work(hf)
                finally:
                    others = {one for one in asyncio.all_tasks() if one is not asyncio.current_task()}
        finally:
            await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())


class Shop:
    """An agent whose one tool needs a yes, and what it paid."""

    def __init__(self, hf: Holdfast, *replies: Any) -> None:
        self.paid: list[int] = []
        paid = self.paid

        @tool(needs_approval=True)
        def refund(order: int) -> str:
            """Pay back."""
            paid.append(order)
            return "paid"

        script = [call("refund", order=17), "Done."] if not replies else list(replies)
        self.agent = hf.agent("shop", model=Scripted(script), tools=[refund], history=False)
