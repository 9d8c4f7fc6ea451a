"""The JSON schema that a reply must fit, in the form that providers accept.

Providers want an object at the root and no unknown fields; strict mode also wants every field required. Not every host
enforces a schema. The caller checks the reply against the type that the schema was made from.

"""

from __future__ import annotations

from typing import Any

ANSWER_NAME = "answer"
"""The schema's name in requests, and that of the tool that takes the answer where no output format exists."""
_DEPTH_LIMIT = 64
_NAME_MAPS = ("properties", "$defs", "definitions")
"""Keywords whose values map the caller's own names to schemas."""
_LIMITS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)


def close_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with its root reference inlined and unknown fields forbidden, unless it mentions them."""
    root = dict(schema)
    found = _follow_reference(root, schema, 0)
    if "$ref" in root and found is not root:
        # Providers refuse a root that is only a reference.
        root = {**{key: value for key, value in root.items() if key != "$ref"}, **found}
    made = _close_node(root, 0)
    return made if isinstance(made, dict) else root


def strip_limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for providers that refuse limits: they move to the description, and the caller checks them."""
    made = _strip_node(schema, 0)
    return made if isinstance(made, dict) else schema


def is_strict(schema: dict[str, Any]) -> bool:
    """Return True if a schema has only what strict mode accepts: objects with every field required."""
    return schema.get("type") == "object" and _is_node_strict(schema, 0)


def _close_node(schema: Any, depth: int) -> Any:
    if depth > _DEPTH_LIMIT:
        return schema
    if isinstance(schema, list):
        return [_close_node(item, depth + 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAME_MAPS and isinstance(value, dict):
            made[key] = {name: _close_node(item, depth + 1) for name, item in value.items()}
        else:
            made[key] = value if key in ("default", "const", "enum", "examples") else _close_node(value, depth + 1)
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


def _strip_node(schema: Any, depth: int) -> Any:
    if depth > _DEPTH_LIMIT:
        return schema
    if isinstance(schema, list):
        return [_strip_node(item, depth + 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAME_MAPS and isinstance(value, dict):
            made[key] = {name: _strip_node(item, depth + 1) for name, item in value.items()}
        elif key not in _LIMITS:
            made[key] = value if key in ("default", "const", "enum", "examples") else _strip_node(value, depth + 1)
    limits = ", ".join(f"{key}: {schema[key]}" for key in _LIMITS if key in schema)
    if limits:
        said = made.get("description")
        made["description"] = f"{said} ({limits})" if isinstance(said, str) and said else limits
    return made


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
