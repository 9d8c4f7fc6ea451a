"""Docstrings read for a model: what a function does, and what each of its parameters means.

The first paragraph describes the function. Parameters are found in the three ways that people write them:

    Args:                     Parameters              :param city: Where to look.
        city: Where to look.  ----------
                              city : str
                                  Where to look.

Whatever is not understood is left out: a docstring is never a reason to refuse a function.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

_SECTIONS: Final = frozenset({"args", "arguments", "parameters", "params", "attributes", "other parameters"})
_GOOGLE: Final = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY: Final = re.compile(r"^([*\w]+(?:\s*,\s*[*\w]+)*)\s*(?::.*)?$")
_RULE: Final = re.compile(r"^-{3,}$")
_SPHINX: Final = re.compile(r"^:(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*?\s)?(\*{0,2}\w+)\s*:\s*(.*)$")
_FIELD: Final = re.compile(r"^:\w[^:]*:")


def described(doc: str | None) -> tuple[str | None, dict[str, str]]:
    """The description in a docstring, if it has one, and that of each parameter it names."""
    lines = inspect.cleandoc(doc).splitlines() if doc else []
    found = {**dict(_google(lines)), **dict(_numpy(lines)), **dict(_sphinx(lines))}
    return _first_paragraph(lines), {name.lstrip("*"): text for name, text in found.items() if text}


def _first_paragraph(lines: list[str]) -> str | None:
    taken: list[str] = []
    for at, line in enumerate(lines):
        if not line.strip() or _FIELD.match(line) or _begins_section(lines, at):
            break
        taken.append(line.strip())
    return " ".join(taken) or None


def _begins_section(lines: list[str], at: int) -> bool:
    if _is_underlined(lines, at):
        return True
    return lines[at].endswith(":") and lines[at][:-1].lower() in _SECTIONS


def _is_underlined(lines: list[str], at: int) -> bool:
    return at + 1 < len(lines) and bool(lines[at].strip()) and _RULE.match(lines[at + 1].strip()) is not None


def _google(lines: list[str]) -> Iterator[tuple[str, str]]:
    for at, line in enumerate(lines):
        heading = line.strip()
        if heading.endswith(":") and heading[:-1].lower() in _SECTIONS and line == line.lstrip():
            yield from _entries(_below(lines[at + 1 :]))


def _below(lines: list[str]) -> list[str]:
    """The indented lines that follow a heading."""
    taken = []
    for line in lines:
        if line.strip() and line == line.lstrip():
            break
        taken.append(line)
    return taken


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """`name (type): text`, each with the deeper lines that go on with it."""
    depth = min((_indent(line) for line in lines if line.strip()), default=0)
    name, words = "", list[str]()
    for line in lines:
        started = _GOOGLE.match(line.strip()) if _indent(line) == depth and line.strip() else None
        if started is None:
            words.append(line.strip())
            continue
        if name:
            yield name, _joined(words)
        name, words = started[1], [started[2]]
    if name:
        yield name, _joined(words)


def _numpy(lines: list[str]) -> Iterator[tuple[str, str]]:
    inside, names, words = False, list[str](), list[str]()
    for at, line in enumerate(lines):
        if _is_underlined(lines, at):
            yield from _shared(names, words)
            inside, names, words = line.strip().lower() in _SECTIONS, [], []
        elif inside and line.strip() and line == line.lstrip() and not _RULE.match(line):
            yield from _shared(names, words)
            named = _NUMPY.match(line)
            names, words = [one.strip() for one in named[1].split(",")] if named else [], []
        elif inside and not _RULE.match(line.strip()):
            words.append(line.strip())
    yield from _shared(names, words)


def _shared(names: list[str], words: list[str]) -> Iterator[tuple[str, str]]:
    """`x, y : int` describes both."""
    text = _joined(words)
    for name in names:
        yield name, text


def _sphinx(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, words = "", list[str]()
    for line in lines:
        started = _SPHINX.match(line.strip())
        if started is None and name and line.strip() and not _FIELD.match(line.strip()):
            words.append(line.strip())
            continue
        if name:
            yield name, _joined(words)
        name, words = (started[1], [started[2]]) if started else ("", [])
    if name:
        yield name, _joined(words)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(words: list[str]) -> str:
    return " ".join(word for word in words if word)
