"""Names on disk: every scope and key has one path, no two share one, and none leads out of the folder.

Names are encoded, never cleaned. Small letters, digits, `-`, `_` and single dots inside a name stay as they are;
whatever a file system may fold, forbid, reserve or confuse becomes `%XX`, byte by byte of UTF-8. So a name
says which key it is, on disks that know no case and on those that know no colon. `%` is followed by two digits in
capitals or by one of two words that are no digits: the empty segment, and the digest of one that is too long.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from holdfast.records.scope import KINDS, parse_scope

Path = tuple[str, ...]

SUFFIXES: Final = {"json": ".json", "markdown": ".md"}
KINDS_OF_FILE: Final = {suffix: kind for kind, suffix in SUFFIXES.items()}
LONGEST: Final = 200
"""Bytes of an encoded segment. File systems take 255, and a suffix comes behind it."""

_EMPTY = "%empty"
_DIGEST = "%sha256-"
_PLAIN = re.compile(r"[a-z0-9_-]+")
_ODD = re.compile(r"[^a-z0-9_.-]|\A\.|\.\Z|\.(?=\.)|(?<=\.)\.|\.(?=(?:json|md)\Z)")
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
)
"""What Windows takes for a device, also with a suffix."""


def key_path(key: str) -> Path:
    """The folders of a key below its scope, and its file without suffix."""
    segments = key.split("/")
    names = [encoded(segment) for segment in segments]
    # `thread/t1` in session/s1 is a key. Scope session/s1/thread/t1 has that very folder, so the key's is spelled out.
    if len(names) > 1 and segments[0] in KINDS:
        names[0] = _spelled(names[0])
    return tuple(names)


def key_of(names: Sequence[str]) -> str | None:
    """The key that has this path; None if no key has, because somebody else put something there."""
    segments = [_decoded(name) for name in names]
    if None in segments:
        return None
    key = "/".join(segment for segment in segments if segment is not None)
    return key if key_path(key) == tuple(names) else None


def digested(names: Sequence[str]) -> bool:
    """Whether a path only says the digest of a key, which then stands in its file."""
    return any(name.startswith(_DIGEST) for name in names)


def folder_text(names: Sequence[str]) -> str | None:
    """What every key in a folder begins with, or None if its names do not say."""
    segments = [_decoded(name) for name in names]
    return None if None in segments else "".join(f"{segment}/" for segment in segments)


@lru_cache(maxsize=1024)
def scope_paths(scope: str) -> tuple[Path, ...]:
    """The folder of a scope, and others that it may be found in: operators were once called agents."""
    parts = parse_scope(scope).parts
    if not parts:
        return (("global",),)
    path = tuple(name for kind, id in parts for name in (kind, encoded(id)))
    return (path, ("agent", *path[1:])) if parts[0][0] == "operator" else (path,)


def homes_of(home: Path) -> tuple[Path, ...]:
    """The same, from one of the folders."""
    if home[:1] not in (("operator",), ("agent",)):
        return (home,)
    return (("operator", *home[1:]), ("agent", *home[1:]))


@lru_cache(maxsize=8192)
def encoded(segment: str) -> str:
    """One segment as the name of a file or folder."""
    if not segment:
        return _EMPTY
    name = _ODD.sub(lambda found: _percent(found[0]), segment)
    if segment.partition(".")[0] in _DEVICES:
        name = _spelled(name)
    return name if len(name) <= LONGEST else _DIGEST + hashlib.sha256(segment.encode()).hexdigest()


def _decoded(name: str) -> str | None:
    if _PLAIN.fullmatch(name):
        return name
    if name == _EMPTY:
        return ""
    if name.startswith(_DIGEST):
        return None
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError:
        return None


def _spelled(name: str) -> str:
    return _percent(name[0]) + name[1:]


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
