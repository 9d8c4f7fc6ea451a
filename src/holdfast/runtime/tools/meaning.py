"""What a model meant by the data it wrote, going by the schema: before it becomes values of any type.

Null in the place of something that may be left out is read as left out, because strict mode has no other way to say
so. A name that no schema knows is a problem, never dropped: it may be what the call was about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.runtime.tools.schema import REFERENCE, Schema
from holdfast.runtime.tools.strict import takes_null

_SHOWN: Final = 60


def as_meant(schema: Schema, value: Any, where: str, defs: Mapping[str, Schema], problems: list[str]) -> Any:
    """A value without the nulls that stand for things left out. Notes names that nothing is known of."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].removeprefix(REFERENCE)]
    if "anyOf" in schema:
        return _meant_by_one(schema["anyOf"], value, where, defs, problems)
    if isinstance(value, list) and schema.get("type") == "array":
        first = schema.get("prefixItems", ())
        return [
            as_meant(first[at] if at < len(first) else schema["items"], one, f"{where}[{at}]", defs, problems)
            for at, one in enumerate(value)
        ]
    if not isinstance(value, dict) or schema.get("type") != "object":
        return value
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    found = {}
    for name, one in value.items():
        below = f"{where}.{name}" if where else name
        if name in properties:
            if one is None and name not in schema.get("required", ()) and not takes_null(properties[name]):
                continue
            found[name] = as_meant(properties[name], one, below, defs, problems)
        elif others is False:
            problems.append(f"{below!r:.{_SHOWN}} is not known")
        else:
            found[name] = as_meant(others, one, below, defs, problems) if isinstance(others, dict) else one
    return found


def _meant_by_one(ways: list[Schema], value: Any, where: str, defs: Mapping[str, Schema], problems: list[str]) -> Any:
    """By the first of several ways that takes it; if none does, the last that is of its kind says why."""
    noted: list[str] = []
    found = value
    for way in ways:
        resolved = defs[way["$ref"].removeprefix(REFERENCE)] if "$ref" in way else way
        if isinstance(value, dict | list) and not _is_kind(resolved, value):
            continue
        noted = []
        found = as_meant(resolved, value, where, defs, noted)
        if not noted:
            return found
    problems += noted
    return found


def _is_kind(schema: Schema, value: Any) -> bool:
    """Whether an object or list could be meant by a schema: by its kind, and its tag if it has one."""
    if "anyOf" in schema or not schema.keys() - {"description"}:
        return True
    if schema.get("type") != ("object" if isinstance(value, dict) else "array"):
        return False
    for name, one in schema.get("properties", {}).items():
        only = one.get("enum", [one["const"]] if "const" in one else ())
        if isinstance(value, dict) and len(only) == 1 and name in schema["required"] and value.get(name) != only[0]:
            return False
    return True
