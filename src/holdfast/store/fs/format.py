"""An entry as a file, and the names of files.

The content is JSON, or Markdown with the value as its body. Both restore exactly what was written. In both, a field
is a line, and fields with default values are left out. A file that somebody else put there is a plain value: all of
its JSON, or all of its Markdown as text.

Every scope and key has one path, no two share one, and none leads out of the folder. Names are encoded, never
cleaned. Lower-case letters, digits, `-`, `_` and single dots inside a name stay as they are; every character that a
file system may fold, forbid, reserve or confuse becomes `%XX`, byte by byte of UTF-8. So a name identifies its key,
even on disks that ignore case or forbid colons. `%` is followed by two capital hex digits or by one of two words
that are no digits: the empty segment, and the digest of a segment that is too long.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec.structs import fields

from holdfast.errors import InvalidValue
from holdfast.records.entries import StoredEntry
from holdfast.records.scope import SCOPE_KINDS, parse_scope

_ENCODER = msgspec.json.Encoder()
_FENCE = (b"```json\n", b"\n```\n")
_OWN_BEGIN: Final = {"json": b'{\n  "key": ', "markdown": b"---\nkey: "}
_RULE = b"---\n"
PathNames = tuple[str, ...]
SUFFIXES: Final = {"json": ".json", "markdown": ".md"}
FILE_KINDS: Final = {suffix: kind for kind, suffix in SUFFIXES.items()}
MAX_SEGMENT_BYTES: Final = 200
"""The longest encoded segment in bytes. File systems take 255, and a suffix follows it."""
_EMPTY_NAME = "%empty"
_DIGEST_PREFIX = "%sha256-"
_PLAIN = re.compile(r"[a-z0-9_-]+")
_UNSAFE_CHARACTERS = re.compile(r"[^a-z0-9_.-]|\A\.|\.\Z|\.(?=\.)|(?<=\.)\.|\.(?=(?:json|md)\Z)")
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
)
"""The names that Windows takes for devices, also with a suffix."""


class DamagedFile(Exception):
    """A file does not hold an entry."""


class _FileContent(msgspec.Struct, kw_only=True):
    """The content of an entry's file. `body` tells the kind of text below the front matter."""

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


_FIELDS = {field.encode_name: field.default for field in fields(_FileContent) if field.name not in ("body", "value")}
_DECODER = msgspec.json.Decoder(_FileContent)


