"""Schemas in the form that OpenAI's strict mode takes, in which a model can write nothing that does not fit.

Every property is required there; what may be left out elsewhere may be null instead, and is read as left out. What
that mode cannot hold a model to, such as objects with any keys, is refused when the tool is made, not when a model
is called.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.errors import InvalidValue
from holdfast.runtime.tools.schema import Schema

_UNKNOWN: Final = frozenset({"uniqueItems", "contentEncoding", "propertyNames", "default", "examples"})
_FORMATS: Final = frozenset({"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_INSTEAD: Final = "Use types with named fields, or leave strict out."


def strict_form(schema: Schema) -> Schema:
    """A schema as strict mode takes it, or InvalidValue that says what it cannot hold."""
    if not any(word in schema for word in ("type", "anyOf", "enum", "const", "$ref")):
        raise InvalidValue(f"strict cannot hold a model to a value of any type. {_INSTEAD}")
    if "prefixItems" in schema:
        raise InvalidValue(f"strict cannot hold a model to a tuple of different types. {_INSTEAD}")
    kept: Schema = {}
    for word, value in schema.items():
        if word in _UNKNOWN or (word == "format" and value not in _FORMATS):
            continue
        kept[word] = _below(word, value)
    if kept.get("type") == "object":
        return _closed(schema, kept)
    return kept


def _below(word: str, value: Any) -> Any:
    if word == "anyOf":
        return [strict_form(one) for one in value]
    if word == "items":
        return strict_form(value)
    if word in ("properties", "$defs"):
        return {name: strict_form(one) for name, one in value.items()}
    return value


def _closed(schema: Schema, kept: Schema) -> Schema:
    if schema.get("additionalProperties") is not False or "properties" not in schema:
        raise InvalidValue(f"strict cannot hold a model to an object with any keys, such as a dict. {_INSTEAD}")
    needed = schema.get("required", [])
    properties = {
        name: one if name in needed or takes_null(one) else {"anyOf": [one, {"type": "null"}]}
        for name, one in kept["properties"].items()
    }
    return {**kept, "properties": properties, "required": list(properties)}


def takes_null(schema: Schema) -> bool:
    """Whether null is a value of its own here, rather than one that was left out."""
    if "anyOf" in schema:
        return any(takes_null(one) for one in schema["anyOf"])
    if "enum" in schema:
        return None in schema["enum"]
    kind = schema.get("type")
    return kind == "null" or (isinstance(kind, list) and "null" in kind) or not schema.keys() - {"description"}
