"""A request's worth of a stored conversation: read from the end until the budget is full, whole rounds only.

The work follows the budget and not the history: counts come with the rows, and bodies are read only of
what is shown. Counts by a tokenizer that a message was not counted with are made once and noted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.counting import Framing, counted_as, framing_of, message_tokens, system_tokens, tools_tokens
from holdfast.core.windows import Window, sliding
from holdfast.errors import BudgetTooSmall, InvalidValue, OutcomeUnknown, Refused, Unavailable
from holdfast.flow import summing
from holdfast.flow.change import Decided, append
from holdfast.flow.conversing import counting
from holdfast.flow.lines import Place, bodies, line_of, places, runs, session_of
from holdfast.flow.pinning import leading, with_pinned
from holdfast.flow.sessions import session_texts, session_tools
from holdfast.flow.showing import current
from holdfast.ports import Acting, Ports, Tokenizer
from holdfast.records.events.conversations import TokensCounted
from holdfast.records.events.envelope import Draft
from holdfast.records.lines import SessionState, Summary
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import ConversationSlice, Packed
from holdfast.records.rows import Span

MORE = 16
"""Messages that are read beyond a full budget, so that the round at its edge is seen whole."""


class _Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What comes before the conversation, with what it costs."""

    system: str | None
    tools: tuple[ToolDef, ...]
    tokens: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be shown, what of it is taken already, and how many messages are the first instructions."""

    budget: int
    brief: int
    max_messages: int | None
    leading: int


def pack(
    ports: Ports, acting: Acting, stream: str, *, budget: int | None = None, max_messages: int | None = None
) -> Packed:
    """The system prompt, tools, summaries and newest rounds that fit a budget; by default, the model's window."""
    session = session_of(stream)
    current(ports, acting, session)  # Counted for the model that it is held with now, whoever changed that.
    tokenizer, info = counting(ports, acting, stream)
    budget = info.input_budget if budget is None else _checked("budget", budget)
    if max_messages is not None:
        _checked("max_messages", max_messages)
    framing = framing_of(info.provider, info.name)
    brief = _brief(ports, acting, session, tokenizer, framing)
    room = max(budget - brief.tokens, 0)
    standing = _standing(ports, acting, stream, tokenizer, framing, room)
    kept_as = counted_as(tokenizer.name, framing)
    found = _candidates(ports, acting, stream, standing, kept_as, room, max_messages)
    messages, counts = _counted(ports, acting, found, tokenizer, framing)

    def count(message: Message) -> int:
        known = counts.get(id(message))
        return message_tokens(message, tokenizer.count, framing) if known is None else known

    line = line_of(ports, acting, stream)
    first = {(one.stream, one.version) for one in leading(ports, acting, stream)}
    instructions = sum(1 for place in found if (place.stream, place.version) in first)
    limits = Limits(budget=budget, brief=brief.tokens, max_messages=max_messages, leading=instructions)
    shown, window = _fitted(messages, standing, count, limits, tokenizer, framing)
    own = tokenizer.exact and info.known and tokenizer.name == info.tokenizer
    covered = sum(summary.messages for summary in shown)
    slice = ConversationSlice(
        messages=tuple(window.messages),
        message_count=len(window.messages),
        truncated_count=max(line.messages - covered - sum(1 for one in window.messages if one.id), 0),
        estimated_tokens=sum(map(count, window.messages)),
    )
    return Packed(
        system=brief.system,
        tools=brief.tools,
        summaries=tuple(shown),
        conversation=slice,
        tokens=window.tokens or 0,
        budget=budget,
        model=info.name or None,
        tokenizer=tokenizer.name,
        exact=own and not any(map(_guessed, window.messages)),
        shortened=len(window.shortened),
    )


def _guessed(message: Message) -> bool:
    """Whether it holds something whose tokens no tokenizer counts: an image or a file."""
    parts = [*(message.content if isinstance(message.content, list) else ())]
    for result in message.tool_results:
        parts += result.result if isinstance(result.result, list) else ()
    return any(isinstance(part, dict) and part.get("type") in ("image", "file") for part in parts)


