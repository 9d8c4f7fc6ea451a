"""Tools: definitions to and from each provider, names, schema checks, and calls as readable text.

A function tool is one `ToolDef` whatever format it came in; options that only one provider has are left out. A tool
hosted by a provider is kept as it is and sent only to that provider.

A model may call a tool by any name, and the name it wrote is kept. Providers check the names of calls in the history
as strictly as those of definitions, so one invented name would have every later request refused. For sending, such a
name is replaced by one derived from it: the same in every request, with a mark at its end, so that it is not taken
for a real tool. Valid names are unchanged. For export, all names are.

The schema check reports only arguments that can never fit. Models write `"5"` for a number, and the final reader of
the arguments accepts that; so does this check.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.core.journal.codec import encode
from holdfast.core.wire.parts import copy_data
from holdfast.core.wire.plain_data import ReadNotes, to_plain_data
from holdfast.errors import InvalidValue
from holdfast.records.messages import ToolCallRequest, ToolDef

_DATED_TYPE = re.compile(r".+_\d{8}")
"""The type of Anthropic's hosted tools, which ends in a date."""
_MAX_HOSTED_NAME_CHARS = 128
"""The name limit of hosted tools, which follow their provider's own rules."""

MAX_NAME_CHARS: Final = 64
"""The name length that every provider accepts; some accept longer ones."""
TOOL_NAME_PATTERN: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{MAX_NAME_CHARS}}}")
_NOT_IN_A_TOOL: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_NOT_IN_AN_AUTHOR: Final = re.compile(r"[\s<|\\/>]+")
_MARK_CHARS: Final = 6
Schema = Mapping[str, Any]
_MAX_PREVIEW_CHARS: Final = 60
_MAX_LIST_CHARS: Final = 600
_MAX_PROBLEMS: Final = 5
_MAX_DEPTH: Final = 32
_BOOLEAN_WORDS: Final = frozenset({"true", "false", "1", "0"})
_TYPE_WORDS: Final[Mapping[str, str]] = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def read_tool_defs(given: Iterable[Any] | None) -> tuple[ToolDef, ...]:
    """Read tool definitions in any provider's format, in order."""
    if given is None:
        return ()
    if isinstance(given, str | bytes | dict | ToolDef) or not isinstance(given, Iterable):
        raise InvalidValue("Tools come as a list. Put a single one into a list.")
    found = tuple(read_tool_def(item) for item in given)
    names: set[str] = set()
    for tool in found:
        if tool.raw is None and tool.name in names:
            raise InvalidValue(f"Two tools are named {tool.name}. Give each its own name.")
        names.add(tool.name)
    return found


def read_tool_def(given: Any) -> ToolDef:
    """Read one tool definition in any provider's format."""
    if isinstance(given, ToolDef):
        return _check_tool(given)
    defined = getattr(given, "definition", None)
    if isinstance(defined, ToolDef):  # A `Tool`, which wraps a function.
        return _check_tool(defined)
    item = to_plain_data(given, ReadNotes(strict=True)) if not callable(given) else None
    if not isinstance(item, dict):
        raise InvalidValue(
            f"{type(given).__name__} is not a tool's definition. Give a ToolDef or a dict with its name and parameters."
        )
    kind = item.get("type")
    if kind == "function" and isinstance(item.get("function"), dict):
        return _read_function(item["function"], "parameters")
    if kind == "function":
        return _read_function(item, "parameters")
    if kind in (None, "custom") and "input_schema" in item:
        return _read_function(item, "input_schema")
    if isinstance(kind, str) and kind:
        inner = item.get("custom")
        name = item.get("name") or (inner.get("name") if isinstance(inner, dict) else None) or kind
        return _check_tool(ToolDef(name=name, raw=item))
    raise InvalidValue(
        f"A tool's definition has neither a type nor an input_schema: {', '.join(map(str, item))[:80]}. "
        "Give it in OpenAI's or Anthropic's form, or as a ToolDef."
    )


def render_tools(tools: Iterable[ToolDef], form: str) -> list[dict[str, Any]]:
    """Return tool definitions in a provider's format, without the tools that other providers host."""
    rendered = (_render_tool(tool, form) for tool in tools)
    return [tool for tool in rendered if tool is not None]


def _render_tool(tool: ToolDef, form: str) -> dict[str, Any] | None:
    raw: dict[str, Any] | None = copy_data(tool.raw)
    if raw is not None:
        if _tool_format(raw) == form:
            return raw
        if form == "anthropic" or not _is_custom_tool(raw):
            return None
        kind = {"type": raw.pop("type")}
        return {**kind, **raw["custom"]} if form == "responses" else {**kind, "custom": raw}
    told: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        told["description"] = tool.description
    told["input_schema" if form == "anthropic" else "parameters"] = copy_data(tool.parameters)
    if form == "anthropic":
        return {**told, "strict": True} if tool.strict else told
    if form == "responses":  # Here a function is strict by default, so `strict` is always set.
        return {"type": "function", **told, "strict": bool(tool.strict)}
    strict = {} if tool.strict is None else {"strict": tool.strict}
    return {"type": "function", "function": {**told, **strict}}


