"""What was said in a turn, and what came of one that has ended: read from the journal, whoever took it."""

from __future__ import annotations

import msgspec

from holdfast.core.codec import decode_event
from holdfast.flow.conversation import lines
from holdfast.flow.stack import showing
from holdfast.flow.turn.calling import REPLY
from holdfast.flow.turn.writing import Place
from holdfast.ports import Acting, Ports
from holdfast.records.ids import ulid_bytes
from holdfast.records.messages import Message
from holdfast.records.reports import Query


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    completed: bool
    message: Message | None
    """Its final reply; of one that was stopped, the last thing that its model said."""
    reason: str | None
    """Why it was stopped."""


def outcome(ports: Ports, acting: Acting, turn: Place) -> Outcome:
    """What came of a turn that has ended."""
    info = showing.frame_info(ports, acting, turn.frame)
    named = next((result.ref for result in reversed(info.results) if result.kind == REPLY), None)
    return Outcome(
        completed=info.status == "completed",
        message=last_words(ports, acting, turn) if named is None else _message(ports, acting, named),
        reason=info.error if isinstance(info.error, str) else None,
    )


def last_words(ports: Ports, acting: Acting, turn: Place) -> Message | None:
    """What a turn without a final reply has to show: the last thing that the model said in it."""
    words = [message for message in said(ports, acting, turn) if message.role == "assistant" and message.text]
    return words[-1] if words else None


def said(ports: Ports, acting: Acting, turn: Place) -> list[Message]:
    """What was said in a turn, oldest first."""
    found: list[Message] = []
    query = Query(tenant=acting.tenant, stream=turn.line, after=turn.started - 1, types=lines.APPENDED)
    while page := ports.journal.read(query):
        for event in map(decode_event, page):
            (message,) = lines.decoded(ports, acting, [event])
            if message.role == "user" and event.facts.frame not in (None, turn.frame):
                return found  # Another turn begins.
            if event.facts.frame == turn.frame or message.role == "user":
                found.append(message)  # What others noted down meanwhile is not this turn's.
        query = msgspec.structs.replace(query, after=page[-1].version)
    return found


def _message(ports: Ports, acting: Acting, id: str) -> Message | None:
    stored = ports.journal.event(acting.tenant, ulid_bytes(id))
    return None if stored is None else lines.read_message(ports, acting, stored, pinned=False)
