"""JSON schemas of Python types, as providers accept them: an object at the top, every type explicit.

Every schema is written out where it is used. Only a recursive type is named under `$defs`, because it could not be
written out. Objects accept only their own properties. A type without a form in JSON is refused, with advice on what to
use instead.

In OpenAI's strict mode every property is required; an optional property becomes nullable, and null is read as left
out. Schemas that strict mode cannot enforce, such as objects with any keys, are refused when the tool is made.

Descriptions come from docstrings, with parameters in Google, NumPy or Sphinx style. Anything in a docstring that is
not understood is left out: it is never a reason to refuse a function.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, Final, get_origin

import msgspec
from msgspec import inspect as types

from holdfast.errors import InvalidValue

Schema = dict[str, Any]
REFERENCE_PREFIX: Final = "#/$defs/"

_PLAIN: Final[Mapping[type, Schema]] = {
    types.AnyType: {},
    types.NoneType: {"type": "null"},
    types.BoolType: {"type": "boolean"},
    types.DateTimeType: {"type": "string", "format": "date-time"},
    types.DateType: {"type": "string", "format": "date"},
    types.TimeType: {"type": "string", "format": "time"},
    types.TimeDeltaType: {"type": "string", "format": "duration"},
    types.UUIDType: {"type": "string", "format": "uuid"},
    # A pattern, because only as strings do the digits arrive exactly.
    types.DecimalType: {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"},
    types.BytesType: {"type": "string", "contentEncoding": "base64"},
}
_NUMBER: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_TEXT: Final = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}
_LIST: Final = {"min_length": "minItems", "max_length": "maxItems"}
_DICT: Final = {"min_length": "minProperties", "max_length": "maxProperties"}
_LISTS: Final = (types.ListType, types.VarTupleType, types.SetType, types.FrozenSetType, types.CollectionType)
_SETS: Final = (types.SetType, types.FrozenSetType)
_RECORDS: Final = (types.StructType, types.DataclassType, types.TypedDictType)
_NAMES: Final[Mapping[type, str]] = {str: "string", int: "integer", bool: "boolean", type(None): "null"}
_UNSUPPORTED: Final = frozenset({"uniqueItems", "contentEncoding", "propertyNames", "default", "examples"})
_FORMATS: Final = frozenset({"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_STRICT_ADVICE: Final = "Use types with named fields, or leave strict out."
_SECTIONS: Final = frozenset({"args", "arguments", "parameters", "params", "attributes", "other parameters"})
_GOOGLE: Final = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY: Final = re.compile(r"^([*\w]+(?:\s*,\s*[*\w]+)*)\s*(?::.*)?$")
_RULE: Final = re.compile(r"^-{3,}$")
_SPHINX: Final = re.compile(r"^:(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*?\s)?(\*{0,2}\w+)\s*:\s*(.*)$")
_FIELD: Final = re.compile(r"^:\w[^:]*:")


def build_schema(kind: Any) -> Schema:
    """Return the schema of one type, with `$defs` if it is recursive."""
    shapes = SchemaBuilder()
    found = shapes.build(kind)
    if not shapes.named:
        return found
    # A bare reference at the top says nothing: inline what it refers to.
    whole = shapes.named[found["$ref"].removeprefix(REFERENCE_PREFIX)] if "$ref" in found else found
    return {**whole, "$defs": shapes.named}


class SchemaBuilder:
    """A builder of schemas for types that belong together, so that they share `$defs`."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}
        self._open: list[object] = []
        self._names: dict[object, str] = {}

    def build(self, kind: Any) -> Schema:
        """Return the schema of one type; raise an InvalidValue that says what to use instead."""
        try:
            msgspec.json.Decoder(kind, dec_hook=lambda _kind, _value: None)
            return self._build(types.type_info(kind))
        except (TypeError, NameError, RecursionError) as error:
            why = " ".join(str(error).split())
            raise InvalidValue(f"{type_name(kind)} cannot be read from JSON: {why}") from None

    def _build(self, info: types.Type) -> Schema:
        kind = type(info)
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if isinstance(info, types.Metadata):
            return {**self._build(info.type), **(info.extra_json_schema or {})}
        if isinstance(info, types.IntType | types.FloatType):
            return {"type": "integer" if kind is types.IntType else "number", **_read_limits(info, _NUMBER)}
        if isinstance(info, types.StrType):
            return {"type": "string", **_read_limits(info, _TEXT)}
        if isinstance(info, types.EnumType):
            return _enum_schema([member.value for member in info.cls])
        if isinstance(info, types.LiteralType):
            return _enum_schema(info.values)
        if isinstance(info, types.UnionType):
            return {"anyOf": [self._build(one) for one in info.types]}
        return self._build_container(info)

    def _build_container(self, info: types.Type) -> Schema:
        """Return the schema of a type that holds others."""
        if isinstance(info, _LISTS):
            unique = {"uniqueItems": True} if isinstance(info, _SETS) else {}
            return {"type": "array", "items": self._build(info.item_type), **unique, **_read_limits(info, _LIST)}
        if isinstance(info, types.TupleType):
            items = [self._build(one) for one in info.item_types]
            size = {"minItems": len(items), "maxItems": len(items)}
            if all(item == items[0] for item in items):
                return {"type": "array", "items": items[0] if items else {}, **size}
            # `items` adds nothing to `prefixItems`, but is there for readers that know only `items`.
            return {"type": "array", "prefixItems": items, "items": {"anyOf": items}, **size}
        if isinstance(info, types.DictType | types.FrozenDictType):
            return self._build_dict(info)
        if isinstance(info, _RECORDS):
            return self._build_once(info.cls, lambda: self._build_record(info))
        if isinstance(info, types.CustomType) and is_pydantic(info.cls):
            model: Any = info.cls
            whole = model.model_json_schema()
            found: Schema = self._resolve(whole, whole.get("$defs", {}), model)
            return found
        what = type_name(getattr(info, "cls", type(info)))
        raise InvalidValue(f"{what} has no form in JSON. Use plain types, dataclasses or TypedDicts instead.")

    def _build_dict(self, info: Any) -> Schema:
        key, value = self._build(info.key_type), self._build(info.value_type)
        if key.get("type") == "integer":
            key = {"pattern": "^-?[0-9]+$"}
        keys = {"propertyNames": key} if key and key != {"type": "string"} else {}
        return {"type": "object", "additionalProperties": value or True, **keys, **_read_limits(info, _DICT)}

    def _build_record(self, info: Any) -> Schema:
        if getattr(info, "array_like", False):
            raise InvalidValue(f"{type_name(info.cls)} is written as a list. Leave array_like out.")
        doc, about = parse_docstring(_own_doc(info.cls))
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if getattr(info, "tag_field", None) is not None:
            properties[info.tag_field] = _enum_schema([info.tag])
            required.append(info.tag_field)
        for field in info.fields:
            shown = self._build(field.type)
            if field.name in about:
                shown.setdefault("description", about[field.name])
            properties[field.encode_name] = {**shown, **default_entry(field.default)}
            if field.required:
                required.append(field.encode_name)
        return {**({"description": doc} if doc else {}), **object_schema(properties, required)}

    def _resolve(self, node: Any, defs: Mapping[str, Any], model: Any) -> Any:
        """Return a Pydantic schema with its references inlined, and without keywords that few providers understand."""
        if isinstance(node, list):
            return [self._resolve(one, defs, model) for one in node]
        if not isinstance(node, dict):
            return node
        if isinstance(node.get("$ref"), str):
            name = node["$ref"].removeprefix(REFERENCE_PREFIX)
            found = self._build_once((model, name), lambda: self._resolve(defs[name], defs, model))
            return {**found, **{key: value for key, value in node.items() if key not in ("$ref", "$defs", "title")}}
        kept: Schema = {}
        for key, value in node.items():
            if key == "properties":
                kept[key] = {name: self._resolve(one, defs, model) for name, one in value.items()}
            elif key in ("default", "examples", "enum", "const"):
                kept[key] = value
            elif key not in ("$defs", "title", "discriminator"):
                kept["anyOf" if key == "oneOf" else key] = self._resolve(value, defs, model)
        if "properties" in kept:
            kept.setdefault("additionalProperties", False)
        return kept

    def _build_once(self, place: Any, make: Callable[[], Schema]) -> Schema:
        """Return the schema written out, or a reference if it is already being written out."""
        if place in self._open:
            if place not in self._names:
                name = place[1] if isinstance(place, tuple) else place.__name__
                taken = set(self._names.values())
                numbered = (f"{name}_{number}" for number in range(2, len(taken) + 3))
                self._names[place] = name if name not in taken else next(one for one in numbered if one not in taken)
            return {"$ref": f"{REFERENCE_PREFIX}{self._names[place]}"}
        self._open.append(place)
        try:
            made = make()
        finally:
            self._open.remove(place)
        if place not in self._names:
            return made
        self.named[self._names[place]] = made
        return {"$ref": f"{REFERENCE_PREFIX}{self._names[place]}"}


