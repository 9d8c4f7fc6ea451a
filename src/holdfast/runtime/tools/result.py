"""A tool's return value, or its failure, as the result that a model is shown.

A tool that has run has had its effect, whatever it returns. So nearly every value becomes some result, and for the
rest the result says that the tool ran: a model that believed otherwise would call again. Iterators are not read,
because that could run more of the tool, without end. A failure is shown as type and message, shortened, without a
traceback.
"""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

import msgspec

from holdfast.core.journal.codec import encode
from holdfast.core.values import exception_text, to_plain
from holdfast.core.wire.parts import is_parts
from holdfast.errors import ArgumentsUnfit, InvalidValue, ToolFailed, ToolTimedOut
from holdfast.records.messages import Part

DONE: Final = "Done."
MOST_TEXT: Final = 1_000_000
"""Characters of a result that is kept as one text; a longer one is stored as a file."""
MOST_BYTES: Final = 64_000_000
"""Bytes that one artifact holds unless the settings say otherwise."""
_DATA_LIMIT: Final = 100_000
_HEAD: Final = 8_000
_TAIL: Final = 2_000
_CANNOT_SHOW: Final = "The tool ran, but what it gave cannot be shown:"
MOST_SHOWN: Final = 500
"""Characters of an exception that a model is shown. More is rarely useful, and may be a secret."""
MOST_SAID: Final = 4_000
"""Characters of a message that a tool raises on purpose."""


class Bytes(msgspec.Struct, frozen=True):
    """A file returned by a tool. Return it, or a list of texts and files, for a media type other than plain bytes."""

    data: bytes
    media_type: str = "application/octet-stream"
    name: str = "result"


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A result for a model. `result` is text, parts (with the bytes of images and documents as `data`) or plain data.

    `files` are stored as artifacts by the driver: no model can be shown them. The result names them.
    """

    result: Any
    is_error: bool = False
    files: tuple[Bytes, ...] = ()


def build_outcome(value: Any, *, most_text: int = MOST_TEXT, most_bytes: int = MOST_BYTES) -> ToolOutcome:
    """Convert a tool's return value to a result. Never raises."""
    try:
        return _convert_result(value, most_text, most_bytes)
    except Exception as error:  # noqa: BLE001  it is the caller's own object, to the last attribute
        if inspect.iscoroutine(value):
            value.close()
        return ToolOutcome(result=f"{_CANNOT_SHOW} {_explain(error)}", is_error=True)


def _convert_result(value: Any, most_text: int, most_bytes: int) -> ToolOutcome:
    if value is None:
        return ToolOutcome(result=DONE)
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return _text_outcome(clean_text(value), most_text, most_bytes)
    if isinstance(value, bytes | bytearray | memoryview):
        value = Bytes(bytes(value))
    if isinstance(value, Bytes):
        return _combine_parts([value], most_bytes)
    if isinstance(value, list | tuple) and any(isinstance(one, Bytes | bytes) for one in value):
        return _combine_parts(value, most_bytes)
    if is_parts(value):
        return ToolOutcome(result=value)
    found = _to_plain(value)
    try:
        small = len(encode(found)) <= _DATA_LIMIT
    except InvalidValue:
        small = False
    # Data that cannot be stored as it is becomes the JSON text that a model would be shown anyway.
    return ToolOutcome(result=found) if small else _text_outcome(clean_text(_to_json(found)), most_text, most_bytes)


def _text_outcome(text: str, most_text: int, most_bytes: int) -> ToolOutcome:
    if len(text) <= most_text:
        return ToolOutcome(result=text)
    whole = text.encode()
    left = len(text) - _HEAD - _TAIL
    kept = Bytes(whole, "text/plain", "result.txt")
    if len(whole) > most_bytes:
        raise InvalidValue(
            f"it is {len(whole):,} bytes of text. Return less, or write it to a file and return its name"
        )
    marker = f"\n[… {left:,} of {len(text):,} characters left out; the whole text is kept as the file {kept.name} …]\n"
    return ToolOutcome(result=text[:_HEAD] + marker + text[-_TAIL:], files=(kept,))


def _combine_parts(given: Iterable[Any], most_bytes: int) -> ToolOutcome:
    """Combine texts and files: as parts where a model can be shown them, as words where not."""
    parts: list[Part] = []
    files: list[Bytes] = []
    for one in given:
        file = Bytes(one) if isinstance(one, bytes) else one
        if not isinstance(file, Bytes):
            parts.append(
                {"type": "text", "text": clean_text(one if isinstance(one, str) else _to_json(_to_plain(one)))}
            )
            continue
        if len(file.data) > most_bytes:
            raise InvalidValue(f"the file {file.name} is {len(file.data):,} bytes. Return less")
        if file.media_type.startswith("image/"):
            parts.append({"type": "image", "data": file.data, "media_type": file.media_type})
        elif file.media_type == "application/pdf":
            parts.append({"type": "file", "data": file.data, "media_type": file.media_type, "name": file.name})
        else:
            files.append(file)
            name, kind = clean_text(file.name), clean_text(file.media_type)
            said = f"[file {name}, {kind}, {len(file.data):,} bytes: kept, not shown]"
            parts.append({"type": "text", "text": said})
    if all(part["type"] == "text" for part in parts):
        return ToolOutcome(result="\n".join(part["text"] for part in parts), files=tuple(files))
    return ToolOutcome(result=parts, files=tuple(files))


def _to_plain(value: Any) -> Any:
    _refuse_unread(value)
    return to_plain(msgspec.to_builtins(value, str_keys=True, enc_hook=_dump_object))


def _to_json(found: Any) -> str:
    # Not msgspec: it would write NaN as null, and refuse large integers.
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _dump_object(value: Any) -> Any:
    """Convert objects of other libraries to plain values."""
    _refuse_unread(value)
    for name, how in (("model_dump", {"mode": "json"}), ("tolist", {})):
        dump = getattr(value, name, None)
        if callable(dump) and not isinstance(value, type):
            return dump(**how)
    raise InvalidValue(f"{type(value).__name__} is not plain data. Return text, dict, list, a dataclass or bytes")


def _refuse_unread(value: Any) -> None:
    if inspect.isawaitable(value):
        raise InvalidValue("it is a coroutine that was not awaited. Make the tool with async def")
    if isinstance(value, Iterator | AsyncIterator):
        raise InvalidValue(f"it is an iterator ({type(value).__name__}). Return a list")


def clean_text(text: str) -> str:
    """Return text that can be stored: NUL, and what is not Unicode, are written as escapes."""
    if text.isascii() and "\0" not in text:
        return str.__str__(text)
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it holds itself, or is nested too deeply."
    text = str(error) if isinstance(error, InvalidValue) else exception_text(error)
    return f"{text.rstrip('.')[:400]}."


def failure_text(error: BaseException) -> str:
    """Return an exception of a tool as the text of an error result: its type and message, shortened."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text, most = " ".join(exception_text(error).split()), MOST_SHOWN
    if isinstance(error, ArgumentsUnfit | ToolFailed | ToolTimedOut):
        # These messages were written for readers: a class name would add nothing.
        text, most = text.removeprefix(f"{type(error).__name__}: "), MOST_SAID
    return text if len(text) <= most else f"{text[: most - 2]} …"
