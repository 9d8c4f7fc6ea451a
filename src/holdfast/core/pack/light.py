"""Level light: blanks that say nothing go, and long texts keep their ends. Only prose is touched, where it plainly is.

Prose is told by its sentences and not by what it lacks: code, data and logs come in more kinds than could be listed.
Whatever else a text may be, it stays as it is: better a text too long than one that no longer parses.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.core.pack.prose import FENCE, is_prose
from holdfast.core.patterns import late
from holdfast.core.shortening import cut
from holdfast.core.soundness import changed
from holdfast.core.wire.parts import is_parts
from holdfast.records.messages import Message

_TRAILING: Final = late(r"(?m)(?<![ \t])[ \t]+$")
_BLANK_LINES: Final = late(r"\n{3,}")


def tidied(text: str) -> str:
    """Prose without trailing blanks and with at most one empty line in a row, outside of fences."""
    if "\n\n\n" not in text and " \n" not in text and "\t\n" not in text:
        return text
    kept, end = [], 0
    for fence in FENCE.finditer(text):
        kept += [_tidied(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*kept, _tidied(text[end:])])


def _tidied(text: str) -> str:
    if not is_prose(text):
        return text
    return _BLANK_LINES.sub("\n\n", _TRAILING.sub("", text))


def lightened(text: str, most: int, name: str | None) -> tuple[str, int]:
    """A text at level light, and how many characters its abbreviation left out."""
    shorter = tidied(text)
    if len(shorter) <= most or not is_prose(shorter):
        return shorter, 0
    return cut(shorter, most, name)


def is_light(message: Message, most: int) -> bool:
    """Whether there is plainly nothing to do, as for most messages."""
    text = message.content
    if message.tool_results or not isinstance(text, str):
        return not message.tool_results and text is None
    if len(text) > most:
        return False
    return "\n" not in text or ("\n\n\n" not in text and " \n" not in text and "\t\n" not in text)


def light(message: Message, most: int, name: str | None) -> tuple[Message, int]:
    """A message at level light: the same object if there is nothing to do."""
    content, left_out = _light(message.content, most, name)
    results = []
    for result in message.tool_results:
        value, missing = _light(result.result, most, name)
        left_out += missing
        results.append(result if value is result.result else msgspec.structs.replace(result, result=value))
    same = content is message.content and all(map(_same, results, message.tool_results))
    if same:
        return message, 0
    return changed(message, content=content, tool_results=tuple(results)), left_out


def _same(one: object, other: object) -> bool:
    return one is other


def _light(value: Any, most: int, name: str | None) -> tuple[Any, int]:
    """Text or parts; other data is never touched here. What does not change is the same object."""
    if isinstance(value, str):
        shorter, left_out = lightened(value, most, name)
        return (value, 0) if shorter == value else (shorter, left_out)
    if not is_parts(value):
        return value, 0
    shown, left_out = [], 0
    for part in value:
        text = part.get("text")
        if part.get("type") != "text" or not isinstance(text, str):
            shown.append(part)
            continue
        shorter, missing = lightened(text, most, name)
        left_out += missing
        shown.append(part if shorter == text else {**part, "text": shorter})
    return (value, 0) if all(map(_same, shown, value)) else (shown, left_out)
