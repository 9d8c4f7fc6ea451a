"""Messages as events, and back, and the rules of appending them to a thread: tool pairing and new generations. Pure.

A message is refused only if it answers a call that does not wait for a result. Everything else is accepted as it is,
and made valid where it is shown. The ids of calls and the calls that results answer are facts, so they outlive erasure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.codec import decode, read_content
from holdfast.core.trust import ROLE_TRUST
from holdfast.core.wire.parts import ERASED_TEXT
from holdfast.errors import Conflict, Corrupt, SessionClosed, SessionNotFound, ToolPairingError
from holdfast.records.events.envelope import ERASED, Draft, Event, StoredEvent
from holdfast.records.events.sessions import CallRef, MessageAppended, MessageContent, SessionOpened, ThreadOpened
from holdfast.records.frames import StreamState
from holdfast.records.messages import Content, Message, Part, ToolCallRequest, ToolCallResult
from holdfast.records.sessions import SessionState, ThreadState

MAX_ID_CHARS = 64
ERASED_NAME = "erased"


class CallAnswer(msgspec.Struct, frozen=True):
    """The call that a result answers, by holdfast's id or by the shortened provider id."""

    id: str
    provider: str | None
    failed: bool


class MessageDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is ready to be written except for its position and the calls it answers."""

    facts: MessageAppended
    content: MessageContent
    answers: tuple[CallAnswer, ...] = ()


def is_reset(state: StreamState, name: str) -> bool:
    """Return True if the next message begins a new generation; refuse a thread that takes no more messages."""
    if state.thread is None:
        raise SessionNotFound(f"There is no conversation {name}. Open it with hf.session(…), or check its id.")
    if state.thread.ended and not state.thread.fresh:
        raise SessionClosed(
            f"{name} was closed and takes no more messages. reset() begins anew under its id; "
            "hf.new_session() begins another."
        )
    return state.thread.ended


def begin_generation(thread: ThreadState, session: StreamState) -> tuple[list[Draft], list[Draft]]:
    """Return the events that open the next generation of a session that was reset.

    The first list is for the thread, the second for the session, if this thread is the first to begin it.
    """
    known = session.session or SessionState()
    if known.status == "open" and known.generation <= thread.generation:
        raise Conflict("Another process ended the session meanwhile. Try again.")  # The known state was stale.
    begun = known.status == "open"
    generation = known.generation if begun else known.generation + 1
    opened = Draft(type="session.opened", facts=SessionOpened(generation=generation))
    return [Draft(type="thread.opened", facts=ThreadOpened(generation=generation))], [] if begun else [opened]


def append_messages(thread: ThreadState, version: int, entries: Sequence[MessageDraft]) -> list[Draft]:
    """Return the events for messages that follow `version`, each with its position and the calls it answers."""
    waiting = dict(thread.calls)
    position, drafts = thread.messages, []
    before = thread.newest if thread.edited > thread.newest else None
    for entry in entries:
        version += 1
        position += 1
        facts = replace(entry.facts, position=position, before=before)
        if entry.answers:
            facts = _answer_calls(waiting, facts, entry.answers)
        drafts.append(Draft(type="message.appended", facts=facts, content=entry.content))
        before = None
        for id, provider in facts.calls:
            waiting[id] = CallRef(id, version, provider)
    return drafts


def _answer_calls(waiting: dict[str, CallRef], facts: MessageAppended, given: Sequence[CallAnswer]) -> MessageAppended:
    """Return the facts of a message with the calls that it answers; these do not wait any more."""
    found = []
    for answer in given:
        found.append(_find_call(waiting, answer))
        del waiting[found[-1].id]
    answers = tuple([call.id for call in found])
    return replace(
        facts,
        # A call from a shared parent thread has no position in this stream: its result begins a round here.
        round=found[0].version if found[0].version > 0 else None,
        answers=answers,
        failed=tuple([id for id, answer in zip(answers, given, strict=True) if answer.failed]),
    )


def _find_call(waiting: dict[str, CallRef], answer: CallAnswer) -> CallRef:
    """Find a call by holdfast's id, else by the provider's.

    Providers reuse ids: of the calls that match, the first one of the newest message is taken.
    """
    if answer.id in waiting:
        return waiting[answer.id]
    wanted = answer.provider or answer.id
    fits = [call for call in waiting.values() if call.provider == wanted] if wanted else list(waiting.values())
    if not wanted and len(fits) > 1:
        raise ToolPairingError(f"{len(fits)} calls wait for results. Say which one this answers: tool_call_id=….")
    if not fits:
        which = f" {wanted!r}" if wanted else ""
        raise ToolPairingError(
            f"No call{which} waits for a result: it was answered already, or never made. "
            "Append the assistant's message with its tool calls first."
        )
    newest = max(call.version for call in fits)
    return min((call for call in fits if call.version == newest), key=lambda call: call.id)


def shorten_id(provider_id: str | None) -> str | None:
    """Return a provider's id for the facts: unchanged, or a digest of it if it is long or not printable ASCII."""
    if provider_id is None or (
        len(provider_id) <= MAX_ID_CHARS and provider_id.isascii() and provider_id.isprintable()
    ):
        return provider_id
    return "#" + hashlib.sha256(provider_id.encode("utf-8", "backslashreplace")).hexdigest()[:32]


