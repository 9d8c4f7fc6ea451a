"""Sessions and their threads, as facts: the state needed to continue them. Texts stay in the events."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.records.events.sessions import CallRef, MessageSpan, SharedSegment
from holdfast.records.ids import SessionId
from holdfast.records.usage import Usage


class ThreadState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one thread of a conversation."""

    messages: int = 0
    """Number of current messages, including those of the thread it was forked from."""
    newest: int = 0
    """The version of the newest message; 0 if the thread has none of its own."""
    newest_at: int = 0
    floor: int = 0
    """Messages up to this version belong to an earlier conversation under the same id."""
    edited: int = 0
    """The version of the last change to existing messages: a retraction, summary or reset."""
    generation: int = 0
    packed: int = 0
    """The version of the newest journaled pack."""
    ended: bool = False
    fresh: bool = False
    """True if, after a reset, the next message begins a new generation."""
    shared: tuple[SharedSegment, ...] = ()
    """Segments that a branch shares with other threads, nearest first."""
    usage: Usage = Usage(cost=0)
    calls: dict[str, CallRef] = {}
    """Tool calls waiting for their results."""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """An ended conversation that memory has not taken yet; `version` is that of its `session.closing`."""

    id: str
    version: int
    attempts: int = 0


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session's settings and status. `system`, `title` and `metadata` are versions of the events with those texts."""

    status: str = "open"
    generation: int = 0
    opened_at: int = 0
    model: str | None = None
    tokenizer: str | None = None
    tools: str | None = None
    idle_timeout_ms: int | None = None
    memory: str | None = None
    system: int | None = None
    title: int | None = None
    metadata: int | None = None
    threads: tuple[str, ...] = ()
    handovers: dict[str, Handover] = {}


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session as listed. `user` is the pseudonym of the user who opened it."""

    id: SessionId
    status: str
    title: str | None
    model: str | None
    user: int | None
    opened_at: int
    active_at: int
    messages: int
    threads: int
    usage: Usage


class SessionSweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a sweep: the number of idle sessions ended and of conversations handed to memory."""

    ended: int
    handed_over: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A text that stands for messages of a thread; `expand` returns the messages."""

    id: str
    stream: str
    version: int
    covers: tuple[MessageSpan, ...]
    """The messages it stands for, oldest first."""
    messages: int
    text: str
    tokens: int | None
    tokenizer: str | None
    method: str
    trust: str
    state: dict[str, Any] | None = None
    """Data extracted from the messages, if the summary was made to extract state."""
    usage: Usage | None = None
    """The usage of the model that wrote it, with its failed attempts."""
    window: bool = False
    """True if a pack made it of messages older than its window."""
