"""Tools from everything that may be given as one: functions, tools, history tools, sources such as MCP servers.

History tools read on where a pack stopped, and search the agent's own past. Each use is journaled like any other tool
call of the turn. They change nothing, so an interrupted call simply runs again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Protocol, runtime_checkable

from holdfast.aio.frame import AsyncHistoryTools
from holdfast.client.history_tools import HistoryTools
from holdfast.core.packs.history_tools import HISTORY_TOOLS, parse_arguments
from holdfast.errors import InvalidValue
from holdfast.flow.frames.read import frame_thread
from holdfast.flow.sessions.sessions import encode_tools
from holdfast.records.messages import ToolDef
from holdfast.runtime.tools.call import ToolCall
from holdfast.runtime.tools.tool import AnyTool, ThreadRunner, Tool, tool


@runtime_checkable
class ToolSource(Protocol):
    """A source of tools that are known only on request."""

    async def tools(self) -> Sequence[AnyTool]: ...


ToolLike = AnyTool | Callable[..., Any] | HistoryTools | AsyncHistoryTools | ToolSource


def check_tools(given: Iterable[ToolLike] | str) -> tuple[AnyTool | ToolSource, ...]:
    """Check the given tools: functions become tools, and sources stay as they are. No I/O."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidValue("tools must be a list of functions, tools or sources of tools.")
    found = [made for one in given for made in _to_tools(one)]
    _index_by_name([one for one in found if isinstance(one, Tool)])
    return tuple(found)


async def load_tools(given: Iterable[ToolLike]) -> dict[str, AnyTool]:
    """Return all tools by name, in the order given, with the current tools of the sources."""
    found: list[AnyTool] = []
    for one in check_tools(given):
        listed = [one] if isinstance(one, Tool) else list(await one.tools())
        for made in listed:
            if not isinstance(made, Tool):
                raise InvalidValue(f"{one!r:.80} gave {made!r:.80} as a tool. Give what @tool makes.")
        found += listed
    return _index_by_name(found)


def _to_tools(one: Any) -> list[AnyTool | ToolSource]:
    if isinstance(one, Tool):
        return [one]
    if isinstance(one, HistoryTools | AsyncHistoryTools):
        return [_make_history_tool(one, definition) for definition in one.definitions]
    if inspect.isroutine(one):
        return [tool(one)]
    if isinstance(one, ToolSource) and not isinstance(one, type):
        return [one]
    raise InvalidValue(
        f"{one!r:.80} is no tool. Give a typed function, what @tool made of one, or something with `async def tools()`."
    )


class LocalTools:
    """The tools of an agent that come from no server, by name."""

    def __init__(self, tools: Iterable[AnyTool]) -> None:
        self.by_name = {one.definition.name: one for one in tools}
        self.definitions = [one.definition for one in self.by_name.values()]

    @cached_property
    def encoded(self) -> bytes:
        """Their definitions as a session keeps them."""
        return encode_tools(self.definitions)


def _index_by_name(tools: Iterable[AnyTool]) -> dict[str, AnyTool]:
    found: dict[str, AnyTool] = {}
    for one in tools:
        if found.setdefault(one.name, one) is not one:
            raise InvalidValue(
                f"Two tools are named {one.name}, and a model could not say which it means. "
                "Rename one with @tool(name=…), or give the source a prefix."
            )
    return found


def _make_history_tool(history: HistoryTools | AsyncHistoryTools, definition: ToolDef) -> AnyTool:
    """Make a tool of one history tool. It changes nothing, so it may run again."""
    if isinstance(history, AsyncHistoryTools):

        async def looked(**arguments: Any) -> str:
            return await history.run(definition.name, arguments)

        return Tool(looked, definition, if_interrupted="retry")

    def look(**arguments: Any) -> str:
        return history.run(definition.name, arguments)

    return Tool(look, definition, if_interrupted="retry")


class HistoryTool(Tool[..., str]):
    """A tool for the agent's own past. Any call, however malformed, gets an answer that says what to do instead."""

    def read(self, arguments: str) -> dict[str, Any]:
        """Return the arguments unparsed: they are interpreted when the tool runs."""
        return {"arguments": arguments}

    async def run(self, args: Mapping[str, Any], call: object, in_thread: ThreadRunner) -> str:
        """Run the call and return its answer."""
        assert isinstance(call, ToolCall), "a tool that is not async gets the plain call"
        found: str = await in_thread(lambda: _answer_call(call, self.name, args["arguments"]))
        return found


def _answer_call(call: ToolCall, name: str, arguments: str) -> str:
    tools = HistoryTools(call.env, frame_thread(call.env, call.turn_id), frame=call.turn_id)
    given, problem = parse_arguments(name, arguments)
    return problem or tools.answer(name, given)


@cache
def history_tools() -> Mapping[str, AnyTool]:
    """Return the history tools by name. They hold no state, so all agents share them."""
    return {one.name: HistoryTool(_answer_call, one, if_interrupted="retry") for one in HISTORY_TOOLS}
