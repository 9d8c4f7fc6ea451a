"""Arguments as a model wrote them, read as values for the function, or refused in words that the model can act on.

They are interpreted by the schema first: null in place of an optional property is read as left out, because strict
mode has no other way to say so. Then they are read strictly by type, and only values that do not fit as loosely as
models write: `"5"` for a number, `"true"` for a bool. Nothing is dropped: an unknown name is an error, also deep
inside, since it may be what the call was about, and so are NaN and infinity.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.lazy import convert
from holdfast.core.wire.tools import describe_parameters, preview_value
from holdfast.errors import ArgumentsUnfit
from holdfast.records.messages import ToolCallRequest
from holdfast.runtime.tools.schema import REFERENCE_PREFIX, Schema, is_pydantic, takes_null

_NAME_LIMIT: Final = 60
_PROBLEM_LIMIT: Final = 5
_JSON_WORDS: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number as text",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_PATH: Final = re.compile(r"^(.*?) - at `(?:key` in `)?\$(.*)`$", re.DOTALL)
_TICKED: Final = re.compile(r"`([^`]*)`")


def read_json(text: str) -> tuple[Any, str | None]:
    """Return the data of a JSON text, and None or the reason why it is not JSON."""
    try:
        return msgspec.json.decode(text), None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return None, "nested too deeply" if isinstance(error, RecursionError) else _translate_error(str(error))


def read_object(name: str, arguments: str) -> dict[str, Any]:
    """Read the JSON text of arguments as an object of plain data."""
    if not isinstance(arguments, str) or not arguments.strip():
        return {}
    found, why = read_json(arguments)
    if why is not None:
        raise ArgumentsUnfit(
            f"The arguments of {name} are not JSON ({why}): {quote(arguments)}. Write one whole JSON object."
        )
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ArgumentsUnfit(f"The arguments of {name} are not an object: {quote(arguments)}. Write one JSON object.")
    return found


def read_arguments(name: str, arguments: str, schema: Schema, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Read arguments as values of the function's parameter types; raise ArgumentsUnfit otherwise."""
    given = read_object(name, arguments)
    problems: list[str] = []
    found: dict[str, Any] = {}
    try:
        meant = interpret_value(schema, given, "", schema.get("$defs", {}), problems)
        problems += [f"{missing} is missing" for missing in schema["required"] if missing not in meant]
        for parameter, value in meant.items():
            found[parameter] = _fit_value(value, kinds[parameter], parameter, problems)
    except RecursionError:
        problems = ["they are nested too deeply"]
    if problems:
        raise _unfit_error(name, problems, schema)
    return found


def read_value(value: Any, schema: Schema, kind: Any, where: str = "") -> tuple[Any, list[str]]:
    """Read plain data as a value of one type, in the same way; return it with a list of problems, empty if it fits."""
    problems: list[str] = []
    found = None
    try:
        meant = interpret_value(schema, value, where, schema.get("$defs", {}), problems)
        found = _fit_value(meant, kind, where, problems)
    except RecursionError:
        problems = ["it is nested too deeply"]
    return found, problems


