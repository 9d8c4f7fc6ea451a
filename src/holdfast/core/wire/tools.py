"""Tool definitions, to and from each provider.

A function tool is one `ToolDef` whichever form it came in: its name, description, schema and
whether it is strict; options that only one provider has are left out. A tool that a provider hosts
itself is kept as it is and told to that provider only. What is written out is a copy.

The names under which a provider is told of tools and of who said something.

A model may call a tool by any name, and what it wrote is kept. Providers check the names of calls in the history as
strictly as those of definitions, so one that was invented would have every later request refused. For sending, such a
name is written as one made from it: the same in every request and wherever a result repeats it, and with a mark at its
end, so that it is not taken for a real tool. Valid names stay as they are. For export, all do.

The schema of a tool, read where its function is not at hand: what does not fit, what is used for what nobody said.

Only what cannot fit counts as a misfit. Models write `"5"` for a number, and whoever reads the arguments in the end
takes that; so does this. A schema that says nothing that is understood here takes everything.

A tool call as people read it: refund(17, 240). Whatever a model wrote, it can be shown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.core.journal.codec import encode
from holdfast.core.wire.parts import copied
from holdfast.core.wire.plain_data import Notes, plain
from holdfast.errors import InvalidValue
from holdfast.records.messages import ToolCallRequest, ToolDef

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


LONGEST: Final = 64
"""Every provider takes a name as long as this; some take longer ones."""
TOOL_NAME: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST}}}")
_NOT_IN_A_TOOL: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_NOT_IN_AN_AUTHOR: Final = re.compile(r"[\s<|\\/>]+")
_MARK: Final = 6


def is_tool_name(name: str) -> bool:
    """Whether every provider takes this as the name of a tool."""
    return TOOL_NAME.fullmatch(name) is not None


def tool_name(name: str) -> str:
    """The name of a tool as it is sent."""
    if is_tool_name(name):
        return name
    # Of the name alone, not of what stands around it: a message is counted by itself, and its cached prefix stays.
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
    words = _NOT_IN_A_TOOL.sub("_", name).strip("_")[: LONGEST - _MARK - 1].rstrip("_")
    return f"{words or 'tool'}_{mark}"


def author_name(name: str) -> str:
    """The name of who said something as it is sent: any letters, no blanks and none of the signs of a template."""
    return _NOT_IN_AN_AUTHOR.sub("_", name)[:LONGEST]


Schema = Mapping[str, Any]

_SHOWN: Final = 60
_LISTED: Final = 600
_MOST_PROBLEMS: Final = 5
_DEEPEST: Final = 32
_TRUTHS: Final = frozenset({"true", "false", "1", "0"})
_WORDS: Final[Mapping[str, str]] = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


def misfit(name: str, schema: Schema, given: Any) -> str | None:
    """Why arguments can never fit a tool, in words for whoever gave them; None if they may. Null is no arguments."""
    given = {} if given is None else given
    if not isinstance(given, dict):
        return f"The arguments of {name} are not an object: {shown(given)}"
    found = list(_problems({"type": "object", **schema}, given, "", schema.get("$defs") or {}, 0))
    if not found:
        return None
    return f"The arguments do not fit {name}: {'; '.join(found[:_MOST_PROBLEMS])}. They are {listed(schema)}"


def unsaid(schema: Schema, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a tool uses for arguments that were not given, as far as its schema says so."""
    properties = schema.get("properties")
    known = properties.items() if isinstance(properties, Mapping) else ()
    return {
        name: one["default"]
        for name, one in known
        if isinstance(one, Mapping) and "default" in one and given.get(name) is None
    }


def listed(schema: Schema) -> str:
    """What a tool takes, on one line, as in {order: integer; reason?: string}: ? marks what may be left out."""
    needed = schema.get("required") or ()
    properties = schema.get("properties") or {}
    names = [f"{name}{'' if name in needed else '?'}: {_kind(one)}" for name, one in properties.items()]
    text = "{" + "; ".join(names) + "}"
    return text if len(text) <= _LISTED else f"{text[:_LISTED]} …"


