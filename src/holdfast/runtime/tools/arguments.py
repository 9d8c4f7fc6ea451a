"""Arguments as a model wrote them, read as what the function takes, or refused in words that it can act on.

Read by the types as they stand first. Only what does not fit then is read as loosely as models write: `"5"` for a
number, `"true"` for a truth value, null for what may be left out. Nothing is dropped: a name that the tool does not
know is an error, also deep inside, and so is a number that is none.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.core.shapes import converted
from holdfast.errors import ArgumentsUnfit
from holdfast.runtime.tools.meaning import as_meant
from holdfast.runtime.tools.schema import Schema, is_pydantic
from holdfast.runtime.tools.strict import takes_null

_SHOWN: Final = 60
_LISTED: Final = 600
_MOST_PROBLEMS: Final = 5
_WORDS: Final[Mapping[str, str]] = {
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


def read_object(name: str, arguments: str) -> dict[str, Any]:
    """The JSON text of arguments as an object of plain data."""
    if not isinstance(arguments, str) or not arguments.strip():
        return {}
    try:
        found = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else _plain_words(str(error))
        raise ArgumentsUnfit(
            f"The arguments of {name} are not JSON ({why}): {_quoted(arguments)}. Write one whole JSON object."
        ) from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ArgumentsUnfit(f"The arguments of {name} are not an object: {_quoted(arguments)}. Write one JSON object.")
    return found


def read_arguments(name: str, arguments: str, schema: Schema, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as values of the types that a function's parameters have, or ArgumentsUnfit."""
    given = read_object(name, arguments)
    problems: list[str] = []
    found: dict[str, Any] = {}
    try:
        meant = as_meant(schema, given, "", schema.get("$defs", {}), problems)
        problems += [f"{missing} is missing" for missing in schema["required"] if missing not in meant]
        for parameter, value in meant.items():
            try:
                found[parameter] = _converted(value, kinds[parameter])
            except _Unfit as unfit:
                problems.append(f"{parameter}{unfit.where}: {unfit.why}, in {_shown(value)}")
    except RecursionError:
        problems = ["they are nested too deeply"]
    if problems:
        shown = "; ".join(problems[:_MOST_PROBLEMS])
        raise ArgumentsUnfit(
            f"The arguments do not fit {name}: {shown}. They are {listed(schema)}. Correct them and call again."
        )
    return found


def check_required(name: str, schema: Schema, given: Mapping[str, Any]) -> None:
    """For tools that read their arguments themselves: what is missing, and what is not theirs, at the top."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    needed = [one for one in schema.get("required") or () if not takes_null(known.get(one, {"type": "string"}))]
    problems = [f"{one} is missing" for one in needed if one not in given]
    if schema.get("additionalProperties") is False:
        problems += [f"{one} is not known" for one in given if one not in known]
    if problems:
        raise ArgumentsUnfit(
            f"The arguments do not fit {name}: {'; '.join(problems[:_MOST_PROBLEMS])}. They are {listed(schema)}. "
            "Correct them and call again."
        )


def listed(schema: Schema) -> str:
    """What a tool takes, on one line, as in {order: integer; reason?: string}: ? marks what may be left out."""
    needed = schema.get("required") or ()
    properties = schema.get("properties") or {}
    shown = [f"{name}{'' if name in needed else '?'}: {_kind(one)}" for name, one in properties.items()]
    text = "{" + "; ".join(shown) + "}"
    return text if len(text) <= _LISTED else f"{text[:_LISTED]} …"


class _Unfit(Exception):
    """A value that does not fit, where in it, and why."""

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(why)


def _converted(value: Any, kind: Any) -> Any:
    """A value as its type has it; loosely only if it does not fit as it stands."""
    try:
        found = converted(value, kind, strict=True, str_keys=True, dec_hook=_validated)
    except msgspec.ValidationError:
        try:
            found = converted(value, kind, strict=False, str_keys=True, dec_hook=_validated)
        except msgspec.ValidationError as error:
            text = str(error)
            at = _PATH.match(text)
            raise _Unfit(at[2] if at else "", _plain_words(at[1] if at else text)) from None
    for number in _numbers(found):
        if not math.isfinite(number):
            raise _Unfit("", f"{number} is not a number that can be worked with")
    return found


def _validated(kind: Any, value: Any) -> Any:
    """A Pydantic model's own reading."""
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


def _numbers(value: Any) -> Iterator[float | decimal.Decimal]:
    """Every number in a value that may be none, such as NaN: those compare as false with everything."""
    if isinstance(value, float | decimal.Decimal):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _numbers(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _numbers(getattr(value, name))
    elif hasattr(value, "__dataclass_fields__") or is_pydantic(type(value)):
        yield from _numbers(vars(value))


def _kind(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(_shown(one) for one in schema["enum"][:8])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    kind = schema.get("type", "object" if "$ref" in schema else "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _plain_words(text: str) -> str:
    """What msgspec says, in words of JSON rather than of Python."""
    said = text[:1].lower() + text[1:]
    if not said.startswith("expected"):
        return said
    return _TICKED.sub(lambda found: " or ".join(_WORDS.get(one, one) for one in found[1].split(" | ")), said)


def _shown(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        text = "what was given"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def _quoted(text: str) -> str:
    short = text[: _SHOWN + 1].encode("utf-8", "replace").decode().replace("\0", "\\0")
    return short if len(short) <= _SHOWN else f"{short[:_SHOWN]} …"
