"""The schema of a tool, read where its function is not at hand: what does not fit, what is used for what nobody said.

Only what cannot fit counts as a misfit. Models write `"5"` for a number, and whoever reads the arguments in the end
takes that; so does this. A schema that says nothing that is understood here takes everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

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