def object_schema(properties: dict[str, Schema], required: list[str]) -> Schema:
    """Return the schema of an object with only these properties. Their `$defs` move to the top."""
    named = {name: one for schema in properties.values() for name, one in schema.get("$defs", {}).items()}
    bare = {name: {word: one for word, one in schema.items() if word != "$defs"} for name, schema in properties.items()}
    found: Schema = {"type": "object", "properties": bare, "required": required, "additionalProperties": False}
    return {**found, "$defs": named} if named else found


def is_pydantic(kind: Any) -> bool:
    """Return True if a type is a Pydantic model. Pydantic is not imported here: the model's module did that."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def type_name(kind: Any) -> str:
    """Return a type's name as its user wrote it."""
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")


def _read_limits(info: Any, words: Mapping[str, str]) -> Schema:
    found = {word: getattr(info, name, None) for name, word in words.items()}
    return {word: limit for word, limit in found.items() if limit is not None}


def _enum_schema(values: Iterable[Any]) -> Schema:
    listed = list(values)
    kinds = sorted({_NAMES[type(value)] for value in listed})
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": listed}


def default_entry(value: Any) -> Schema:
    """Return a default as a schema entry; empty if it has no form in JSON or comes from a factory."""
    if value is msgspec.NODEFAULT or value is msgspec.UNSET:
        return {}
    try:
        return {"default": msgspec.to_builtins(value, str_keys=True)}
    except (TypeError, ValueError, RecursionError):
        return {}


