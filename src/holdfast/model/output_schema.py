"""The JSON schema that a reply must fit, in the form that providers accept.

Providers want an object at the root and no unknown fields; strict mode also wants every field required. Not every host
enforces a schema. The caller checks the reply against the type that the schema was made from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ANSWER_NAME = "answer"
"""The schema's name in requests, and that of the tool that takes the answer where no output format exists."""
_DEPTH_LIMIT = 64
_NAME_MAPS = ("properties", "$defs", "definitions")
"""Keywords whose values map the caller's own names to schemas."""
_VALUES = ("default", "const", "enum", "examples")
"""Keywords whose values are data, not schemas."""
_LIMITS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)


def close_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with its root reference inlined and unknown fields forbidden, unless it mentions them."""
    root = dict(schema)
    target = _follow_reference(root, schema, 0)
    if "$ref" in root and target is not root:
        # Providers refuse a root that is only a reference.
        root = {**{key: value for key, value in root.items() if key != "$ref"}, **target}

    def close(node: dict[str, Any]) -> dict[str, Any]:
        if node.get("type") == "object" and "properties" in node:
            node.setdefault("additionalProperties", False)
        return node

    found: dict[str, Any] = _map_nodes(root, close)
    return found


def strip_limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for providers that refuse limits: they move to the description, and the caller checks them."""

    def strip(node: dict[str, Any]) -> dict[str, Any]:
        limits = ", ".join(f"{key}: {node[key]}" for key in _LIMITS if key in node)
        if not limits:
            return node
        said = node.get("description")
        told = f"{said} ({limits})" if isinstance(said, str) and said else limits
        return {**{key: value for key, value in node.items() if key not in _LIMITS}, "description": told}

    found: dict[str, Any] = _map_nodes(schema, strip)
    return found


def is_strict(schema: dict[str, Any]) -> bool:
    """Return True if a schema has only what strict mode accepts: objects with every field required."""
    return schema.get("type") == "object" and _is_node_strict(schema, 0)


def _map_nodes(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]], depth: int = 0) -> Any:
    """Return a schema with every object in it changed, from the innermost out. The caller's own values stay."""
    if isinstance(schema, list) and depth <= _DEPTH_LIMIT:
        return [_map_nodes(item, change, depth + 1) for item in schema]
    if not isinstance(schema, dict) or depth > _DEPTH_LIMIT:
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAME_MAPS and isinstance(value, dict):
            made[key] = {name: _map_nodes(item, change, depth + 1) for name, item in value.items()}
        else:
            made[key] = value if key in _VALUES else _map_nodes(value, change, depth + 1)
    return change(made)


def _is_node_strict(schema: Any, depth: int) -> bool:
    if depth > _DEPTH_LIMIT:
        return False
    if isinstance(schema, list):
        return all(_is_node_strict(item, depth + 1) for item in schema)
    if not isinstance(schema, dict):
        return True
    if "default" in schema or "oneOf" in schema:
        return False
    fields = schema.get("properties")
    if schema.get("type") == "object":
        named = set(fields) if isinstance(fields, dict) else set()
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != named:
            return False
    return all(
        all(_is_node_strict(item, depth + 1) for item in value.values())
        if key in _NAME_MAPS and isinstance(value, dict)
        else key in ("const", "enum") or _is_node_strict(value, depth + 1)
        for key, value in schema.items()
    )


def _follow_reference(schema: Any, root: dict[str, Any], depth: int) -> dict[str, Any]:
    """Return the schema that a reference within the same document leads to."""
    if not isinstance(schema, dict):
        return {}
    address = schema.get("$ref")
    if not isinstance(address, str) or not address.startswith("#/") or depth > _DEPTH_LIMIT:
        return schema
    found: Any = root
    for name in address[2:].split("/"):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return _follow_reference(found, root, depth + 1)
