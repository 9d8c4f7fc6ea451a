"""Convert values of the caller's own types to plain data, and back.

Dataclasses, msgspec records and Pydantic models are stored as their fields; any other value must be plain already.
A registered type is stored with its name and version, and what an earlier version of the program wrote passes through
the upcasters, one version at a time. A value stored before its type was registered is read as it is and, if it does
not fit, as version 1.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.core.journal.codec import encode
from holdfast.core.lazy import convert, lazy_module
from holdfast.core.numbers import check_number, short_repr
from holdfast.errors import InvalidValue, ValueMismatch
from holdfast.records.events.envelope import ERASED
from holdfast.records.ids import check_id

if TYPE_CHECKING:
    import dataclasses
else:
    dataclasses = lazy_module(__name__, "dataclasses")

MAX_ERROR_CHARS = 4_000
MAX_VALUE_DEPTH = 200
"""Far beyond the codec's default limit. Without a limit, a value that contains itself twice would never end."""
_PLAIN = frozenset({str, int, float, bool, type(None)})

Upcaster = Callable[[Any], Any]
MAX_TYPE_VERSION: Final = 10_000
_types: dict[Any, ValueType] = {}


def to_plain(value: Any, depth: int = 0) -> Any:
    """Convert a value to dict, list, str, int, float, bool or None, also inside lists and objects."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if depth > MAX_VALUE_DEPTH:
        raise InvalidValue(f"Data is nested deeper than {MAX_VALUE_DEPTH} levels, or holds itself. Flatten it first.")
    if kind is dict:
        return {name: to_plain(item, depth + 1) for name, item in value.items()}
    if kind is list or kind is tuple:
        return [to_plain(item, depth + 1) for item in value]
    try:
        if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
            return msgspec.to_builtins(value)
        dump = getattr(value, "model_dump", None)
        return dump(mode="json") if callable(dump) and not isinstance(value, type) else value
    except Exception as error:  # noqa: BLE001  it is the caller's own code, to the last attribute
        raise InvalidValue(
            f"{kind.__name__} cannot be stored: {exception_text(error)}. Give plain data instead."
        ) from None


def is_record_type(kind: Any) -> bool:
    """Return True if `to_plain` can take values of this type apart."""
    if not isinstance(kind, type):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "model_validate")


def exception_text(error: BaseException) -> str:
    """Return an exception's type and message as text that can be stored."""
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        said = f"{type(error).__name__}, which cannot say what happened"
    return said.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:MAX_ERROR_CHARS]


def is_interruption(error: BaseException) -> bool:
    """Return True if an error is an interruption. A panic in compiled code is not one, but a failed call."""
    return not isinstance(error, Exception) and type(error).__name__ != "PanicException"


def is_async(function: Any) -> bool:
    """Return True if a call of the function, or of the object, must be awaited."""
    while isinstance(function, functools.partial):
        function = function.func
    call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def is_awaitable(answer: object) -> bool:
    """Return True if an object must be awaited; False if even asking raises."""
    try:
        return inspect.isawaitable(answer)
    except Exception:  # noqa: BLE001  it is somebody else's object
        return False


def discard_awaitable(answer: object) -> bool:
    """Return True if an object must be awaited. A coroutine is closed: Python would warn later that it never ran."""
    waits = is_awaitable(answer)
    if waits and inspect.iscoroutine(answer):
        answer.close()
    return waits


def convert_value(value: Any, kind: Any) -> Any:
    """Convert stored data to the type that the caller asks for. The error names the part that does not fit."""
    if kind is None or kind is Any or value is ERASED:
        return value
    try:
        return _convert(value, kind, strict=False)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        name = getattr(kind, "__name__", str(kind))
        raise InvalidValue(
            f"What is stored is not a {name}: {error}. Read it as plain data, or adapt the type."
        ) from None


