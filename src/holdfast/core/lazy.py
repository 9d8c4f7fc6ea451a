"""Work that waits for its first use: patterns are compiled, modules imported, and types prepared for msgspec.

All of it keeps the import of holdfast fast. msgspec analyses a type when it is first used, and two threads that do so
at once for the same type can crash the process, so every type that is decoded or converted to goes through here first.
The lock is set from above: this module does not know about threads.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any, cast

import msgspec


class _LazyPattern:
    """A stand-in that behaves like the pattern it compiles on first use."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)  # Found without a call from now on.
        return found


def lazy_pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled when it is first used."""
    return cast(re.Pattern[str], _LazyPattern(text, flags))


def lazy_names(module: str, sources: dict[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` for names that are imported on first use, given by the modules that hold them."""
    source_of = {name: source for source, names in sources.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in source_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = getattr(import_module(source_of[name]), name)
        vars(sys.modules[module])[name] = found  # Found without a call from now on.
        return found

    return find


class _LazyModule:
    """A stand-in for a module; it gives up its place to the module when it is first used."""

    def __init__(self, importer: str, name: str) -> None:
        self._importer, self._name = importer, name

    def __getattr__(self, attribute: str) -> Any:
        module, names = import_module(self._name), vars(sys.modules[self._importer])
        alias = self._name.rpartition(".")[2]
        if names.get(alias) is self:
            names[alias] = module
        return getattr(module, attribute)


def lazy_module(importer: str, name: str) -> Any:
    """Return a module of Python's own library that is imported when it is first used.

    The importing module holds it under the last part of its name: `json = lazy_module(__name__, "json")`.
    """
    return _LazyModule(importer, name)


_type_lock: list[AbstractContextManager[Any]] = [nullcontext()]


def set_type_lock(lock: AbstractContextManager[Any]) -> None:
    """Analyse types under this lock from now on."""
    _type_lock[0] = lock


@cache
def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the JSON decoder of a type, created once."""
    with _type_lock[0]:
        return msgspec.json.Decoder(kind)


def convert(value: Any, kind: Any, **how: Any) -> Any:
    """Convert plain data to a type."""
    try:
        decoder(kind)  # Let msgspec analyse the type, if it can; a faulty type raises below.
    except TypeError:
        pass  # Not hashable, or with parts that need a hook.
    return msgspec.convert(value, kind, **how)
