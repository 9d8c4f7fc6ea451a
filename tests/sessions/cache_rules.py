"""What Anthropic refuses about marks for its cache, written down independently of the code that puts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MOST_MARKS = 4
LIVES = {None: 5, "5m": 5, "1h": 60}
"""How long what is up to a mark is cached, in minutes."""


def cache_problems(kwargs: dict[str, Any]) -> Iterable[str]:
    """At most four marks, where they may be, and in the order of the request none that lives longer than one before."""
    found = [(str(name), mark) for name, mark in marks(kwargs)]
    if len(found) > MOST_MARKS:
        yield f"{len(found)} marks for the cache"
    lives = []
    for kind, mark in found:
        if kind in ("thinking", "redacted_thinking", "blank text"):
            yield f"a mark on {kind}"
        if mark.get("type") != "ephemeral" or set(mark) - {"type", "ttl"} or mark.get("ttl") not in LIVES:
            yield f"a mark {mark!r:.40}"
        else:
            lives.append(LIVES[mark.get("ttl")])
    if lives != sorted(lives, reverse=True):
        yield "a mark that lives longer than one before it"


def marks(kwargs: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Every mark for the cache in the order of the request: tools, system prompt, messages; and what it is on."""
    system = kwargs.get("system")
    for place in (kwargs.get("tools", []), system if isinstance(system, list) else [], kwargs["messages"]):
        for item in place:
            yield from _marks_in(item)


def _marks_in(item: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """What is inside a block comes before the block's own mark, which covers it."""
    content = item.get("content")
    for inner in content if isinstance(content, list) else ():
        yield from _marks_in(inner)
    if item.get("cache_control") is not None:
        blank = item.get("type") == "text" and not item["text"].strip()
        yield "blank text" if blank else str(item.get("type")), item["cache_control"]