def _own_doc(kind: Any) -> str | None:
    """Return a class's docstring, unless it is the one that dataclasses generate from their fields."""
    cls = get_origin(kind) or kind
    doc = cls.__dict__.get("__doc__")
    return None if not isinstance(doc, str) or doc.startswith(f"{cls.__name__}(") else doc


def to_strict(schema: Schema) -> Schema:
    """Convert a schema for strict mode; raise an InvalidValue that says what it cannot enforce."""
    if not any(word in schema for word in ("type", "anyOf", "enum", "const", "$ref")):
        raise InvalidValue(f"strict cannot hold a model to a value of any type. {_STRICT_ADVICE}")
    if "prefixItems" in schema:
        raise InvalidValue(f"strict cannot hold a model to a tuple of different types. {_STRICT_ADVICE}")
    kept: Schema = {}
    for word, value in schema.items():
        match word:
            case "anyOf":
                kept[word] = [to_strict(one) for one in value]
            case "items":
                kept[word] = to_strict(value)
            case "properties" | "$defs":
                kept[word] = {name: to_strict(one) for name, one in value.items()}
            case _ if word not in _UNSUPPORTED and (word != "format" or value in _FORMATS):
                kept[word] = value
    if kept.get("type") != "object":
        return kept
    if schema.get("additionalProperties") is not False or "properties" not in schema:
        raise InvalidValue(f"strict cannot hold a model to an object with any keys, such as a dict. {_STRICT_ADVICE}")
    needed = schema.get("required", [])
    properties = {
        name: one if name in needed or takes_null(one) else {"anyOf": [one, {"type": "null"}]}
        for name, one in kept["properties"].items()
    }
    return {**kept, "properties": properties, "required": list(properties)}


