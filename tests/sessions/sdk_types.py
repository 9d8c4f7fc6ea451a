"""Data checked against the types that providers' SDKs declare for it."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter


def checked_against(adapter: TypeAdapter[Any], value: Any) -> Any:
    """The value as the type sees it. Raises if it does not fit, also deep inside."""
    return _gone_through(adapter.validate_python(value))


def _gone_through(value: Any) -> Any:
    """Iterables are only checked while they are gone through."""
    if isinstance(value, dict):
        return {key: _gone_through(item) for key, item in value.items()}
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    return [_gone_through(item) for item in value]