def shown(value: Any) -> str:
    """A value in a message: short, and whatever it is."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        text = "what was given"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def _kind(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(shown(one) for one in schema["enum"][:8])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    kind = schema.get("type", "object" if "$ref" in schema else "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _problems(schema: Any, value: Any, where: str, defs: Mapping[str, Any], depth: int) -> Iterator[str]:
    schema = _resolved(schema, defs)
    if depth > _DEEPEST or not isinstance(schema, Mapping):
        return
    ways = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(ways, list) and ways:
        found = [list(_problems(one, value, where, defs, depth + 1)) for one in ways]
        yield from () if any(not one for one in found) else found[-1]
        return
    kinds = _kinds(schema)
    if kinds and not any(_TAKES[kind](value) for kind in kinds) and not ("format" in schema and _is_number(value)):
        yield f"{where or 'they'}: expected {' or '.join(_WORDS[kind] for kind in kinds)}, in {shown(value)}"
    elif "enum" in schema and str(value) not in {str(one) for one in schema["enum"]}:
        yield f"{where or 'they'}: expected {_kind(schema)}, in {shown(value)}"
    elif isinstance(value, dict):
        yield from _in_object(schema, value, where, defs, depth)
    elif isinstance(value, list) and "prefixItems" not in schema:
        for at, one in enumerate(value):
            yield from _problems(schema.get("items"), one, f"{where}[{at}]", defs, depth + 1)


def _in_object(schema: Schema, value: dict[str, Any], where: str, defs: Mapping[str, Any], depth: int) -> Iterator[str]:
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    needed = schema.get("required") or ()
    for name in needed:
        if name not in value and not _takes_null(known.get(name), defs):  # Strict schemas require what may be null.
            yield f"{_below(where, name)} is missing"
    for name, one in value.items():
        if name in known:
            if one is not None or name in needed:
                yield from _problems(known[name], one, _below(where, name), defs, depth + 1)
        elif schema.get("additionalProperties") is False:
            yield f"{_below(where, name)!r:.{_SHOWN}} is not known"


def _takes_null(schema: Any, defs: Mapping[str, Any]) -> bool:
    schema = _resolved(schema, defs)
    if not isinstance(schema, Mapping):
        return False
    ways = schema.get("anyOf") or schema.get("oneOf")
    return "null" in _kinds(schema) or (isinstance(ways, list) and any(_takes_null(one, defs) for one in ways))


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _resolved(schema: Any, defs: Mapping[str, Any]) -> Any:
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        return defs.get(schema["$ref"].rpartition("/")[2])
    return schema


def _kinds(schema: Schema) -> list[str]:
    """What a value may be; nothing if that is not said in words that are known here."""
    said = schema.get("type")
    kinds = [kind for kind in (said if isinstance(said, list) else [said]) if isinstance(kind, str)]
    return kinds if all(kind in _WORDS for kind in kinds) else []


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (not isinstance(value, float) or value.is_integer())


_TAKES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "integer": _is_whole,
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool) or str(value).lower() in _TRUTHS,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def call_words(request: ToolCallRequest, changed: Any = None, unsaid: Mapping[str, Any] | None = None) -> str:
    """A call as people read it: refund(17, 240). What nobody wrote and is used all the same, `unsaid`, has its name."""
    defaults = {} if unsaid is None else unsaid
    try:
        given = request.args if changed is None else _as_written(request.args, changed)
    except Exception:  # noqa: BLE001  # Whatever a model wrote, it is shown.
        given = request.arguments if changed is None else changed
    values = [value for name, value in given.items() if name not in defaults] if isinstance(given, dict) else [given]
    named = [f"{name}={_cut(_json(value))}" for name, value in defaults.items() if value is not None]
    return f"{request.name}({', '.join([*map(_short, values), *named])})"[:200]


def _as_written(before: Any, changed: Any) -> Any:
    """Changed arguments in the order in which the model wrote them: a journal keeps none."""
    if not isinstance(before, dict) or not isinstance(changed, dict):
        return changed
    return {**{name: changed[name] for name in before if name in changed}, **changed}


def _short(value: Any) -> str:
    return _cut(value if isinstance(value, str) else _json(value))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
