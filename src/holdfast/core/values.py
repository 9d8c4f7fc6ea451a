"""Values of the caller's own types as plain data, and back.

Dataclasses, msgspec records and Pydantic models are stored as what they consist of. Anything
else must be plain already; the codec says so, rather than storing a guess.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from holdfast.core.shapes import converted
from holdfast.errors import InvalidValue
from holdfast.records.events.envelope import ERASED

MOST_WORDS = 4_000
DEEPEST = 200
"""Far beyond what the codec takes by default. What holds itself twice would take for ever without an end."""
_PLAIN = frozenset({str, int, float, bool, type(None)})


def plain(value: Any, depth: int = 0) -> Any:
    """A value of the caller's as dict, list, str, int, float, bool or None, also inside lists and objects."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth > DEEPEST:
        raise InvalidValue(f"Data is nested deeper than {DEEPEST} levels, or holds itself. Flatten it first.")
    if kind is dict:
        return {name: plain(item, depth + 1) for name, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item, depth + 1) for item in value]
    try:
        return _taken_apart(value)
    except Exception as error:  # noqa: BLE001  it is the caller's own code, to the last attribute
        raise InvalidValue(f"{kind.__name__} cannot be stored: {words(error)}. Give plain data instead.") from None


def _taken_apart(value: Any) -> Any:
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else value


def is_record_type(kind: Any) -> bool:
    """Whether a type is one of those that `plain` takes apart."""
    if not isinstance(kind, type):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "model_validate")


def words(error: BaseException) -> str:
    """What an exception says, as text that can be stored, whatever it is."""
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        said = f"{type(error).__name__}, which cannot say what happened"
    return said.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:MOST_WORDS]


def typed(value: Any, kind: Any) -> Any:
    """Stored data as the type that a caller asks for; says which part does not fit."""
    if kind is None or kind is Any or value is ERASED:
        return value
    validate = getattr(kind, "model_validate", None)
    try:
        return validate(value) if callable(validate) else converted(value, kind, strict=False)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise InvalidValue(
            f"What is stored is not a {name}: {error}. Read it as plain data, or adapt the type."
        ) from None
