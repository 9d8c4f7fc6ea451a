"""Messages as events, and back.

The ids of calls and the calls that results answer are facts, so they outlive erasure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from holdfast.core.journal.codec import decode, decode_facts
from holdfast.core.trust import ROLE_TRUST
from holdfast.core.wire.parts import ERASED_TEXT
from holdfast.errors import Corrupt
from holdfast.records.events.envelope import ERASED, Event, StoredEvent
from holdfast.records.events.sessions import MessageAppended, MessageContent
from holdfast.records.ids import ulid_text
from holdfast.records.messages import Content, Message, Part, ToolCallRequest, ToolCallResult

MAX_ID_CHARS = 64
ERASED_NAME = "erased"


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
    return MessageContent(
        text=text,
        parts=parts,
        tool_calls=[_encode_call(call) for call in message.tool_calls] or None,
        tool_results=[_encode_result(result, large.get(index)) for index, result in enumerate(message.tool_results)]
        or None,
        name=message.name,
        provider_id=message.provider_id,
        metadata=message.metadata,
    )


def _encode_call(call: ToolCallRequest) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
    if call.provider_id != shorten_id(call.provider_id):
        entry["provider_id"] = call.provider_id
    return entry


def _encode_result(result: ToolCallResult, artifact: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"result": result.result} if artifact is None else {"artifact": artifact}
    if result.provider_id is not None:
        entry["provider_id"] = result.provider_id
    if result.interrupted:
        entry["interrupted"] = True
    return entry


def text_artifacts(content: Any) -> list[str]:
    """Return the artifacts that hold texts of this message and are read with it; images and files are not."""
    if not isinstance(content, MessageContent) or (content.parts is None and content.tool_results is None):
        return []
    named = [part["artifact"] for part in content.parts or () if part.get("type") == "text" and "artifact" in part]
    return named + [entry["artifact"] for entry in content.tool_results or () if "artifact" in entry]


def message_from_event(event: Event, texts: Mapping[str, str] | None = None, pinned: bool = False) -> Message:
    """Return the message of a `message.appended` event. `texts` are its large texts by artifact name."""
    return _build_message(event.id, event, event.facts, event.content, texts or {}, pinned)


def decode_message_content(stored: StoredEvent) -> Any:
    """Return the content of a stored `message.appended`: a MessageContent, ERASED, or None if it has none."""
    if stored.content is not None:
        return decode(stored.content, MessageContent)
    return ERASED if stored.erased else None


def decode_message(stored: StoredEvent, content: Any, texts: Mapping[str, str], pinned: bool) -> Message:
    """Return the message of a stored event, decoding only what a message needs: many are read at a time."""
    facts = decode_facts(stored.type, stored.schema, stored.facts)
    return _build_message(ulid_text(stored.id), stored, facts, content, texts, pinned)


def _build_message(
    id: str, event: Event | StoredEvent, facts: MessageAppended, content: Any, texts: Mapping[str, str], pinned: bool
) -> Message:
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
        policy=policy_without_pin(facts),
    )


def policy_without_pin(facts: MessageAppended) -> str | None:
    """Return the policy of a message; None for `pinned`, which the message shows by its pin."""
    return None if facts.policy == "pinned" else facts.policy


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
