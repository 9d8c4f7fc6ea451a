"""Events of sessions and their conversations: settings, messages, summaries, branches, endings.

A session's settings and endings live in `session/<id>`, each line of its conversation in
`session/<id>/thread/<id>`. A message's id is its event's id; its version is its place.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.records.events.envelope import Content, Facts
from holdfast.records.usage import Usage

SESSION_TEXTS = ("system", "title", "metadata")


class SessionOpened(Facts, frozen=True):
    """A session began, began anew as the next `generation`, or was given new settings; absent fields keep their value.

    `texts` names which of system, title and metadata the content changes. With `own` an agent gave them: if its system
    prompt is among them, `own` is the version of the one that the application gave, 0 if it gave none; if not, that
    one counts again.
    """

    generation: int = 0
    model: str | None = None
    tokenizer: str | None = None
    tools: str | None = None
    idle_timeout_ms: int | None = None
    memory: str | None = None
    texts: tuple[str, ...] = ()
    own: int | None = None


class SessionContent(Content, frozen=True):
    """What a session is told and called."""

    system: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None


class ThreadAdded(Facts, frozen=True):
    """The session has a further line."""

    thread: str


class SessionClosing(Facts, frozen=True):
    """A session ends. `spans` are the versions of each thread that are to be offered to memory under `handover`."""

    cause: str
    generation: int = 0
    reset: bool = False
    handover: str | None = None
    spans: dict[str, tuple[int, int]] = {}


class SessionOffered(Facts, frozen=True):
    """Memory took the history over, or failed to for the `attempts`-th time; `given_up` says that it was the last."""

    handover: str
    taken: bool
    attempts: int = 1
    given_up: bool = False


class SessionClosed(Facts, frozen=True):
    """A session has ended and everything about its end is done; after a `reset` its id may begin anew."""

    reset: bool = False
    generation: int = 0


class ThreadOpened(Facts, frozen=True):
    """First event of a line, and of its next generation. A private one is a frame's own."""

    generation: int = 0
    private: bool = False


class CallRef(msgspec.Struct, frozen=True, array_like=True):
    """A tool call that waits for its result: holdfast's id, the message's version, the provider's id in short.

    Messages of other lines that a branch shares count backwards from -1, so they are older than any of its own.
    """

    id: str
    version: int
    provider: str | None = None


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of another line: its messages with `after` < version <= `until`, as that line was at version `at`."""

    stream: str
    after: int
    until: int
    at: int


class ThreadForked(Facts, frozen=True):
    """First event of a branch: it continues `parent` after `version` without copying it.

    `shared` is all that comes before, nearest first: what is changed there later does not change the branch.
    """

    parent: str
    version: int
    shared: tuple[Segment, ...] = ()
    position: int = 0
    generation: int = 0
    opened: tuple[CallRef, ...] = ()


class ThreadEnded(Facts, frozen=True):
    """The line takes no more messages; after a `reset` the next one begins with nothing before it."""

    reset: bool = False
    dropped: tuple[str, ...] = ()


class MessageAppended(Facts, frozen=True):
    """A message entered the conversation. Calls and answers are named here, so that pairing outlives erasure."""

    role: str
    position: int = 0
    round: int | None = None
    """The version of the message that its round begins with, if that is not this one."""
    before: int | None = None
    """The version of the message before it in its stream, if retracted ones lie between."""
    tokens: int | None = None
    tokenizer: str | None = None
    calls: tuple[tuple[str, str | None], ...] = ()
    """Holdfast's id of each call and the provider's in short."""
    answers: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    partial: bool = False
    synthetic: bool = False
    policy: str | None = None
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    frame: str | None = None
    call: str | None = None


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
    """Messages `first` to `last` are no longer part of the line; they stay in the journal.

    A branch that is rewound into what it shares with other lines keeps the rest in `shared`.
    """

    first: int
    last: int
    spans: tuple[tuple[int, int], ...] = ()
    """The stretches of versions among them that were part of the line."""
    position: int = 0
    """How many messages are left before them."""
    shared: tuple[Segment, ...] | None = None
    newest: int = 0
    cause: str = "rewind"
    voided: tuple[int, ...] = ()
    """Summaries that covered some of them."""
    dropped: tuple[str, ...] = ()
    opened: tuple[CallRef, ...] = ()


class MessagePinned(Facts, frozen=True):
    """A message is kept in every pack, or no longer."""

    version: int
    pinned: bool = True


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Messages `first` to `last` of a stream."""

    stream: str
    first: int
    last: int


class SummaryMade(Facts, frozen=True):
    """Words that may stand for messages `first` to `last`; they stay and can be expanded.

    In a branch, `shared` are stretches of other lines that it stands for too, before its own, oldest first.
    """

    summary: str
    first: int
    last: int
    at_version: int
    messages: int = 0
    tokens: int | None = None
    tokenizer: str | None = None
    trust: str = "external"
    method: str = "extractive"
    level: str = "moderate"
    shared: tuple[Stretch, ...] = ()
    replaces: tuple[int, ...] = ()
    """Versions of earlier summaries that this one stands for as well."""


class SummaryContent(Content, frozen=True):
    """The summary's words, or state drawn from the messages."""

    text: str | None = None
    state: dict[str, Any] | None = None


class TokensCounted(Facts, frozen=True):
    """Counts of some messages by a further tokenizer, so that they are made once."""

    tokenizer: str
    versions: tuple[int, ...]
    counts: tuple[int, ...]