class ValueType(msgspec.Struct, frozen=True):
    """A registered type: its name, its version, and the upcaster from each earlier version to the next."""

    kind: Any
    name: str
    version: int
    upcasters: Mapping[int, Upcaster]


def register_type(
    kind: type[Any], name: str | None = None, *, version: int = 1, upcasters: Mapping[int, Upcaster] | None = None
) -> None:
    """Register the name and version that values of a type are stored with.

    `upcasters[n]` takes plain data of version n and returns that of version n + 1.
    """
    if not is_record_type(kind):
        raise InvalidValue("Register a dataclass, a msgspec Struct or a Pydantic model.")
    named = check_id(kind.__name__ if name is None else name, "name")
    if "@" in named:
        raise InvalidValue("name must not hold '@', which stands before the version.")
    check_number("version", version, least=1, most=MAX_TYPE_VERSION)
    steps = dict(upcasters or {})
    for number, step in steps.items():
        if number not in range(1, version) or not callable(step):
            raise InvalidValue(f"upcasters must map versions below {version} to functions, not {short_repr(number)}.")
    _types[kind] = ValueType(kind, named, version, steps)


def schema_of(value: Any) -> str | None:
    """Return the schema `name@version` that a value is stored with, or None if its type is not registered."""
    known = _types.get(type(value))
    return None if known is None else f"{known.name}@{known.version}"


def upcast_value(value: Any, kind: Any, schema: str | None, where: str) -> Any:
    """Convert stored data to a type. The error names the part that does not fit and the remedy."""
    if kind is None or kind is Any or value is ERASED:
        return value
    known = _find_type(kind)
    if known is not None and schema is not None:
        value = _upcast(value, known, schema, where)
    try:
        return _convert(value, kind, strict=True)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        if known is None or schema is not None or not known.upcasters:
            raise _mismatch_error(error, kind, schema, where) from None
    return upcast_value(value, kind, f"{known.name}@1", where)


def _find_type(kind: Any) -> ValueType | None:
    try:
        return _types.get(kind)
    except TypeError:  # Not a type, and not hashable either.
        raise InvalidValue(f"as_ must be a type, not {short_repr(kind)}.") from None


def _convert(value: Any, kind: Any, *, strict: bool) -> Any:
    # Validate from JSON, as it was stored: a strict model takes a date from JSON, but from Python only a date.
    from_json = getattr(kind, "model_validate_json", None) if strict else None
    if callable(from_json):
        return from_json(encode(value))
    validate = getattr(kind, "model_validate", None)
    return validate(value) if callable(validate) else convert(value, kind, strict=strict)


def _upcast(value: Any, known: ValueType, schema: str, where: str) -> Any:
    name, _, number = schema.rpartition("@")
    if name != known.name or not number.isdigit():
        return value
    stored = int(number)
    if stored > known.version:
        raise ValueMismatch(
            f"{where} was written as {schema}, and this program knows {known.name} up to version {known.version}. "
            "Run the newer program, or read it as plain data."
        )
    for version in range(stored, known.version):
        step = known.upcasters.get(version)
        if step is None:
            continue  # No upcaster between these two versions: the type itself decides if the value fits.
        try:
            value = step(value)
        except Exception as error:  # noqa: BLE001  it is the caller's own code
            raise ValueMismatch(
                f"The upcaster of {known.name} from version {version} failed: {exception_text(error)}."
            ) from None
    return value


def _mismatch_error(error: Exception, kind: Any, schema: str | None, where: str) -> ValueMismatch:
    name = getattr(kind, "__name__", str(kind))
    known = _find_type(kind)
    if known is None:
        fix = f"give the field a default, or holdfast.register_type({name}, version=2, upcasters={{1: …}})"
    else:
        fix = f"register an upcaster from {schema or 'what is stored'} to {known.name}@{known.version}"
    text = " ".join(str(error).split())
    return ValueMismatch(f"{where} is not a {name}: {text}. Read it without as_= to see it, and {fix}.")
