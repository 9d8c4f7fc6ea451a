"""A tool call as people read it: refund(17, 240). Whatever a model wrote, it can be shown."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.records.messages import ToolCallRequest


def call_words(request: ToolCallRequest, changed: Any = None) -> str:
    """A call as people read it: refund(17, 240)."""
    try:
        given = request.args if changed is None else _as_written(request.args, changed)
    except Exception:  # noqa: BLE001  # Whatever a model wrote, it is shown.
        given = request.arguments
    values = list(given.values()) if isinstance(given, dict) else [given]
    return f"{request.name}({', '.join(_short(value) for value in values)})"[:200]


def _as_written(before: Any, changed: Any) -> Any:
    """Changed arguments in the order in which the model wrote them: a journal keeps none."""
    if not isinstance(before, dict) or not isinstance(changed, dict):
        return changed
    return {**{name: changed[name] for name in before if name in changed}, **changed}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "replace")
    return text if len(text) <= 60 else f"{text[:59]}…"
