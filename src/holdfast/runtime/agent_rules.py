"""What is to be done about a tool call before it begins and after it was torn, as its tool was made."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.client.turn_tools import ToolRules
from holdfast.core.call_words import call_words
from holdfast.errors import ArgumentsUnfit
from holdfast.records.messages import ToolCallRequest
from holdfast.runtime.tools.tool import AnyTool


class AgentRules(ToolRules):
    """What the tools themselves say about their calls."""

    tools_ask = True

    def __init__(self, tools: Mapping[str, AnyTool]) -> None:
        super().__init__()
        self._tools = tools

    def if_interrupted(self, request: ToolCallRequest) -> str:
        """What the tool was made with."""
        tool = self._tools.get(request.name)
        return "ask" if tool is None else tool.if_interrupted

    def approval(self, request: ToolCallRequest) -> str | None:
        """Whether the tool wants a yes for these arguments. Calls that make no sense are not worth asking about."""
        tool = self._tools.get(request.name)
        if tool is None:
            return None
        try:
            wanted = tool.approval_needed(tool.read(request.arguments))
        except ArgumentsUnfit:
            return None
        return f"{call_words(request)}: may it run?" if wanted else None

    def unfit(self, request: ToolCallRequest) -> str | None:
        """A tool that is gone, or whose arguments have another shape by now, is not called again on its own."""
        tool = self._tools.get(request.name)
        if tool is None:
            return f"There is no tool {request.name} any more."
        try:
            tool.read(request.arguments)
        except ArgumentsUnfit as error:
            return f"Its arguments no longer fit: {error}"
        return None

    def tokens(self, request: ToolCallRequest) -> int | None:
        """What the tool was made with."""
        tool = self._tools.get(request.name)
        return None if tool is None else tool.tokens
