"""Tools by their names: `module:name`, where the module is found as Python finds it, or in this folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidValue

WRITE = "Write module:name, as in shop:refund for refund in shop.py, or the name of a list of tools."


def tools_named(names: Sequence[str]) -> list[Any]:
    """What the names stand for, in order."""
    found: list[Any] = []
    for name in names:
        one = _found(name)
        found += one if isinstance(one, list | tuple) else [one]
    return found


def _found(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise InvalidValue(f"{name!r:.80} names no tool. {WRITE}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded: Any = importlib.import_module(module)
    except Exception as error:
        # Whatever its code raises: whoever wrote it needs the reason, not our stack.
        raise InvalidValue(f"{module} cannot be imported: {type(error).__name__}: {error}. {WRITE}") from error
    for part in attribute.split("."):
        if not hasattr(loaded, part):
            raise InvalidValue(f"{module} has no {attribute}. {WRITE}")
        loaded = getattr(loaded, part)
    return loaded
