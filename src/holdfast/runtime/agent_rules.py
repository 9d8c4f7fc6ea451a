"""What is to be done about a tool call before it begins and after it was torn, as its tool was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.client.tool_rules import ToolRules, in_passing
from holdfast.errors import ArgumentsUnfit
from holdfast.records.messages import ToolCallRequest, ToolDef
from holdfast.runtime.tools.tool import AnyTool


class AgentRules(ToolRules):
    """What the tools themselves say about their calls."""

    tools_ask = True
    knows_tools = True

    def __init__(self, tools: Mapping[str, AnyTool]) -> None:
        super().__init__()
        self._tools = tools

    def if_interrupted(self, request: ToolCallRequest) -> str:
        """What the tool was made with."""
        tool = self._tools.get(request.name)
        return "ask" if tool is None else tool.if_interrupted

    def approval(self, request: ToolCallRequest) -> bool:
        """Whether the tool wants a yes for these arguments. Calls that make no sense are not worth asking about."""
        tool = self._tools.get(request.name)
        try:
            return tool is not None and tool.approval_needed(tool.read(request.arguments))
        except ArgumentsUnfit:
            return False

    def unfit(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> str | None:
        """A tool that is gone, or whose arguments have another shape by now, is not called again on its own."""
        tool = self._tools.get(request.name)
        if tool is None:
            return f"there is no tool {request.name} any more"
        try:
            tool.read(written(request, arguments))
        except ArgumentsUnfit as error:
            # What a model would be told to do is not for whoever reads this.
            return in_passing(str(error).removesuffix(" Correct them and call again."))
        return None

    def unsaid(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> Mapping[str, Any]:
        """What the tool's own defaults are for what was left out."""
        tool = self._tools.get(request.name)
        try:
            return {} if tool is None else tool.unsaid(tool.read(written(request, arguments)))
        except ArgumentsUnfit:
            return {}

    def tokens(self, request: ToolCallRequest) -> int | None:
        """What the tool was made with."""
        tool = self._tools.get(request.name)
        return None if tool is None else tool.tokens


def written(request: ToolCallRequest, arguments: Any) -> str:
    """The arguments that a call is made with, as JSON text: a person's, if one changed them."""
    return request.arguments if arguments is None else msgspec.json.encode(arguments).decode()
