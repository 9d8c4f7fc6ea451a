"""Tool definitions, to and from each provider.

A function tool is one `ToolDef` whichever form it came in: its name, description, schema and
whether it is strict; options that only one provider has are left out. A tool that a provider hosts
itself is kept as it is and told to that provider only. What is written out is a copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from holdfast.core.codec import encode
from holdfast.core.wire.given import plain
from holdfast.core.wire.names import is_tool_name
from holdfast.core.wire.notes import Notes
from holdfast.core.wire.parts import copied
from holdfast.errors import InvalidValue
from holdfast.records.messages import ToolDef

_DATED = re.compile(r".+_\d{8}")
"""Anthropic's hosted tools carry a date in their type."""
_LONGEST_HOSTED = 128
"""A tool that a provider hosts is named as that provider likes."""


def tool_defs(given: Iterable[Any] | None) -> tuple[ToolDef, ...]:
    """Tools from definitions in any provider's form, in their order."""
    if given is None:
        return ()
    if isinstance(given, str | bytes | dict | ToolDef) or not isinstance(given, Iterable):
        raise InvalidValue("Tools come as a list. Put a single one into a list.")
    found = tuple(tool_def(item) for item in given)
    names: set[str] = set()
    for tool in found:
        if tool.raw is None and tool.name in names:
            raise InvalidValue(f"Two tools are named {tool.name}. Give each its own name.")
        names.add(tool.name)
    return found


def tool_def(given: Any) -> ToolDef:
    """One tool from its definition in any provider's form."""
    if isinstance(given, ToolDef):
        return _checked(given)
    defined = getattr(given, "definition", None)
    if isinstance(defined, ToolDef):  # A tool that has a function to it.
        return _checked(defined)
    item = plain(given, Notes(strict=True)) if not callable(given) else None
    if not isinstance(item, dict):
        raise InvalidValue(
            f"{type(given).__name__} is not a tool's definition. Give a ToolDef or a dict with its name and parameters."
        )
    kind = item.get("type")
    if kind == "function" and isinstance(item.get("function"), dict):
        return _function(item["function"], "parameters")
    if kind == "function":
        return _function(item, "parameters")
    if kind in (None, "custom") and "input_schema" in item:
        return _function(item, "input_schema")
    if isinstance(kind, str) and kind:
        inner = item.get("custom")
        name = item.get("name") or (inner.get("name") if isinstance(inner, dict) else None) or kind
        return _checked(ToolDef(name=name, raw=item))
    raise InvalidValue(
        f"A tool's definition has neither a type nor an input_schema: {', '.join(map(str, item))[:80]}. "
        "Give it in OpenAI's or Anthropic's form, or as a ToolDef."
    )


def to_openai(tools: Iterable[ToolDef]) -> list[dict[str, Any]]:
    """Tools for chat completions."""
    out: list[dict[str, Any]] = []
    for tool in tools:
        if tool.raw is None:
            strict = {} if tool.strict is None else {"strict": tool.strict}
            told = {**_described(tool), "parameters": copied(tool.parameters), **strict}
            out.append({"type": "function", "function": told})
        elif _owner(tool.raw) == "openai":
            out.append(copied(tool.raw))
        elif _is_custom(tool.raw):
            inner = {key: value for key, value in tool.raw.items() if key != "type"}
            out.append({"type": "custom", "custom": copied(inner)})
    return out


def to_responses(tools: Iterable[ToolDef]) -> list[dict[str, Any]]:
    """Tools for Responses. There a function is strict unless told otherwise, so it is always told."""
    out: list[dict[str, Any]] = []
    for tool in tools:
        if tool.raw is None:
            told = {**_described(tool), "parameters": copied(tool.parameters), "strict": bool(tool.strict)}
            out.append({"type": "function", **told})
        elif _owner(tool.raw) == "responses":
            out.append(copied(tool.raw))
        elif _is_custom(tool.raw):
            out.append({"type": "custom", **copied(tool.raw["custom"])})
    return out


def to_anthropic(tools: Iterable[ToolDef]) -> list[dict[str, Any]]:
    """Tools for Messages."""
    out: list[dict[str, Any]] = []
    for tool in tools:
        if tool.raw is None:
            strict = {"strict": True} if tool.strict else {}
            out.append({**_described(tool), "input_schema": copied(tool.parameters), **strict})
        elif _owner(tool.raw) == "anthropic":
            out.append(copied(tool.raw))
    return out


def _function(item: dict[str, Any], schema: str) -> ToolDef:
    # Absent and null both mean: takes nothing.
    given = {"parameters": item[schema]} if item.get(schema) is not None else {}
    return _checked(
        ToolDef(name=item.get("name") or "", description=item.get("description"), strict=item.get("strict"), **given)
    )


def _described(tool: ToolDef) -> dict[str, Any]:
    return {"name": tool.name} if tool.description is None else {"name": tool.name, "description": tool.description}


def _checked(tool: ToolDef) -> ToolDef:
    """Records do not check their fields when they are made."""
    _check_name(tool)
    if tool.description is not None and not isinstance(tool.description, str):
        raise InvalidValue(f"The description of {tool.name} is not text. Say in words what the tool does.")
    if tool.strict is not None and not isinstance(tool.strict, bool):
        raise InvalidValue(f"`strict` of {tool.name} is {tool.strict!r:.20}. Use True, False or None.")
    if not isinstance(tool.parameters, dict) or (tool.raw is not None and not isinstance(tool.raw, dict)):
        raise InvalidValue(f"The parameters of {tool.name} are not an object. Give a JSON schema.")
    encode([tool.name, tool.description, tool.parameters, tool.raw])
    return tool


def _check_name(tool: ToolDef) -> None:
    name: Any = tool.name
    hosted = isinstance(tool.raw, dict) and not _is_custom(tool.raw)
    if isinstance(name, str) and (is_tool_name(name) or (hosted and name.strip() and len(name) <= _LONGEST_HOSTED)):
        return
    raise InvalidValue(
        f"{name!r:.80} cannot name a tool: providers refuse it. Use 1 to 64 letters of a-z and A-Z, digits, _ and -."
    )


def _owner(raw: dict[str, Any]) -> str:
    """Whose form a hosted tool's definition has."""
    kind = raw.get("type")
    if isinstance(kind, str) and (_DATED.fullmatch(kind) or kind == "mcp_toolset"):
        return "anthropic"
    return "openai" if isinstance(raw.get("custom"), dict) else "responses"


def _is_custom(raw: dict[str, Any]) -> bool:
    """Whether this is OpenAI's tool that takes free text, which both of its forms have."""
    return raw.get("type") == "custom"
