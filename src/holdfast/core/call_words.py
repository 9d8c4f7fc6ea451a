"""A tool call as people read it: refund(17, 240). Whatever a model wrote, it can be shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.records.messages import ToolCallRequest


def call_words(request: ToolCallRequest, changed: Any = None, unsaid: Mapping[str, Any] | None = None) -> str:
    """A call as people read it: refund(17, 240). What nobody wrote and is used all the same, `unsaid`, has its name."""
    defaults = {} if unsaid is None else unsaid
    try:
        given = request.args if changed is None else _as_written(request.args, changed)
    except Exception:  # noqa: BLE001  # Whatever a model wrote, it is shown.
        given = request.arguments if changed is None else changed
    values = [value for name, value in given.items() if name not in defaults] if isinstance(given, dict) else [given]
    named = [f"{name}={_cut(_json(value))}" for name, value in defaults.items() if value is not None]
    return f"{request.name}({', '.join([*map(_short, values), *named])})"[:200]


def _as_written(before: Any, changed: Any) -> Any:
    """Changed arguments in the order in which the model wrote them: a journal keeps none."""
    if not isinstance(before, dict) or not isinstance(changed, dict):
        return changed
    return {**{name: changed[name] for name in before if name in changed}, **changed}


def _short(value: Any) -> str:
    return _cut(value if isinstance(value, str) else _json(value))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
