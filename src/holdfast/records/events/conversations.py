"""Events of sessions and their conversations: settings, messages, summaries, branches, endings."""

from __future__ import annotations

from typing import Any

from holdfast.records.events.envelope import Content, Facts


class SessionOpened(Facts, frozen=True):
    """A session began, or was given new settings; absent fields keep their value."""

    model: str | None = None
    tools: str | None = None
    idle_timeout_ms: int | None = None
    memory: str | None = None
    system_tokens: int | None = None
    tokenizer: str | None = None


class SessionContent(Content, frozen=True):
    """What a session is told and called."""

    system: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None


class SessionClosing(Facts, frozen=True):
    """A session ends; its history up to `versions` is to be offered to memory."""

    cause: str
    handover: str
    versions: dict[str, int] = {}


class SessionOffered(Facts, frozen=True):
    """Memory took the history over, or gave up after `attempts`."""

    handover: str
    taken: bool
    attempts: int = 1


class SessionClosed(Facts, frozen=True):
    """A session takes no more messages; `reset` says that the next one under this id starts anew."""

    reset: bool = False
    generation: int = 0


class MessageAppended(Facts, frozen=True):
    """A message entered the conversation; its version is its place. `tokens` is per tokenizer."""

    message: str
    role: str
    tokens: dict[str, int] = {}
    round: int | None = None
    calls: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    partial: bool = False
    synthetic: bool = False
    policy: str | None = None
    model: str | None = None
    frame: str | None = None
    call: str | None = None
    provider: str | None = None


class MessageContent(Content, frozen=True):
    """What was said: text or typed parts, tool calls with arguments, tool results."""

    text: str | None = None
    parts: list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_results: list[dict[str, Any]] | None = None
    name: str | None = None
    provider_id: str | None = None
    metadata: dict[str, Any] | None = None


class MessageRetracted(Facts, frozen=True):
    """Messages from `first` to `last` are no longer part of the line; they stay in the journal."""

    first: int
    last: int
    cause: str = "rewind"


class MessagePinned(Facts, frozen=True):
    """A message is kept in every pack, or no longer."""

    version: int
    pinned: bool = True


class SummaryMade(Facts, frozen=True):
    """Words that may stand for messages `first` to `last`; they stay and can be expanded."""

    summary: str
    first: int
    last: int
    at_version: int
    tokens: dict[str, int] = {}
    trust: str = "external"
    method: str = "extractive"
    level: str = "moderate"


class SummaryContent(Content, frozen=True):
    """The summary's words, or state drawn from the messages."""

    text: str | None = None
    state: dict[str, Any] | None = None


class TokensCounted(Facts, frozen=True):
    """Counts by a further tokenizer for messages `first` onwards, so that they are made once."""

    tokenizer: str
    first: int
    counts: tuple[int, ...]