def takes_null(schema: Any) -> bool:
    """Return True if null is a value of its own here, rather than a sign that the property was left out."""
    if not isinstance(schema, Mapping):
        return schema is True
    if isinstance(schema.get("anyOf"), list):
        return any(takes_null(one) for one in schema["anyOf"])
    if isinstance(schema.get("enum"), list):
        return None in schema["enum"]
    kind = schema.get("type")
    return kind == "null" or (isinstance(kind, list) and "null" in kind) or not schema.keys() - {"description"}


def parse_docstring(doc: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the description in a docstring, if there is one, and the description of each parameter it names."""
    lines = inspect.cleandoc(doc).splitlines() if doc else []
    found = {**dict(_parse_google(lines)), **dict(_parse_numpy(lines)), **dict(_parse_sphinx(lines))}
    return _first_paragraph(lines), {name.lstrip("*"): text for name, text in found.items() if text}


def _first_paragraph(lines: list[str]) -> str | None:
    taken: list[str] = []
    for at, line in enumerate(lines):
        section = _is_underlined(lines, at) or (line.endswith(":") and line[:-1].lower() in _SECTIONS)
        if not line.strip() or _FIELD.match(line) or section:
            break
        taken.append(line.strip())
    return " ".join(taken) or None


def _is_underlined(lines: list[str], at: int) -> bool:
    return at + 1 < len(lines) and bool(lines[at].strip()) and _RULE.match(lines[at + 1].strip()) is not None


def _parse_google(lines: list[str]) -> Iterator[tuple[str, str]]:
    for at, line in enumerate(lines):
        heading = line.strip()
        if heading.endswith(":") and heading[:-1].lower() in _SECTIONS and line == line.lstrip():
            indented = takewhile(lambda one: not one.strip() or one != one.lstrip(), lines[at + 1 :])
            yield from _parse_entries(list(indented))


def _parse_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield `name (type): text` entries, each with the deeper lines that continue it."""
    indents = [len(line) - len(line.lstrip()) for line in lines]
    depth = min((indent for indent, line in zip(indents, lines, strict=True) if line.strip()), default=0)
    name, words = "", list[str]()
    for indent, line in zip(indents, lines, strict=True):
        started = _GOOGLE.match(line.strip()) if indent == depth and line.strip() else None
        if started is None:
            words.append(line.strip())
            continue
        if name:
            yield name, _join_words(words)
        name, words = started[1], [started[2]]
    if name:
        yield name, _join_words(words)


def _parse_numpy(lines: list[str]) -> Iterator[tuple[str, str]]:
    inside, names, words = False, list[str](), list[str]()
    for at, line in enumerate(lines):
        if _is_underlined(lines, at):
            yield from _share_text(names, words)
            inside, names, words = line.strip().lower() in _SECTIONS, [], []
        elif inside and line.strip() and line == line.lstrip() and not _RULE.match(line):
            yield from _share_text(names, words)
            named = _NUMPY.match(line)
            names, words = [one.strip() for one in named[1].split(",")] if named else [], []
        elif inside and not _RULE.match(line.strip()):
            words.append(line.strip())
    yield from _share_text(names, words)


def _share_text(names: list[str], words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield one text for several names: `x, y : int` describes both."""
    text = _join_words(words)
    for name in names:
        yield name, text


def _parse_sphinx(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, words = "", list[str]()
    for line in lines:
        started = _SPHINX.match(line.strip())
        if started is None and name and line.strip() and not _FIELD.match(line.strip()):
            words.append(line.strip())
            continue
        if name:
            yield name, _join_words(words)
        name, words = (started[1], [started[2]]) if started else ("", [])
    if name:
        yield name, _join_words(words)


def _join_words(words: list[str]) -> str:
    return " ".join(word for word in words if word)
