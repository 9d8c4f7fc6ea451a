"""Import conversations from providers' formats, and export threads to them.

An import repairs broken lists and reports each repair, or refuses them with `strict`. An export omits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.sessions.rounds import repair_messages
from holdfast.core.wire import jsonl as json_lines
from holdfast.core.wire.calls import match_results
from holdfast.core.wire.formats import FORMATS, read_conversation, render_conversation
from holdfast.core.wire.plain_data import ParsedConversation
from holdfast.errors import InvalidMessage, InvalidValue
from holdfast.flow.journal import redact
from holdfast.flow.sessions import append, sessions
from holdfast.flow.sessions import read as session_read
from holdfast.ports import Env
from holdfast.records.messages import Message, Repair
from holdfast.records.reports import Progress
from holdfast.records.sessions import SessionState

ALL_FORMATS = (*FORMATS, "jsonl")
_UNSTORED: dict[str, Any] = {"id": "", "stream": "", "version": 0, "timestamp": 0, "round": 0, "tokens": None}
"""The fields of a message that is not in a journal."""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an import: the number of messages, and every repair made on the way."""

    messages: int
    repairs: tuple[Repair, ...] = ()
    repeated: bool = False


def read_format(format: str, given: Any) -> ParsedConversation:
    """Parse a conversation in a format and repair it; the reading lists everything that was broken."""
    _check_format(format)
    reading = json_lines.read_messages(_split_lines(given)) if format == "jsonl" else read_conversation(format, given)
    whole = repair_messages(reading.messages, open_calls="keep")
    torn = [replace(one, index=reading.indexes[one.index]) if reading.indexes else one for one in whole.repairs]
    repairs = sorted([*reading.repairs, *torn], key=lambda one: one.index)
    return replace(reading, messages=whole.messages, repairs=repairs)


def _check_format(format: str) -> None:
    if format not in ALL_FORMATS:
        raise InvalidValue(f"{format!r:.40} is not a format. Use one of {', '.join(ALL_FORMATS)}.")


def _split_lines(given: Any) -> list[str | bytes]:
    if isinstance(given, str):
        return [*given.split("\n")]
    if isinstance(given, bytes):
        return [*given.split(b"\n")]
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise InvalidMessage(f"JSON lines are text or a list of lines, not {type(given).__name__}.")
    lines = list(given)
    for number, thread in enumerate(lines, 1):
        if not isinstance(thread, str | bytes):
            raise InvalidMessage(f"Line {number} is {type(thread).__name__}, not text. Pass lines of JSON.")
    return lines


def import_conversation(
    env: Env,
    session: str,
    thread: str,
    format: str,
    given: Any,
    *,
    strict: bool = False,
    key: str | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Append a conversation in one commit. The session takes its system prompt, tools and model where it has none."""
    reading = read_format(format, given)
    if strict and reading.repairs:
        said = "; ".join(f"message {one.index}: {one.problem} ({one.done})" for one in reading.repairs[:5])
        raise InvalidMessage(f"The list is broken in {len(reading.repairs)} places, so nothing was imported. {said}")
    own, stream = sessions.streams_of(session, thread)
    system, messages = _split_system(reading)
    known = sessions.session_state(env, session)
    if not _is_session_prompt(env, own, stream, known, system, key, len(messages)):
        messages = reading.messages
    offered = sessions.SessionSettings(
        system=system if known.system is None else None,
        tools=(reading.tools or None) if known.tools is None else None,
        model=reading.model if known.model is None else None,
    )
    if not messages:
        sessions.open_session(env, session, thread, offered)
        return ImportReport(messages=0, repairs=tuple(reading.repairs))
    given, also = _strip_stored_ids(messages), sessions.settings_write(env, own, offered)
    found, repeated = append.append_to_thread(env, stream, given, key=key, progress=progress, session_write=also)
    return ImportReport(messages=len(found), repairs=tuple(reading.repairs), repeated=repeated)


def _split_system(reading: ParsedConversation) -> tuple[str | None, list[Message]]:
    """Split off the system prompt, given separately or as the first message."""
    if reading.system is not None:
        return reading.system, reading.messages
    first = reading.messages[0] if reading.messages else None
    if first is not None and first.role == "system" and isinstance(first.content, str) and not first.name:
        return first.content, reading.messages[1:]
    return None, reading.messages


def _is_session_prompt(
    env: Env, own: str, stream: str, known: SessionState, system: str | None, key: str | None, rest: int
) -> bool:
    """Return True if the system prompt is, or becomes, the session's own; any other one stays a message."""
    stored = [] if key is None else env.journal.events_by_key(env.tenant, stream, key)
    if stored:
        # A repeated import must do what it did the first time, even if the session's prompt changed since.
        return sum(event.type in session_read.MESSAGE_TYPES for event in stored) == rest
    if system is None or known.system is None:
        return True
    shown = system if env.redact is None else redact.redact_text(env.redact, system)
    return sessions.session_texts(env, own, known, ("system",)).get("system") == shown


def _strip_stored_ids(messages: Sequence[Message]) -> list[Message]:
    """Strip places and ids of another journal; each result keeps its call, whatever the providers' ids say."""
    calls = match_results(messages).calls()
    found = []
    for index, message in enumerate(messages):
        made = [
            replace(call, id=f"{index}.{at}", provider_id=call.provider_id or call.id or None)
            for at, call in enumerate(message.tool_calls)
        ]
        results = []
        for at, result in enumerate(message.tool_results):
            place = calls.get((index, at))
            provider = result.provider_id or result.tool_call_id or None
            id = "" if place is None else f"{place[0]}.{place[1]}"
            results.append(replace(result, tool_call_id=id, provider_id=provider))
        found.append(replace(message, **_UNSTORED, tokenizer=None, tool_calls=tuple(made), tool_results=tuple(results)))
    return found


def export_conversation(env: Env, session: str, thread: str, format: str) -> Any:
    """Export a whole thread as a request's keyword arguments or as JSON lines, with results next to their calls."""
    _check_format(format)
    own, stream = sessions.streams_of(session, thread)
    known = sessions.session_state(env, session)
    system = sessions.session_texts(env, own, known, ("system",)).get("system")
    tools = sessions.session_tools(env, known)
    found = [session_read.inline_artifacts(env, message) for message in session_read.iter_messages(env, stream)]
    if format == "jsonl":
        return list(json_lines.write_lines(found, system=system, tools=tools, model=known.model))
    messages = list(_order_results(repair_messages(found, open_calls="keep").messages))
    return render_conversation(format, messages, system=system, tools=tools)


def _order_results(messages: Sequence[Message]) -> Iterator[Message]:
    """Sort results by their calls where parallel calls share a provider id, as then only the order matches them."""
    order: dict[str, int] = {}
    results: list[Message] = []
    for message in messages:
        if message.role == "tool" and order:
            results.append(message)
            continue
        yield from sorted(results, key=lambda one: order.get(one.tool_results[0].tool_call_id, len(order)))
        results = []
        ids = [call.provider_id for call in message.tool_calls]
        order = {call.id: at for at, call in enumerate(message.tool_calls)} if len(set(ids)) < len(ids) else {}
        yield message
    yield from sorted(results, key=lambda one: order.get(one.tool_results[0].tool_call_id, len(order)))