def _read_function(item: dict[str, Any], schema: str) -> ToolDef:
    # Absent and null both mean that the tool takes no arguments.
    given = {"parameters": item[schema]} if item.get(schema) is not None else {}
    return _check_tool(
        ToolDef(name=item.get("name") or "", description=item.get("description"), strict=item.get("strict"), **given)
    )


def _check_tool(tool: ToolDef) -> ToolDef:
    """Return a definition after checking its fields, which records do not do."""
    name: Any = tool.name
    hosted = isinstance(tool.raw, dict) and not _is_custom_tool(tool.raw)
    free = hosted and isinstance(name, str) and name.strip() and len(name) <= _MAX_HOSTED_NAME_CHARS
    if not free and (not isinstance(name, str) or not TOOL_NAME_PATTERN.fullmatch(name)):
        raise InvalidValue(
            f"{name!r:.80} cannot name a tool: providers refuse it. "
            "Use 1 to 64 letters of a-z and A-Z, digits, _ and -."
        )
    if tool.description is not None and not isinstance(tool.description, str):
        raise InvalidValue(f"The description of {tool.name} is not text. Say in words what the tool does.")
    if tool.strict is not None and not isinstance(tool.strict, bool):
        raise InvalidValue(f"`strict` of {tool.name} is {tool.strict!r:.20}. Use True, False or None.")
    if not isinstance(tool.parameters, dict) or (tool.raw is not None and not isinstance(tool.raw, dict)):
        raise InvalidValue(f"The parameters of {tool.name} are not an object. Give a JSON schema.")
    encode([tool.name, tool.description, tool.parameters, tool.raw])
    return tool


def _tool_format(raw: dict[str, Any]) -> str:
    kind = raw.get("type")
    if isinstance(kind, str) and (_DATED_TYPE.fullmatch(kind) or kind == "mcp_toolset"):
        return "anthropic"
    return "openai" if isinstance(raw.get("custom"), dict) else "responses"


def _is_custom_tool(raw: dict[str, Any]) -> bool:
    """Return True for OpenAI's free-text tool, which exists in both of its formats."""
    return raw.get("type") == "custom"


def is_tool_name(name: str) -> bool:
    """Return True if every provider accepts this as the name of a tool."""
    return TOOL_NAME_PATTERN.fullmatch(name) is not None


def sendable_tool_name(name: str) -> str:
    """Return the name of a tool for sending."""
    if TOOL_NAME_PATTERN.fullmatch(name):
        return name
    # Derived from the name alone: tokens are counted per message, and the cached prefix must not change.
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK_CHARS]
    words = _NOT_IN_A_TOOL.sub("_", name).strip("_")[: MAX_NAME_CHARS - _MARK_CHARS - 1].rstrip("_")
    return f"{words or 'tool'}_{mark}"


def sendable_author_name(name: str) -> str:
    """Return the name of an author for sending: any letters, no blanks and no template characters."""
    return _NOT_IN_AN_AUTHOR.sub("_", name)[:MAX_NAME_CHARS]


def describe_misfit(name: str, schema: Schema, given: Any) -> str | None:
    """Describe why arguments can never fit a tool, for the caller who gave them; None if they may. Null means none."""
    given = {} if given is None else given
    if not isinstance(given, dict):
        return f"The arguments of {name} are not an object: {preview_value(given)}"
    found = list(_find_problems({"type": "object", **schema}, given, "", schema.get("$defs") or {}, 0))
    if not found:
        return None
    return (
        f"The arguments do not fit {name}: {'; '.join(found[:_MAX_PROBLEMS])}. They are {describe_parameters(schema)}"
    )


