"""The names under which a provider is told of tools and of who said something.

A model may call a tool by any name, and what it wrote is kept. Providers check the names of calls in the history as
strictly as those of definitions, so one that was invented would have every later request refused. For sending, such a
name is written as one made from it: the same in every request and wherever a result repeats it, and with a mark at its
end, so that it is not taken for a real tool. Valid names stay as they are. For export, all do.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

LONGEST: Final = 64
"""Every provider takes a name as long as this; some take longer ones."""
TOOL_NAME: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST}}}")
_NOT_IN_A_TOOL: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_NOT_IN_AN_AUTHOR: Final = re.compile(r"[\s<|\\/>]+")
_MARK: Final = 6


def is_tool_name(name: str) -> bool:
    """Whether every provider takes this as the name of a tool."""
    return TOOL_NAME.fullmatch(name) is not None


def tool_name(name: str) -> str:
    """The name of a tool as it is sent."""
    if is_tool_name(name):
        return name
    # Of the name alone, not of what stands around it: a message is counted by itself, and its cached prefix stays.
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
    words = _NOT_IN_A_TOOL.sub("_", name).strip("_")[: LONGEST - _MARK - 1].rstrip("_")
    return f"{words or 'tool'}_{mark}"


def author_name(name: str) -> str:
    """The name of who said something as it is sent: any letters, no blanks and none of the signs of a template."""
    return _NOT_IN_AN_AUTHOR.sub("_", name)[:LONGEST]
