"""Addresses and keys of model endpoints, checked before anything is sent. No error repeats a key."""

from __future__ import annotations

from typing import Any
from urllib.parse import SplitResult, urlsplit

from holdfast.errors import InvalidValue


def split_address(url: str, wrong: str) -> SplitResult:
    """Split an http(s) URL with a host; otherwise raise an error that begins with `wrong`."""
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0
    except ValueError:
        raise InvalidValue(f"{wrong}. This one has no host, or no number as its port.") from None
    if parts.scheme not in {"http", "https"} or not named or not url.isprintable():
        raise InvalidValue(f"{wrong}. This one has no host, or is of another kind.")
    return parts


def has_credentials(parts: SplitResult) -> bool:
    """Return True if a URL holds a name, a password or a query, which may be a key."""
    return parts.username is not None or parts.password is not None or bool(parts.query)


def check_key(key: Any, name: str) -> str:
    """Return a key, or another header's value, that can be sent; empty if there is none."""
    if key is None or key == "":
        return ""
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key.strip() != key:
        raise InvalidValue(f"{name} must be one line of plain characters, without spaces around it.")
    return key
