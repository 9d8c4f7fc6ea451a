"""Which names providers refuse: of tools that are defined, and as strictly of calls in the history."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

TOOL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""OpenAI's rule. Anthropic's was of 128 characters and is of 64 in what it publishes now."""
AUTHOR = re.compile(r"[^\s<|\\/>]{1,64}")


def tool_problems(name: Any, where: str) -> Iterable[str]:
    """A name that no tool may have."""
    if not isinstance(name, str) or TOOL.fullmatch(name) is None:
        yield f"{where} named {name!r:.80}"


def author_problems(message: dict[str, Any]) -> Iterable[str]:
    """The name of who said something; of a result, its tool."""
    if "name" not in message:
        return
    if message.get("role") == "tool":
        yield from tool_problems(message["name"], "a result")
    elif not isinstance(message["name"], str) or AUTHOR.fullmatch(message["name"]) is None:
        yield f"name {message['name']!r:.80}"


def definition_problems(tools: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Tools in any provider's form. Those that it hosts itself have its own names."""
    named = [tool.get(tool["type"], tool) if tool.get("type") in ("function", "custom") else tool for tool in tools]
    own = [tool for tool in named if "parameters" in tool or "input_schema" in tool or "format" in tool]
    for tool in own:
        yield from tool_problems(tool.get("name"), "a tool")
    names = [tool.get("name") for tool in own]
    yield from (f"two tools named {name!r:.80}" for name in {*names} if names.count(name) > 1)
