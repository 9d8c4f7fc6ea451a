"""An entry as a file: JSON, or Markdown with the value as its body. Both give back exactly what was written.

In both, a field is a line. Fields that say nothing are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import fields

from holdfast.errors import InvalidValue
from holdfast.records.entries import Stored

_ENCODER = msgspec.json.Encoder()
_FENCE = (b"```json\n", b"\n```\n")
_RULE = b"---\n"


class Damaged(Exception):
    """A file does not hold an entry."""


class _File(msgspec.Struct, kw_only=True):
    """What a file holds. `body` says what the text below the front matter is."""

    key: str
    version: int
    written_at: int
    expires_at: int | None = None
    tier: str | None = None
    lifetime: str | None = None
    content_kind: str | None = None
    salience: float | None = None
    schema: str | None = None
    embedder: str | None = None
    vector: bytes | None = None
    applied: tuple[str, ...] = ()
    words: str | None = None
    body: str | None = None
    value: msgspec.Raw = msgspec.Raw()


_FIELDS = {field.encode_name: field.default for field in fields(_File) if field.name not in ("body", "value")}
_DECODER = msgspec.json.Decoder(_File)


def written(kind: str, key: str, entry: Stored) -> bytes:
    """The bytes of an entry's file."""
    try:
        value = msgspec.json.decode(entry.value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidValue(f"The value of {key!r} is not JSON. Encode it before it is stored.") from None
    lines = _lines(key, entry)
    if kind == "json":
        lines.append(("value", entry.value))
        return b"{\n" + b",\n".join(b'  "%s": %s' % (name.encode(), data) for name, data in lines) + b"\n}\n"
    text = isinstance(value, str) and _ENCODER.encode(value) == entry.value
    lines.append(("body", b'"text"' if text else b'"json"'))
    body = value.encode() + b"\n" if text else entry.value.join(_FENCE)
    return _RULE + b"".join(b"%s: %s\n" % (name.encode(), data) for name, data in lines) + _RULE + body


def _lines(key: str, entry: Stored) -> list[tuple[str, bytes]]:
    given: dict[str, Any] = {name: getattr(entry, name, None) for name in _FIELDS}
    given["key"] = key
    return [(name, _ENCODER.encode(value)) for name, value in given.items() if value != _FIELDS[name]]


def read(kind: str, data: bytes) -> tuple[str, Stored]:
    """The key and the entry of a file; raises Damaged if it holds none."""
    try:
        return _read_json(data) if kind == "json" else _read_markdown(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Damaged(str(error)) from None


def _read_json(data: bytes) -> tuple[str, Stored]:
    file = _DECODER.decode(data)
    if not bytes(file.value):
        raise ValueError("it has no value")
    return _entry(file, bytes(file.value))


def _read_markdown(data: bytes) -> tuple[str, Stored]:
    before, rule, rest = data.partition(_RULE)
    front, end, body = rest.partition(b"\n" + _RULE)
    if before or not rule or not end:
        raise ValueError("its front matter does not end")
    lines = [line.partition(b": ") for line in front.split(b"\n")]
    file = _DECODER.decode(b"{%s}" % b",".join(b'"%s":%s' % (name, value) for name, _, value in lines))
    if file.body == "text":
        return _entry(file, _ENCODER.encode(body.removesuffix(b"\n").decode()))
    if file.body != "json" or not body.startswith(_FENCE[0]) or not body.endswith(_FENCE[1]):
        raise ValueError("its body is neither text nor a block of JSON")
    value = body[len(_FENCE[0]) : -len(_FENCE[1])]
    msgspec.json.decode(value)
    return _entry(file, value)


def _entry(file: _File, value: bytes) -> tuple[str, Stored]:
    kept = {name: getattr(file, name) for name in _FIELDS if name != "key"}
    return file.key, Stored(value=value, **kept)