def message_content(message: Message, large: Mapping[int, str]) -> MessageContent:
    """Return a message's content as it is stored. `large` names the artifacts of large results, by index."""
    text, parts = (message.content, None) if not isinstance(message.content, list) else (None, message.content)
    calls: list[dict[str, Any]] = []
    for call in message.tool_calls:
        calls.append({"name": call.name, "arguments": call.arguments})
        if call.provider_id != shorten_id(call.provider_id):
            calls[-1]["provider_id"] = call.provider_id
    results: list[dict[str, Any]] = []
    for index, result in enumerate(message.tool_results):
        results.append({"artifact": large[index]} if index in large else {"result": result.result})
        if result.provider_id is not None:
            results[-1]["provider_id"] = result.provider_id
        if result.interrupted:
            results[-1]["interrupted"] = True
    return MessageContent(
        text=text,
        parts=parts,
        tool_calls=calls or None,
        tool_results=results or None,
        name=message.name,
        provider_id=message.provider_id,
        metadata=message.metadata,
    )


def text_artifacts(content: Any) -> list[str]:
    """Return the artifacts that hold texts of this message and are read with it; images and files are not."""
    if not isinstance(content, MessageContent) or (content.parts is None and content.tool_results is None):
        return []
    named = [part["artifact"] for part in content.parts or () if part.get("type") == "text" and "artifact" in part]
    return named + [entry["artifact"] for entry in content.tool_results or () if "artifact" in entry]


def decode_message_content(stored: StoredEvent) -> Any:
    """Return the content of a stored `message.appended`: a MessageContent, ERASED, or None if it has none."""
    content = read_content(stored)
    if content is not None:
        return decode(content, MessageContent)
    return ERASED if stored.erased else None


def build_message(
    id: str, event: Event | StoredEvent, facts: MessageAppended, content: Any, texts: Mapping[str, str], pinned: bool
) -> Message:
    """Return the message of a `message.appended` event. `texts` are its large texts by artifact name."""
    erased = content is ERASED
    said = MessageContent() if erased or content is None else content
    shown = said.text if said.parts is None else _decode_parts(said.parts, texts)
    if erased and not facts.calls and not facts.answers:
        shown = ERASED_TEXT
    try:
        calls = _decode_calls(facts, said) if facts.calls else ()
        results = _decode_results(facts, said, texts) if facts.answers else ()
    except (IndexError, KeyError, TypeError) as error:
        raise Corrupt(f"Message {id} does not fit its facts ({error!r}). Run `holdfast verify`.") from None
    return Message(
        role=facts.role,
        content=shown,
        tool_calls=calls,
        tool_results=results,
        name=said.name,
        partial=facts.partial,
        synthetic=facts.synthetic,
        provider=facts.provider,
        model=facts.model,
        provider_id=said.provider_id,
        usage=facts.usage,
        metadata=said.metadata,
        id=id,
        stream=event.stream,
        version=event.version,
        timestamp=event.at,
        round=event.version if facts.round is None else facts.round,
        tokens=facts.tokens,
        tokenizer=facts.tokenizer,
        pinned=pinned,
        trust=ROLE_TRUST.get(facts.role, "external"),
        erased=erased,
        # The policy `pinned` is shown by the pin.
        policy=None if facts.policy == "pinned" else facts.policy,
    )


def _decode_parts(stored: list[Part], texts: Mapping[str, str]) -> Content:
    shown = [
        {"type": "text", "text": texts.get(part["artifact"], ERASED_TEXT)}
        if part.get("type") == "text" and "artifact" in part
        else part
        for part in stored
    ]
    # A text that was stored as one large part is returned as text again.
    whole = stored[0].get("whole") if len(stored) == 1 else None
    return shown[0]["text"] if whole else shown


def _decode_calls(facts: MessageAppended, said: MessageContent) -> tuple[ToolCallRequest, ...]:
    entries = said.tool_calls or [{"name": ERASED_NAME, "arguments": "{}"}] * len(facts.calls)
    return tuple(
        ToolCallRequest(
            id=id, name=entry["name"], arguments=entry["arguments"], provider_id=entry.get("provider_id", provider)
        )
        for (id, provider), entry in zip(facts.calls, entries, strict=False)
    )


def _decode_results(
    facts: MessageAppended, said: MessageContent, texts: Mapping[str, str]
) -> tuple[ToolCallResult, ...]:
    entries = said.tool_results or [{"result": ERASED_TEXT}] * len(facts.answers)
    return tuple(
        ToolCallResult(
            tool_call_id=id,
            result=texts.get(entry["artifact"], ERASED_TEXT) if "artifact" in entry else entry["result"],
            is_error=id in facts.failed,
            provider_id=entry.get("provider_id"),
            interrupted=bool(entry.get("interrupted")),
        )
        for id, entry in zip(facts.answers, entries, strict=False)
    )