def _checked(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidValue(f"{name} must be a whole number of at least 1, not {value!r}.")
    return value


def _brief(ports: Ports, acting: Acting, session: str, tokenizer: Tokenizer, framing: Framing) -> _Brief:
    known = current(ports, acting, session).session or SessionState()
    system = session_texts(ports, acting, session, known, ("system",)).get("system")
    tools = session_tools(ports, acting, known)
    tokens = system_tokens(system, tokenizer.count, framing) + tools_tokens(tools, tokenizer.count, framing)
    return _Brief(system=system, tools=tools, tokens=tokens + framing.reply)


def _standing(
    ports: Ports, acting: Acting, stream: str, tokenizer: Tokenizer, framing: Framing, room: int
) -> list[Summary]:
    """The newest summaries that leave at least half of the room to the conversation, oldest first."""
    found: list[Summary] = []
    left = room // 2
    for summary in summing.standing(ports, acting, stream):
        left -= summing.summary_tokens(summary.text, tokenizer, framing)
        if left < 0 and found:
            break
        found.append(summary)
    return found[::-1]


def _fitted(
    messages: Sequence[Message],
    standing: Sequence[Summary],
    count: summing.CountMessage,
    limits: Limits,
    tokenizer: Tokenizer,
    framing: Framing,
) -> tuple[list[Summary], Window]:
    """The window beside as many of the newest summaries as leave room for it."""
    shown = list(standing)
    while True:
        reserve = limits.brief + sum(summing.summary_tokens(one.text, tokenizer, framing) for one in shown)
        most = None if limits.max_messages is None else limits.max_messages - len(shown)
        try:
            if most is not None and most < 1:
                raise BudgetTooSmall(required=len(shown) + 1)
            window = sliding(
                messages,
                max_messages=most,
                max_tokens=limits.budget,
                count=count,
                reserve=reserve,
                leading=limits.leading,
            )
        except BudgetTooSmall:
            if not shown:
                raise
            shown.pop(0)
            continue
        return shown, window


def _candidates(
    ports: Ports,
    acting: Acting,
    stream: str,
    standing: Sequence[Summary],
    kept_as: str,
    room: int,
    max_messages: int | None,
) -> list[Place]:
    """Places from the end until the budget is full, and those that are pinned, oldest first."""
    found: list[Place] = []
    torn: set[tuple[str, int]] = set()
    tokens = beyond = 0
    begun = False
    for place in places(ports, acting, stream):
        if summing.is_covered(place, standing):
            break  # Summaries cover a line from its beginning: what is older is covered as well.
        full = begun and (tokens > room or (max_messages is not None and len(found) > max_messages))
        if full and (not torn or beyond == MORE):
            break
        beyond += full
        found.append(place)
        if place.row["role"] == "tool":
            torn.add((place.stream, place.round))  # In a branch its call may be in another stream, near it.
        else:
            torn.discard((place.stream, place.version))
            begun = True  # Late results alone are no round.
        # By another tokenizer it may be up to three times as much: read too far rather than stop too early.
        counted = int(place.row["tokens"] or 0)
        tokens += counted if place.row["tokenizer"] == kept_as else counted // 3
    return with_pinned(ports, acting, stream, found)


def _counted(
    ports: Ports, acting: Acting, found: Sequence[Place], tokenizer: Tokenizer, framing: Framing
) -> tuple[list[Message], dict[int, int]]:
    """The messages at some places and what each costs with this tokenizer, by identity."""
    messages = bodies(ports, acting, found)
    kept_as = counted_as(tokenizer.name, framing)
    strange = [place for place in found if place.row["tokenizer"] != kept_as or place.row["tokens"] is None]
    known = _known_counts(ports, acting, strange, kept_as)
    fresh: dict[str, list[tuple[int, int]]] = {}
    counts: dict[int, int] = {}
    for index, place in enumerate(found):
        message = messages[index]
        tokens = message.tokens if message.tokenizer == kept_as else known.get((place.stream, place.version))
        if tokens is None:
            tokens = message_tokens(message, tokenizer.count, framing)
            fresh.setdefault(place.stream, []).append((place.version, tokens))
        messages[index] = replace(message, tokens=tokens, tokenizer=kept_as)
        counts[id(messages[index])] = tokens
    for stream, pairs in fresh.items():
        _note_counts(ports, acting, stream, kept_as, pairs)
    return messages, counts


def _known_counts(ports: Ports, acting: Acting, strange: Sequence[Place], tokenizer: str) -> dict[tuple[str, int], int]:
    known: dict[tuple[str, int], int] = {}
    for stream in dict.fromkeys(place.stream for place in strange):
        for run in runs(sorted({place.version for place in strange if place.stream == stream})):
            first, last = min(run), max(run)
            span = Span(
                table="message_counts", after=first - 1, until=last, limit=last - first + 1, prefix=(tokenizer,)
            )
            for row in ports.journal.span(acting.tenant, stream, span):
                known[stream, int(row["version"] or 0)] = int(row["tokens"] or 0)
    return known


def _note_counts(ports: Ports, acting: Acting, stream: str, tokenizer: str, pairs: Sequence[tuple[int, int]]) -> None:
    facts = TokensCounted(
        tokenizer=tokenizer, versions=tuple(place for place, _ in pairs), counts=tuple(tokens for _, tokens in pairs)
    )
    try:
        append(ports, acting, [Decided(stream=stream, events=(Draft(type="tokens.counted", facts=facts),))])
    except (Unavailable, OutcomeUnknown, Refused):
        return  # It saves work, and nothing else depends on it: reading must not need to write.
