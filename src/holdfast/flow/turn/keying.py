"""What the key of a turn stands for: all the messages that were said with it, in their order, and no others.

Who sends again with a key gets what came of it. Who uses it for something else is told so, and nothing is written.
What was erased since, or redacted on its way in, cannot be compared: then how many there were and who said them counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.codec import decode_event, encode
from holdfast.errors import KeyReused
from holdfast.flow import artifacts
from holdfast.flow.conversation import lines
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import ERASED, Event, StoredEvent
from holdfast.records.messages import Message
from holdfast.records.reports import Query


def check_said(
    ports: Ports, acting: Acting, line: str, version: int, messages: Sequence[Message], key: str | None
) -> None:
    """Refuse a key that stands for other messages than these. `version` is that of the first that it stands for."""
    if not messages:
        return
    said = [decode_event(event) for event in _together(ports, acting, line, version)]
    if len(said) != len(messages) or not all(
        _is_alike(ports, acting, event, message) for event, message in zip(said, messages, strict=True)
    ):
        raise KeyReused(f"Key {key!r} stands for a turn that began with other words. Use a new key for a new message.")


def _together(ports: Ports, acting: Acting, line: str, version: int) -> list[StoredEvent]:
    """What was said in one append, from its first message on: nothing follows them there."""
    query = Query(tenant=acting.tenant, stream=line, after=version - 1, until=version, limit=1)
    first = ports.journal.read(query)
    rest = first[0].rest if first else 0
    return ports.journal.read(replace(query, until=version + rest, limit=rest + 1)) if rest else first


def _is_alike(ports: Ports, acting: Acting, event: Event, message: Message) -> bool:
    """Whether a stored message is this one, as far as that can be told."""
    if event.type not in lines.APPENDED or event.facts.role != message.role:
        return False
    if event.content is ERASED or ports.redact is not None:
        return True
    (stored,) = lines.decoded(ports, acting, [event])
    return _words(ports, acting, stored) == _words(ports, acting, message)


def _words(ports: Ports, acting: Acting, message: Message) -> tuple[Any, ...]:
    """What is compared of a message: its words, what there is beside them, what it calls and what it answers."""
    others = [part for part in message.content or () if not isinstance(part, str) and part.get("type") != "text"]
    return (
        message.text,
        [_part(ports, acting, part) for part in others],
        [(call.name, call.arguments) for call in message.tool_calls],
        [(one.is_error, one.result if isinstance(one.result, str) else None) for one in message.tool_results],
    )


def _part(ports: Ports, acting: Acting, part: Mapping[str, Any]) -> tuple[Any, ...]:
    """An image, a file or the like. Bytes that come now are compared by the name that they would be stored under."""
    data, name = part.get("data"), part.get("artifact")
    if isinstance(data, bytes | bytearray | memoryview):
        name = artifacts.artifact_name(ports.journal.secret, acting.tenant, bytes(data)).hex()
    return name, encode({key: value for key, value in part.items() if key not in ("data", "artifact", "size")})
