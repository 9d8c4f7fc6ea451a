"""Events of memory: knowledge that outlives sessions, with its provenance."""

from __future__ import annotations

from typing import Any

from holdfast.records.events.envelope import Content, Facts


class MemoryNoted(Facts, frozen=True):
    """A memory was noted, with its provenance; `supersedes` names the memories it replaces."""

    memory: str
    kind: str
    confidence: float | None = None
    salience: float | None = None
    trust: str = "external"
    source_stream: str | None = None
    source_versions: tuple[int, ...] = ()
    supersedes: tuple[str, ...] = ()
    handover: str | None = None
    valid_from: int | None = None
    tokens: int | None = None


class MemoryContent(Content, frozen=True):
    """The fact, preference or entity itself."""

    text: str | None = None
    entity: str | None = None
    attribute: str | None = None
    value: Any = None
    metadata: dict[str, Any] | None = None


class MemoryForgotten(Facts, frozen=True):
    """A memory is no longer to be recalled."""

    memory: str
    cause: str = "call"


class MemoryExtracted(Facts, frozen=True):
    """The memory engine processed a handover; recorded once."""

    handover: str
    noted: int
    superseded: int = 0
    method: str = "extractive"


class EpisodeRecorded(Facts, frozen=True):
    """A task ended and left an experience."""

    episode: str
    task: str
    outcome: str
    success: bool
    actions: int = 0
    started_at: int | None = None


class EpisodeContent(Content, frozen=True):
    """Goal, plan, actions and outcome, in words."""

    goal: str | None = None
    plan: str | None = None
    actions: list[dict[str, Any]] | None = None
    outcome: str | None = None