def encode_entry(kind: str, key: str, entry: StoredEntry) -> bytes:
    """Return the bytes of an entry's file."""
    try:
        value = msgspec.json.decode(entry.value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidValue(f"The value of {key!r} is not JSON. Encode it before it is stored.") from None
    given: dict[str, Any] = {name: getattr(entry, name, None) for name in _FIELDS} | {"key": key}
    lines = [(name, _ENCODER.encode(value)) for name, value in given.items() if value != _FIELDS[name]]
    if kind == "json":
        lines.append(("value", entry.value))
        return b"{\n" + b",\n".join(b'  "%s": %s' % (name.encode(), data) for name, data in lines) + b"\n}\n"
    text = isinstance(value, str) and _ENCODER.encode(value) == entry.value
    lines.append(("body", b'"text"' if text else b'"json"'))
    body = value.encode() + b"\n" if text else entry.value.join(_FENCE)
    return _RULE + b"".join(b"%s: %s\n" % (name.encode(), data) for name, data in lines) + _RULE + body


def decode_entry(kind: str, data: bytes) -> tuple[str, StoredEntry]:
    """Return the key and the entry of a file; raise DamagedFile if it holds none."""
    try:
        if kind != "json":
            return _read_markdown(data)
        file = _DECODER.decode(data)
        if not bytes(file.value):
            raise ValueError("it has no value")
        return _make_entry(file, bytes(file.value))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DamagedFile(str(error)) from None


def is_plain(kind: str, data: bytes) -> bool:
    """Return True if a file does not begin as holdfast's own do, or as what a fault left of one."""
    begin = _OWN_BEGIN[kind]
    return not data.startswith(begin) and not begin.startswith(data)


def decode_plain(kind: str, data: bytes, changed_us: int) -> StoredEntry:
    """Return a plain file as an entry, its last change as the version; raise DamagedFile if it holds no value."""
    try:
        value = msgspec.json.decode(data) if kind == "json" else data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFile(str(error)) from None
    return StoredEntry(value=_ENCODER.encode(value), version=changed_us, written_at=changed_us // 1000)


def _read_markdown(data: bytes) -> tuple[str, StoredEntry]:
    before, rule, rest = data.partition(_RULE)
    front, end, body = rest.partition(b"\n" + _RULE)
    if before or not rule or not end:
        raise ValueError("its front matter does not end")
    lines = [line.partition(b": ") for line in front.split(b"\n")]
    file = _DECODER.decode(b"{%s}" % b",".join(b'"%s":%s' % (name, value) for name, _, value in lines))
    if file.body == "text":
        return _make_entry(file, _ENCODER.encode(body.removesuffix(b"\n").decode()))
    if file.body != "json" or not body.startswith(_FENCE[0]) or not body.endswith(_FENCE[1]):
        raise ValueError("its body is neither text nor a block of JSON")
    value = body[len(_FENCE[0]) : -len(_FENCE[1])]
    msgspec.json.decode(value)
    return _make_entry(file, value)


def _make_entry(file: _FileContent, value: bytes) -> tuple[str, StoredEntry]:
    kept = {name: getattr(file, name) for name in _FIELDS if name != "key"}
    return file.key, StoredEntry(value=value, **kept)


def key_path(key: str) -> PathNames:
    """Return the folders of a key below its scope, and its file name without suffix."""
    segments = key.split("/")
    names = [encode_segment(segment) for segment in segments]
    # `thread/t1` in session/s1 is a key. Scope session/s1/thread/t1 has that very folder, so the key's name is escaped.
    if len(names) > 1 and segments[0] in SCOPE_KINDS:
        names[0] = _escape_first(names[0])
    return tuple(names)


def key_from_path(names: Sequence[str]) -> str | None:
    """Return the key of a path, or None if the path is no key's, such as a foreign file's."""
    segments = [_decode_segment(name) for name in names]
    if None in segments:
        return None
    key = "/".join(segment for segment in segments if segment is not None)
    return key if key_path(key) == tuple(names) else None


def is_digest(names: Sequence[str]) -> bool:
    """Return True if a path holds only the digest of a key, which is then stored in the file."""
    return any(name.startswith(_DIGEST_PREFIX) for name in names)


def folder_prefix(names: Sequence[str]) -> str | None:
    """Return the common prefix of all keys in a folder, or None if its names do not tell."""
    segments = [_decode_segment(name) for name in names]
    return None if None in segments else "".join(f"{segment}/" for segment in segments)


@lru_cache(maxsize=1024)
def scope_paths(scope: str) -> tuple[PathNames, ...]:
    """Return the folder of a scope, and older ones it may be in: operators were once called agents."""
    parts = parse_scope(scope).parts
    if not parts:
        return (("global",),)
    path = tuple(name for kind, id in parts for name in (kind, encode_segment(id)))
    return (path, ("agent", *path[1:])) if parts[0][0] == "operator" else (path,)


def equivalent_homes(home: PathNames) -> tuple[PathNames, ...]:
    """Return the same folders as `scope_paths`, from one of them."""
    if home[:1] not in (("operator",), ("agent",)):
        return (home,)
    return (("operator", *home[1:]), ("agent", *home[1:]))


@lru_cache(maxsize=8192)
def encode_segment(segment: str) -> str:
    """Return one segment as the name of a file or folder."""
    if not segment:
        return _EMPTY_NAME
    name = _UNSAFE_CHARACTERS.sub(lambda found: _percent_encode(found[0]), segment)
    if segment.partition(".")[0] in _DEVICES:
        name = _escape_first(name)
    return name if len(name) <= MAX_SEGMENT_BYTES else _DIGEST_PREFIX + hashlib.sha256(segment.encode()).hexdigest()


def _decode_segment(name: str) -> str | None:
    if _PLAIN.fullmatch(name):
        return name
    if name == _EMPTY_NAME:
        return ""
    if name.startswith(_DIGEST_PREFIX):
        return None
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError:
        return None


def _escape_first(name: str) -> str:
    return _percent_encode(name[0]) + name[1:]


def _percent_encode(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
