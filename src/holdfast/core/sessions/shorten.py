"""Make messages fit by leaving out the middle of long texts, never by tearing a call from its result.

Tool outputs are shortened first, then texts, and the arguments of calls only if nothing else helps. Each keeps its
beginning and its end around a marker that gives the number of missing characters. Images, files and reasoning stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from holdfast.core.sessions.rounds import change_message, keep_calls, keep_results
from holdfast.core.sessions.tokens import CountMessage
from holdfast.core.wire.calls import json_text, match_results
from holdfast.core.wire.parts import is_parts
from holdfast.records.messages import Message, Part, ToolCallRequest, ToolCallResult

HandleLookup = Callable[[Message], str | None]
"""A function from a message to the handle by which a model can read it whole."""
CutTarget = Literal["results", "text", "arguments", "calls"]
_CUT_ORDER: tuple[CutTarget, ...] = ("results", "text", "arguments")
SHORTENED_KEY = "SHORTENED_JSON"
"""The key for what is left of arguments, as text: no tool accepts it, should a model write it itself."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """An omission from one message: characters of results, text or arguments, or calls with their results."""

    index: int
    """The index of the message in the window, from 0."""
    what: CutTarget
    left_out: int


class ShortenedMessages(msgspec.Struct, frozen=True):
    """Messages after shortening. If `tokens` is too large, they are as short as they can get."""

    messages: list[Message]
    cuts: tuple[Cut, ...]
    tokens: int
    recipe: tuple[str, ...] = ()
    """The steps of the shortening, in order; `apply_recipe` repeats them."""


def omission_marker(left_out: int, name: str | None = None) -> str:
    """Return the marker for characters that were left out, with the handle to read them by."""
    return f"[… {left_out} characters left out …]" if name is None else f"[… {left_out} characters left out: {name} …]"


def cut_text(text: str, keep: int, name: str | None = None) -> tuple[str, int]:
    """Cut a text to `keep` characters from both ends, if that saves any; return it and the number missing."""
    left_out = len(text) - keep
    if left_out <= 0 or left_out <= len(between := omission_marker(left_out, name)):
        return text, 0
    head = (keep + 1) // 2
    return f"{text[:head]}{between}{text[head + left_out :]}", left_out


def fit_messages(
    messages: Sequence[Message],
    room: int,
    count: CountMessage,
    *,
    name: HandleLookup | None = None,
    order: Sequence[CutTarget] = _CUT_ORDER,
) -> ShortenedMessages:
    """Shorten the messages of one round to at most `room` tokens, as far as possible, keeping as much as fits."""
    form = least = ShortenedMessages(list(messages), (), sum(map(count, messages)))
    if form.tokens <= room:
        return form
    for what in order:
        cut = partial(_shorten, form, what, count=count, name=name)
        shortest = cut(0)
        if shortest.tokens <= room:
            return _find_longest(cut, room, shortest)
        least = min(least, shortest, key=lambda each: each.tokens)
        form = shortest
    return least


def apply_recipe(
    messages: Sequence[Message], recipe: Sequence[str], name: HandleLookup | None = None
) -> ShortenedMessages:
    """Shorten messages by the steps of an earlier recipe."""
    form: ShortenedMessages = ShortenedMessages(list(messages), (), 0)
    for step in recipe:
        what, _, amount = step.partition(":")
        if what == "calls":
            fewer = keep_newest_calls(form.messages, int(amount))
            form = form if fewer is None else ShortenedMessages(fewer.messages, form.cuts + fewer.cuts, 0)
        elif what in _CUTTERS:
            form = _shorten(form, what, int(amount), lambda _: 0, name)
    return form


def keep_newest_calls(messages: Sequence[Message], most: int) -> ShortenedMessages | None:
    """Keep the newest calls of an assistant message that fit into `most` messages with their results, or None."""
    asked, answers = messages[0], match_results(messages).answers
    holders: set[int] = set()
    first = len(asked.tool_calls)
    while first and len(holders | {answers[0, first - 1][0]}) < most:
        first -= 1
        holders.add(answers[0, first][0])
    if not holders:
        return None
    calls = range(first, len(asked.tool_calls))
    kept = [keep_calls(asked, calls)]
    for index in sorted(holders):
        positions = sorted(answers[0, call][1] for call in calls if answers[0, call][0] == index)
        kept.append(keep_results(messages[index], positions))
    return ShortenedMessages(kept, (Cut(index=0, what="calls", left_out=first),), 0, (f"calls:{most}",))


def _find_longest(cut: Callable[[int], ShortenedMessages], room: int, shortest: ShortenedMessages) -> ShortenedMessages:
    """Find the longest form that fits. However long the text is, little more than what fits is counted."""
    best, low, high = shortest, 0, max(room, 16)
    longest = max(each.left_out for each in shortest.cuts)
    while high < longest and (tried := cut(high)).tokens <= room:
        best, low, high = tried, high, high * 2
    while high - low > 4 + low // 128:
        middle = (low + high) // 2
        tried = cut(middle)
        if tried.tokens <= room:
            best, low = tried, middle
        else:
            high = middle
    return best


def _shorten(
    form: ShortenedMessages, what: CutTarget, keep: int, count: CountMessage, name: HandleLookup | None = None
) -> ShortenedMessages:
    """Cut every output or text of more than `keep` characters to that length."""
    shown: list[Message] = []
    cuts = list(form.cuts)
    tokens = form.tokens
    for index, message in enumerate(form.messages):
        shorter, left_out = _CUTTERS[what](message, keep, None if name is None else name(message))
        if left_out:
            cuts.append(Cut(index=index, what=what, left_out=left_out))
            tokens += count(shorter) - count(message)
        shown.append(shorter)
    return ShortenedMessages(shown, tuple(cuts), tokens, (*form.recipe, f"{what}:{keep}"))


def _cut_results(message: Message, keep: int, name: str | None) -> tuple[Message, int]:
    left_out = 0
    results: list[ToolCallResult] = []
    for result in message.tool_results:
        value: Any = result.result
        if is_parts(value):
            value, missing = _cut_parts(value, keep, name)
        else:
            value, missing = cut_text(value if isinstance(value, str) else json_text(value), keep, name)
        left_out += missing
        results.append(msgspec.structs.replace(result, result=value) if missing else result)
    return (change_message(message, tool_results=tuple(results)), left_out) if left_out else (message, 0)


def _cut_content(message: Message, keep: int, name: str | None) -> tuple[Message, int]:
    if isinstance(message.content, str):
        content: Any
        content, left_out = cut_text(message.content, keep, name)
    else:
        content, left_out = _cut_parts(message.content or [], keep, name)
    return (change_message(message, content=content), left_out) if left_out else (message, 0)


def _cut_arguments(message: Message, keep: int, name: str | None) -> tuple[Message, int]:
    left_out = 0
    calls: list[ToolCallRequest] = []
    for call in message.tool_calls:
        text, missing = cut_text(call.arguments, keep, name)
        shorter = json_text({SHORTENED_KEY: text})
        helps = len(shorter) < len(call.arguments)
        left_out += missing if helps else 0
        calls.append(msgspec.structs.replace(call, arguments=shorter) if helps else call)
    return (change_message(message, tool_calls=tuple(calls)), left_out) if left_out else (message, 0)


def _cut_parts(parts: list[Part], keep: int, name: str | None) -> tuple[list[Part], int]:
    shown: list[Part] = []
    left_out = 0
    for part in parts:
        text = part.get("text")
        if part.get("type") in ("text", "refusal") and isinstance(text, str):
            shorter, missing = cut_text(text, keep, name)
            left_out += missing
            shown.append({**part, "text": shorter} if missing else part)
        else:
            shown.append(part)
    return shown, left_out


_CUTTERS: dict[CutTarget, Callable[[Message, int, str | None], tuple[Message, int]]] = {
    "results": _cut_results,
    "text": _cut_content,
    "arguments": _cut_arguments,
}
