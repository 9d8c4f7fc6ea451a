"""What says where a model is and how it is reached, checked before anything is sent there."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import InvalidValue


def checked_url(url: str, example: str) -> str:
    """An address that can be asked, with nothing in it that belongs elsewhere."""
    wrong = f"A model's address is like {example}"
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0
    except ValueError:
        raise InvalidValue(f"{wrong}. This one has no host, or no number as its port.") from None
    if parts.scheme not in {"http", "https"} or not named or not url.isprintable():
        raise InvalidValue(f"{wrong}. This one has no host, or is of another kind.")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise InvalidValue(f"{wrong}: no names, keys, ? or # in it. Give the key as api_key=….")
    return url


def checked_key(key: Any, name: str) -> str:
    """A key or another header's value that can be sent; empty if there is none."""
    if key is None or key == "":
        return ""
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key.strip() != key:
        raise InvalidValue(f"{name} must be one line of plain characters, without spaces around it.")
    return key


def seconds(value: Any, name: str, least: float) -> float:
    """A time that somebody may have to wait."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 86_400:
        raise InvalidValue(f"{name} must be seconds, from {least:g} to 86400, not {value!r:.40}.")
    return float(value)
