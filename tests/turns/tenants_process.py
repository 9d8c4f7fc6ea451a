"""A program with turns of several tenants under the same names, and the same agent for going on with them.

What a turn does is in its first word: `think` hangs in the model, `lookup` in a tool that may run again, `order` waits
for a person.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.model.scripted import Scripted, call
from holdfast.runtime.tools.tool import tool

TENANTS = ("acme", "default", "zeta")
KINDS = ("think", "lookup", "order")
LONG = 600.0


def session_of(kind: str) -> str:
    """Each tenant has the same sessions."""
    return f"s-{kind}"


class World:
    """The agent's parts. `stuck` ones never come to their end by themselves."""

    def __init__(self, *, stuck: bool) -> None:
        self.stuck, self.inside = stuck, 0

    async def _hang(self) -> None:
        if self.stuck:
            self.inside += 1
            await asyncio.sleep(LONG)

    async def _reply(self, pack: Any) -> Any:
        talk = pack.conversation.messages
        words = next(message.text for message in reversed(talk) if message.role == "user")
        name = words.split()[0]
        if name == "think":
            await self._hang()
        elif not any(message.tool_results for message in talk):
            return [call(name)]
        return f"Answer to {words}"

    def agent(self, hf: Any) -> Any:
        """The same agent in every process."""

        @tool(if_interrupted="retry")
        async def lookup() -> str:
            """Find something."""
            await self._hang()
            return "found"

        @tool(needs_approval=True)
        async def order() -> str:
            """Order something."""
            return "ordered"

        return hf.agent("support", model=Scripted(self._reply), tools=[lookup, order], history=False)


async def main(path: Path) -> None:
    """Begin with everything, and never come to an end."""
    world = World(stuck=True)
    async with holdfast.open_async(path) as hf:
        agent = world.agent(hf)
        sent = [
            asyncio.ensure_future(agent.tenant(name).send(session_of(kind), f"{kind} for {name}"))
            for name in TENANTS
            for kind in KINDS
        ]
        while world.inside < 2 * len(TENANTS) or sum(one.done() for one in sent) < len(TENANTS):
            await asyncio.sleep(0.01)
        print("ready", flush=True)
        await asyncio.sleep(LONG)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
