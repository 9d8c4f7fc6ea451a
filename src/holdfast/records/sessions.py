"""Sessions and the lines of their conversations, as facts: what is needed to go on. Texts stay in the events."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.records.events.sessions import CallRef, Segment, Stretch
from holdfast.records.usage import Usage


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a conversation: where it stands."""

    messages: int = 0
    """How many messages it has now, with those of the line that it was forked from."""
    newest: int = 0
    """The version of the newest message; 0 if it has none of its own."""
    newest_at: int = 0
    floor: int = 0
    """Messages up to this version belong to an earlier conversation under the same id."""
    edited: int = 0
    """The version at which something that was said last changed: retracted, summarised or reset."""
    generation: int = 0
    packed: int = 0
    """The version of the newest pack that was journaled."""
    ended: bool = False
    fresh: bool = False
    """Whether, after a reset, the next message begins a new generation."""
    shared: tuple[Segment, ...] = ()
    """What a branch has in common with other lines, nearest first."""
    usage: Usage = Usage(cost=0)
    calls: dict[str, CallRef] = {}
    """Tool calls that wait for their results."""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that ended and that memory has not taken yet; `version` is that of its `session.closing`."""

    id: str
    version: int
    attempts: int = 0


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session's settings and where it stands. Versions name the events that hold its texts."""

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
    """A session as a list shows it. `user` is the pseudonym of whoever opened it."""

    id: str
    status: str
    title: str | None
    model: str | None
    user: int | None
    opened_at: int
    active_at: int
    messages: int
    threads: int
    usage: Usage


class SweptSessions(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep did: sessions that were idle for too long and ended, and conversations that memory took."""

    ended: int
    handed_over: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Words that stand for messages of a line, which `expand` gives back."""

    id: str
    stream: str
    version: int
    covers: tuple[Stretch, ...]
    """What it stands for, oldest first."""
    messages: int
    text: str
    tokens: int | None
    tokenizer: str | None
    method: str
    trust: str
    state: dict[str, Any] | None = None
    """What was drawn from the messages as data, if that is what it was made for."""
