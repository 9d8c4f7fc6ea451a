"""Whether somebody has to agree before a tool runs. In doubt, somebody has to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import InvalidValue

Approval = bool | Callable[..., bool]

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def approving(tool: str, given: Any, parameters: Mapping[str, Any] | None) -> Approval:
    """`needs_approval` checked: yes, no, or a function of some of the arguments by name, or of `args` as a mapping."""
    if isinstance(given, bool):
        return given
    if not callable(given):
        raise InvalidValue(f"needs_approval of {tool} is {given!r:.40}. Say True, False, or give a function.")
    if inspect.iscoroutinefunction(given):
        raise InvalidValue(f"needs_approval of {tool} is async. Give a plain function: it decides by the arguments.")
    wanted = _wanted(given)
    unknown = [name for name in wanted or () if parameters is not None and name not in parameters]
    if unknown and wanted != ["args"]:
        raise InvalidValue(
            f"needs_approval of {tool} asks for {', '.join(unknown)}, which the tool does not take. "
            "Name its parameters as the tool does, or take one mapping named args."
        )
    return given  # type: ignore[no-any-return]


def is_needed(needs: Approval, args: Mapping[str, Any]) -> bool:
    """The verdict for these arguments. A predicate that fails, or does not decide, has not said no."""
    if isinstance(needs, bool):
        return needs
    try:
        wanted = _wanted(needs)
        if wanted == ["args"] and "args" not in args:
            verdict: Any = needs(dict(args))
        else:
            verdict = needs(**{name: value for name, value in args.items() if wanted is None or name in wanted})
        if inspect.iscoroutine(verdict):
            verdict.close()  # Nobody will await it, and it is no verdict.
            return True
        return bool(verdict)
    except Exception:  # noqa: BLE001  it is the caller's own code
        return True


def _wanted(predicate: Callable[..., Any]) -> list[str] | None:
    """The names that a predicate takes; None if it takes all."""
    try:
        parameters = inspect.signature(predicate).parameters
    except (TypeError, ValueError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return None
    return [name for name, one in parameters.items() if one.kind not in _MANY]