def default_arguments(schema: Schema, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults, according to the schema, of arguments that were not given."""
    properties = schema.get("properties")
    known = properties.items() if isinstance(properties, Mapping) else ()
    missing = ((name, one) for name, one in known if isinstance(one, Mapping) and given.get(name) is None)
    return {name: one["default"] for name, one in missing if "default" in one}


def describe_parameters(schema: Schema) -> str:
    """Describe a tool's parameters on one line, as in {order: integer; reason?: string}: ? marks optional ones."""
    needed = schema.get("required") or ()
    properties = schema.get("properties") or {}
    names = [f"{name}{'' if name in needed else '?'}: {_describe_type(one)}" for name, one in properties.items()]
    text = "{" + "; ".join(names) + "}"
    return text if len(text) <= _MAX_LIST_CHARS else f"{text[:_MAX_LIST_CHARS]} …"


def preview_value(value: Any) -> str:
    """Return any value as short text for a message."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        text = "what was given"
    return text if len(text) <= _MAX_PREVIEW_CHARS else f"{text[:_MAX_PREVIEW_CHARS]} …"


def _describe_type(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "anything"
    if isinstance(schema.get("enum"), list):
        return " or ".join(preview_value(one) for one in schema["enum"][:8])
    if isinstance(schema.get("anyOf"), list):
        return " or ".join(dict.fromkeys(_describe_type(one) for one in schema["anyOf"]))
    kind = schema.get("type", "object" if "$ref" in schema else "anything")
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _find_problems(schema: Any, value: Any, where: str, defs: Mapping[str, Any], depth: int) -> Iterator[str]:
    schema = _resolve_ref(schema, defs)
    if depth > _MAX_DEPTH or not isinstance(schema, Mapping):
        return
    ways = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(ways, list) and ways:
        found = [list(_find_problems(one, value, where, defs, depth + 1)) for one in ways]
        yield from () if any(not one for one in found) else found[-1]
        return
    kinds = _type_names(schema)
    number = "format" in schema and _is_number(value)
    if kinds and not number and not any(_TYPE_CHECKS[kind](value) for kind in kinds):
        expected = " or ".join(_TYPE_WORDS[kind] for kind in kinds)
        yield f"{where or 'they'}: expected {expected}, in {preview_value(value)}"
    elif isinstance(schema.get("enum"), list) and str(value) not in {str(one) for one in schema["enum"]}:
        yield f"{where or 'they'}: expected {_describe_type(schema)}, in {preview_value(value)}"
    elif isinstance(value, dict):
        yield from _find_object_problems(schema, value, where, defs, depth)
    elif isinstance(value, list) and "prefixItems" not in schema:
        for at, one in enumerate(value):
            yield from _find_problems(schema.get("items"), one, f"{where}[{at}]", defs, depth + 1)


def _find_object_problems(
    schema: Schema, value: dict[str, Any], where: str, defs: Mapping[str, Any], depth: int
) -> Iterator[str]:
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name in needed:
        # Strict schemas require nullable properties.
        if name not in value and not _accepts_null(known.get(name), defs):
            yield f"{_join_path(where, name)} is missing"
    for name, one in value.items():
        if name in known:
            if one is not None or name in needed:
                yield from _find_problems(known[name], one, _join_path(where, name), defs, depth + 1)
        elif schema.get("additionalProperties") is False:
            yield f"{_join_path(where, name)!r:.{_MAX_PREVIEW_CHARS}} is not known"


def _accepts_null(schema: Any, defs: Mapping[str, Any]) -> bool:
    schema = _resolve_ref(schema, defs)
    if not isinstance(schema, Mapping):
        return False
    ways = schema.get("anyOf") or schema.get("oneOf")
    return "null" in _type_names(schema) or (isinstance(ways, list) and any(_accepts_null(one, defs) for one in ways))


def _join_path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _resolve_ref(schema: Any, defs: Mapping[str, Any]) -> Any:
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        return defs.get(schema["$ref"].rpartition("/")[2])
    return schema


def _type_names(schema: Schema) -> list[str]:
    """Return the allowed JSON types; empty if the schema names none, or one that is unknown here."""
    said = schema.get("type")
    kinds = [kind for kind in (said if isinstance(said, list) else [said]) if isinstance(kind, str)]
    return kinds if all(kind in _TYPE_WORDS for kind in kinds) else []


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPE_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "integer": lambda value: _is_number(value) and (not isinstance(value, float) or value.is_integer()),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool) or str(value).lower() in _BOOLEAN_WORDS,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def describe_call(request: ToolCallRequest, changed: Any = None, unsaid: Mapping[str, Any] | None = None) -> str:
    """Return a call as readable text, such as refund(17, 240). `unsaid` arguments, the defaults, are shown by name."""
    defaults = {} if unsaid is None else unsaid
    try:
        given = request.args
    except Exception:  # noqa: BLE001  # Show unparseable arguments too.
        given = request.arguments
    if changed is not None:
        # The model's order of the arguments is not kept in the journal.
        both = isinstance(given, dict) and isinstance(changed, dict)
        given = {**{name: changed[name] for name in given if name in changed}, **changed} if both else changed
    values = [value for name, value in given.items() if name not in defaults] if isinstance(given, dict) else [given]
    named = [f"{name}={_shorten_value(value, quote=True)}" for name, value in defaults.items() if value is not None]
    return f"{request.name}({', '.join([*map(_shorten_value, values), *named])})"[:200]


def _shorten_value(value: Any, *, quote: bool = False) -> str:
    plain = isinstance(value, str) and not quote
    text = value if plain else msgspec.json.encode(value).decode("utf-8", "replace")
    return text if len(text) <= 60 else f"{text[:59]}…"
