"""Rules of trust: the level of each source, and the lowest level of several sources.

Only words of a trusted level may instruct a model. Text is trusted no more than the least trusted of its sources.
"""

from __future__ import annotations

from typing import Final

from holdfast.records.events.envelope import TRUST_LEVELS, Event

TRUSTED_LEVELS: Final = frozenset({"system", "operator"})
"""The trust levels whose words may stand in the system prompt."""

ROLE_TRUST: Final = {
    "system": "operator",
    "developer": "operator",
    "user": "user",
    "assistant": "model",
    "tool": "tool",
}

KIND_TRUST: Final = {
    "url": "external",
    "artifact": "external",
    "tool_output": "tool",
    "worker_finding": "model",
    "worker_learning": "model",
}
"""The highest trust of evidence of a kind, whoever attached it: bytes do not tell who made them."""

FILE_PREFIX: Final = "file:"
"""The prefix of a document's target if it is a file, whose trust is `external` as well."""

_EVENT_TRUST: Final = {
    "tool.requested": "model",
    "tool.returned": "tool",
    "run.returned": "tool",
    "operator.ran": "tool",
    "model.responded": "model",
    "model.failed": "external",
    "effect.settled": "external",
    "frame.popped": "model",
    "frame.result_added": "model",
    "frame.compacted": "model",
    "worker.reported": "model",
    "worker.signalled": "model",
    "node.changed": "model",
    "task.created": "model",
    "task.modified": "model",
}
"""Events with words from a tool, a model or outside, although trusted code wrote them down."""


def lowest_trust(*levels: str | None) -> str:
    """Return the lowest of several trust levels; an unknown one counts as external."""
    given = [level or "external" for level in levels]
    ranks = [TRUST_LEVELS.index(level) if level in TRUST_LEVELS else len(TRUST_LEVELS) for level in given]
    return given[ranks.index(max(ranks))] if given else "external"


def event_trust(event: Event) -> str:
    """Return the trust of an event's text: the lowest of its writer's and its sources'."""
    levels = [event.trust, _EVENT_TRUST.get(event.type, "system")]
    if event.type == "message.appended":
        levels.append(ROLE_TRUST.get(event.facts.role, "external"))
    declared = getattr(event.facts, "trust", None)
    if isinstance(declared, str):
        levels.append(declared)
    if event.type == "frame.handle_added":
        levels.append(KIND_TRUST.get(event.facts.kind, "system"))
    return lowest_trust(*levels)