def check_required(name: str, schema: Schema, given: Mapping[str, Any]) -> None:
    """Refuse missing and unknown top-level arguments, for tools that read their arguments themselves."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    needed = [one for one in schema.get("required") or () if not takes_null(known.get(one, {"type": "string"}))]
    problems = [f"{one} is missing" for one in needed if one not in given]
    if schema.get("additionalProperties") is False:
        problems += [f"{one} is not known" for one in given if one not in known]
    if problems:
        raise _unfit_error(name, problems, schema)


def _unfit_error(name: str, problems: Sequence[str], schema: Schema) -> ArgumentsUnfit:
    return ArgumentsUnfit(
        f"The arguments do not fit {name}: {join_problems(problems)}. "
        f"They are {describe_parameters(schema)}. Correct them and call again."
    )


def join_problems(problems: Sequence[str]) -> str:
    """Join the first few problems on one line."""
    return "; ".join(problems[:_PROBLEM_LIMIT])


def _fit_value(value: Any, kind: Any, where: str, problems: list[str]) -> Any:
    """Return a value converted to its type, loosely only if it does not fit strictly; else add a problem."""
    below = why = ""
    try:
        try:
            found = convert(value, kind, strict=True, str_keys=True, dec_hook=_validate_pydantic)
        except msgspec.ValidationError:
            found = convert(value, kind, strict=False, str_keys=True, dec_hook=_validate_pydantic)
        odd = next((number for number in _find_numbers(found) if not math.isfinite(number)), None)
        if odd is None:
            return found
        why = f"{odd} is not a number that can be worked with"
    except msgspec.ValidationError as error:
        at = _PATH.match(str(error))
        below, why = (at[2], _translate_error(at[1])) if at else ("", _translate_error(str(error)))
    place = f"{where}{below}".removeprefix(".")
    problems.append(f"{place}: {why}, in {preview_value(value)}" if place else f"{why}, in {preview_value(value)}")
    return None


def _validate_pydantic(kind: Any, value: Any) -> Any:
    """Validate a value with its Pydantic model."""
    if not is_pydantic(kind):
        raise NotImplementedError
    try:
        return kind.model_validate(value)
    except ValueError as error:
        said = [
            f"{'.'.join(map(str, one.get('loc', ())))} {one.get('msg', '')}".strip()
            for one in getattr(error, "errors", list)()[:3]
        ]
        raise ValueError("; ".join(said) or str(error)) from None


def _find_numbers(value: Any) -> Iterator[float | decimal.Decimal]:
    """Yield every number in a value that may be NaN or infinite: those compare as false with everything."""
    if value is None or isinstance(value, str | int):  # Most values, and none of them can be that.
        return
    if isinstance(value, float | decimal.Decimal):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _find_numbers(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _find_numbers(one)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _find_numbers(getattr(value, name))
    elif hasattr(value, "__dataclass_fields__") or is_pydantic(type(value)):
        yield from _find_numbers(vars(value))


def _translate_error(text: str) -> str:
    """Return msgspec's message in terms of JSON rather than of Python."""
    said = text if text.startswith("JSON") else text[:1].lower() + text[1:]
    if not said.startswith("expected"):
        return said
    return _TICKED.sub(lambda found: " or ".join(_JSON_WORDS.get(one, one) for one in found[1].split(" | ")), said)


def quote(text: str) -> str:
    """Return the beginning of a text, in a form that can be stored."""
    short = text[: _NAME_LIMIT + 1].encode("utf-8", "replace").decode().replace("\0", "\\0")
    return short if len(short) <= _NAME_LIMIT else f"{short[:_NAME_LIMIT]} …"


def interpret_value(schema: Schema, value: Any, where: str, defs: Mapping[str, Schema], problems: list[str]) -> Any:
    """Return a value without the nulls that stand for omitted properties; add a problem for each unknown name."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].removeprefix(REFERENCE_PREFIX)]
    if "anyOf" in schema:
        return _interpret_union(schema["anyOf"], value, where, defs, problems)
    if isinstance(value, list) and schema.get("type") == "array":
        first = schema.get("prefixItems", ())
        return [
            interpret_value(first[at] if at < len(first) else schema["items"], one, f"{where}[{at}]", defs, problems)
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
            found[name] = interpret_value(properties[name], one, below, defs, problems)
        elif others is False:
            problems.append(f"{below!r:.{_NAME_LIMIT}} is not known")
        else:
            found[name] = interpret_value(others, one, below, defs, problems) if isinstance(others, dict) else one
    return found


def _interpret_union(
    ways: list[Schema], value: Any, where: str, defs: Mapping[str, Schema], problems: list[str]
) -> Any:
    """Interpret by the first alternative that fits; if none does, report the problems of the last matching kind."""
    noted: list[str] = []
    found = value
    for way in ways:
        resolved = defs[way["$ref"].removeprefix(REFERENCE_PREFIX)] if "$ref" in way else way
        if isinstance(value, dict | list) and not _could_match(resolved, value):
            continue
        noted = []
        found = interpret_value(resolved, value, where, defs, noted)
        if not noted:
            return found
    problems += noted
    return found


def _could_match(schema: Schema, value: Any) -> bool:
    """Return True if an object or list could be meant by a schema: by its kind, and its tag if it has one."""
    if "anyOf" in schema or not schema.keys() - {"description"}:
        return True
    if schema.get("type") != ("object" if isinstance(value, dict) else "array"):
        return False
    for name, one in schema.get("properties", {}).items():
        only = one.get("enum", [one["const"]] if "const" in one else ())
        if isinstance(value, dict) and len(only) == 1 and name in schema["required"] and value.get(name) != only[0]:
            return False
    return True


def arguments_json(request: ToolCallRequest, arguments: Any) -> str:
    """Return the arguments of a call as JSON text: a person's, if one changed them."""
    return request.arguments if arguments is None else msgspec.json.encode(arguments).decode()
