"""Notes on tool calls, a line for each: its name, the arguments that matter, and the outcome.

Only as many calls are examined as can be shown; the others are only weighed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import islice
from typing import Any

import msgspec

from holdfast.core.compaction.sentences import clean_text, cut_end, split_sentences, split_words, word_set, word_worth
from holdfast.core.wire.calls import match_results
from holdfast.core.wire.parts import has_types
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult

MAX_NOTES = 120
"""Calls that are examined. More would not fit into any summary."""
ARGUMENT_CHARS, OUTCOME_CHARS, VALUE_CHARS = 90, 110, 60
"""Characters of the arguments, of the outcome, and of one value in either. A read-only call gets half."""
MAX_READ_CHARS, MAX_JSON_CHARS = 20_000, 500_000
"""Characters of a result that are read as text, and up to which it is parsed as JSON."""
MAX_LEAVES = 200
_READ_VERBS = word_set(
    "get list search find read fetch query lookup look show view check think calculate count describe load"
)


class NotedCall(msgspec.Struct, frozen=True, gc=False):
    """A call with its outcome."""

    name: str
    order: int
    request: ToolCallRequest | None = None
    result: ToolCallResult | None = None
    erased: bool = False
    """True if its result was erased."""

    @property
    def failed(self) -> bool:
        """True if it is marked as failed, or its result reads like it: many tools return their errors as text."""
        if self.result is None or self.result.is_error:
            return self.result is not None
        body = _join_parts(self.result.result)
        if isinstance(body, dict):
            return bool(body.get("error"))
        return isinstance(body, str) and body[:100].lstrip('{" \n').lower().startswith("error")

    @property
    def is_read_only(self) -> bool:
        """True if it only looks something up, judging by its name."""
        first = self.name.replace("-", "_").replace(".", "_").lower().strip("_").partition("_")[0]
        return first in _READ_VERBS or any(
            self.name.startswith(verb) and self.name[len(verb) :][:1].isupper() for verb in _READ_VERBS
        )


class ToolNote(msgspec.Struct, frozen=True, gc=False):
    """One line about a tool call."""

    order: int
    text: str
    value: float


def write_notes(messages: Sequence[Message], mentioned: Callable[[str], bool]) -> list[ToolNote]:
    """Return notes on the calls that matter most, in order. Values that were `mentioned` in words matter more."""
    calls = _list_calls(messages)
    weighed = ((_call_weight(call, len(calls)), call.order, call) for call in calls)
    chosen = sorted(nlargest(MAX_NOTES, weighed, key=lambda found: found[:2]), key=lambda found: found[1])
    latest: dict[str, ToolNote] = {}
    times: dict[str, int] = {}
    for weight, order, call in chosen:
        text = _note_text(call, mentioned)
        times[text] = times.pop(text, 0) + 1
        latest.pop(text, None)
        latest[text] = ToolNote(order=order, text=text, value=weight)
    whole = len(calls) <= MAX_NOTES  # Otherwise repetitions were not counted.
    return [
        note if times[text] == 1 or not whole else msgspec.structs.replace(note, text=f"{text} (×{times[text]})")  # noqa: RUF001
        for text, note in latest.items()
    ]


def _call_weight(call: NotedCall, calls: int) -> float:
    weight = 1.0 if call.is_read_only else 2.0
    if call.failed or (call.result is None and not call.erased) or (call.result and call.result.interrupted):
        weight += 0.5
    elif call.is_read_only and not (call.result and call.result.result):
        weight -= 0.5  # It found nothing, or was a note to itself.
    return round(weight + 0.5 * (call.order + 1) / calls, 6)


def _list_calls(messages: Sequence[Message]) -> list[NotedCall]:
    """Return every call with its result, and results whose call is not among the messages."""
    found = match_results(messages)
    asked = found.calls()
    calls: list[NotedCall] = []
    for at, message in enumerate(messages):
        if message.erased:
            continue
        for position, request in enumerate(message.tool_calls):
            place = found.answers.get((at, position))
            result = messages[place[0]].tool_results[place[1]] if place else None
            erased = place is not None and messages[place[0]].erased
            calls.append(NotedCall(_tool_name(request.name), len(calls), request, None if erased else result, erased))
        alone = (ToolCallResult(result=message.content),) if message.role == "tool" else ()
        for position, result in enumerate(message.tool_results or alone):
            if (at, position) not in asked and found.refused.get((at, position)) != "duplicate_result":
                calls.append(NotedCall(_tool_name(message.name), len(calls), result=result))
    return calls


def _tool_name(given: str | None) -> str:
    return clean_text(given or "")[:VALUE_CHARS] or "tool"


def _note_text(call: NotedCall, mentioned: Callable[[str], bool]) -> str:
    part = 2 if call.is_read_only else 1
    asked = _find_leaves(_parse_json(call.request.arguments)) if call.request else []
    thread = f"{call.name}({_render_values(asked, mentioned, ARGUMENT_CHARS // part, '=', ', ')})"
    if call.result is None:
        return f"{thread}: its result was erased" if call.erased else f"{thread}: no result yet"
    if call.result.interrupted:
        return f"{thread}: interrupted, outcome unknown"
    body = call.result.result
    data = _parse_json(body) if isinstance(body, str) else _join_parts(body)
    if isinstance(data, str):
        outcome = _summarise_text(data)
    else:
        known = {str(value) for _, value in asked}  # Values that were asked for are not repeated.
        told = [(name, value) for name, value in _find_leaves(data) if str(value) not in known]
        outcome = _render_values(told, mentioned, OUTCOME_CHARS // part, " ", "; ")
    if call.failed:
        return f"{thread}: failed: {outcome or 'no reason given'}"
    return f"{thread}: {outcome or ('nothing' if data in ([], {}) else 'done')}"


def _parse_json(text: str) -> Any:
    """Parse JSON; return anything else as text."""
    try:
        return msgspec.json.decode(text) if len(text) <= MAX_JSON_CHARS and text[:1] in ("{", "[") else text
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


def _join_parts(value: Any) -> Any:
    """Return the text of a list of parts; anything else as it is."""
    if has_types(value):
        return " ".join(str(part.get("text") or f"[{part['type']}]") for part in value)[:MAX_READ_CHARS]
    return value


def _summarise_text(text: str) -> str:
    """Return a short result whole, else its most informative sentence."""
    short = clean_text(text[:MAX_READ_CHARS])
    if len(short) <= OUTCOME_CHARS:
        return short

    def density(sentence: str) -> float:
        found = dict.fromkeys(split_words(sentence))
        return round(sum(map(word_worth, found)) / (8 + len(found)), 6)

    best = max(islice(split_sentences(text[:MAX_READ_CHARS]), MAX_LEAVES), key=density, default="")
    return cut_end(clean_text(best), OUTCOME_CHARS)


def _render_values(
    values: list[tuple[str, Any]], mentioned: Callable[[str], bool], room: int, of: str, then: str
) -> str:
    """Return the values that matter most, under their names, in their original order."""
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for at, (name, value) in enumerate(values):
        if text := cut_end(clean_text(str(value)), VALUE_CHARS):
            inside = split_words(text)
            weight = sum(map(word_worth, inside)) / (1 + len(inside)) + (1.0 if any(map(mentioned, inside)) else 0.0)
            found.setdefault((name, text), (round(weight, 6), -at))
    kept: list[tuple[str, str]] = []
    for item in sorted(found, key=found.__getitem__, reverse=True):
        if (length := sum(map(len, item)) + len(of + then)) <= room or not kept:
            room -= length
            kept.append(item)
    by_name: dict[str, list[str]] = {}
    for name, text in sorted(kept, key=lambda item: -found[item][1]):
        by_name.setdefault(name, []).append(text)
    parts = [f"{name}{of}{'/'.join(texts)}" if name else ", ".join(texts) for name, texts in by_name.items()]
    return then.join(parts) + (f"{then}…" if len(kept) < len(found) else "")


def _find_leaves(data: Any) -> list[tuple[str, Any]]:
    """Return the plain values in nested data with the name nearest to each, breadth first, up to a limit."""
    queue: deque[tuple[str, Any]] = deque([("", data)])
    found: list[tuple[str, Any]] = []
    while queue and len(found) < MAX_LEAVES:
        name, value = queue.popleft()
        if isinstance(value, dict):
            queue.extend((clean_text(str(key))[:40], inner) for key, inner in list(value.items())[:MAX_LEAVES])
        elif isinstance(value, list | tuple):
            queue.extend((name, inner) for inner in value[:MAX_LEAVES])
        elif value is not None and value != "":
            found.append((name, value))
    return found
