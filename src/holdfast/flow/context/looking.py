"""Which messages are nothing but an agent's looking for something: calls of some tools, or what those gave.

Found again, they would say what was asked for and not what is known: what a tool found is said elsewhere.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.codec import decode_facts
from holdfast.core.said import message_content_of
from holdfast.flow.conversation.lines import APPENDED
from holdfast.flow.stack.showing import event_at
from holdfast.ports import Acting, Ports
from holdfast.records.events.conversations import MessageAppended, MessageContent
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.messages import Part

_UNSAID = frozenset({"call", "reasoning"})
"""Parts that are not words: where a call stood among them, and what a provider wants back."""


class Looking:
    """What some tools were asked for and gave. Each round of a line is read once."""

    def __init__(self, ports: Ports, acting: Acting, names: frozenset[str]) -> None:
        self._ports, self._acting, self._names = ports, acting, names
        self._rounds: dict[tuple[str, int], frozenset[str]] = {}

    def is_all_of(self, event: StoredEvent) -> bool:
        """Whether a message holds nothing else."""
        if not self._names or event.type not in APPENDED:
            return False
        facts: MessageAppended = decode_facts(event.type, event.schema, event.facts)
        if facts.answers:
            theirs = self._calls(event.stream, event.version if facts.round is None else facts.round)
            return theirs.issuperset(facts.answers)
        return bool(facts.calls) and self._asks_only(message_content_of(event))

    def _asks_only(self, content: Any) -> bool:
        if not isinstance(content, MessageContent) or (content.text or "").strip():
            return False
        if any(part.get("type") not in _UNSAID and not _is_blank(part) for part in content.parts or ()):
            return False
        return all(call.get("name") in self._names for call in content.tool_calls or ())

    def _calls(self, stream: str, version: int) -> frozenset[str]:
        """The ids of their calls in the message that a round begins with."""
        place = (stream, version)
        if place not in self._rounds:
            self._rounds[place] = self._read(stream, version)
        return self._rounds[place]

    def _read(self, stream: str, version: int) -> frozenset[str]:
        event = event_at(self._ports, self._acting, stream, version)
        if event is None or event.type not in APPENDED or not isinstance(event.content, MessageContent):
            return frozenset()
        pairs = zip(event.facts.calls, event.content.tool_calls or (), strict=False)
        return frozenset(id for (id, _), call in pairs if call.get("name") in self._names)


def _is_blank(part: Part) -> bool:
    text = part.get("text")
    return isinstance(text, str) and not text.strip()
