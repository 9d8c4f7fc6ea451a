"""The tools for an agent's own past, as tools of its turns: reading on where a pack stopped, and searching.

Each use is journaled as any other tool call of the turn. They change nothing, so a torn one simply runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.client.tools import HistoryTools
from holdfast.core.history_tools import HISTORY_TOOLS, as_meant
from holdfast.flow.context.seeing import line_of_frame
from holdfast.records.messages import ToolDef
from holdfast.runtime.tools.call import ToolCall
from holdfast.runtime.tools.running import InThread
from holdfast.runtime.tools.tool import AnyTool, Tool


class HistoryTool(Tool[..., str]):
    """One of them. Whatever a model writes into a call, it gets an answer that says what to do instead."""

    def __init__(self, definition: ToolDef) -> None:
        super().__init__(_look, definition, if_interrupted="retry")

    def read(self, arguments: str) -> dict[str, Any]:
        """As they are: what is meant by them is found out when they are used."""
        return {"arguments": arguments}

    async def run(self, args: Mapping[str, Any], call: object, in_thread: InThread) -> str:
        """What the call gives."""
        assert isinstance(call, ToolCall), "a tool that is not async gets the plain call"
        found: str = await in_thread(lambda: _look(call, self.name, args["arguments"]))
        return found


def _look(call: ToolCall, name: str, arguments: str) -> str:
    turn = call.turn
    line = line_of_frame(turn._ports, turn._acting, turn.id)
    tools = HistoryTools(turn._ports, turn._acting, line, frame=turn.id)
    given, problem = as_meant(name, arguments)
    return problem or tools.answer(name, given)


def history_tools() -> dict[str, AnyTool]:
    """Both, by name."""
    return {definition.name: HistoryTool(definition) for definition in HISTORY_TOOLS}
