"""Events of sessions and their conversations: settings, messages, summaries, branches, endings.

A session's settings and endings are in `session/<id>`, each of its threads in `session/<id>/thread/<id>`. A message's
id is its event's id; its version is its position in the stream.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.records.events.envelope import Content, Facts
from holdfast.records.usage import Usage

SESSION_TEXTS = ("system", "title", "metadata")


class SessionOpened(Facts, frozen=True):
    """A session began, began again as the next `generation`, or got new settings; absent fields are unchanged.

    `texts` names those of system, title and metadata that the content changes. `own` is set if an agent wrote them: if
    its system prompt is among them, `own` is the version of the application's prompt, 0 if there is none; if it is not,
    the application's prompt applies again.
    """

    generation: int = 0
    model: str | None = None
    tokenizer: str | None = None
    tools: str | None = None
    idle_timeout_ms: int | None = None
    """0 turns it off."""
    memory: str | None = None
    texts: tuple[str, ...] = ()
    own: int | None = None


class SessionContent(Content, frozen=True):
    """A session's system prompt, title and metadata."""

    system: str | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None


class ThreadAdded(Facts, frozen=True):
    """The session has another thread."""

    thread: str


class SessionClosing(Facts, frozen=True):
    """A session is ending. `spans` are the versions of each thread to offer to memory under `handover`."""

    cause: str
    generation: int = 0
    reset: bool = False
    handover: str | None = None
    spans: dict[str, tuple[int, int]] = {}


class SessionOffered(Facts, frozen=True):
    """Memory took the history, or failed to for the `attempts`-th time; `given_up` marks the last attempt."""

    handover: str
    taken: bool
    attempts: int = 1
    given_up: bool = False


class SessionClosedFacts(Facts, frozen=True):
    """A session has ended completely; after a `reset` its id may begin again."""

    reset: bool = False
    generation: int = 0


class ThreadOpened(Facts, frozen=True):
    """First event of a thread, and of its next generation. A private thread belongs to a frame."""

    generation: int = 0
    private: bool = False


class CallRef(msgspec.Struct, frozen=True, array_like=True):
    """A tool call waiting for its result: holdfast's id, the message's version, the provider's id shortened.

    Messages of other threads that a branch shares count backwards from -1, so they are older than any of its own.
    """

    id: str
    version: int
    provider: str | None = None


class SharedSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment of another thread: messages with `after` < version <= `until`, as that thread was at version `at`."""

    stream: str
    after: int
    until: int
    at: int


class ThreadForked(Facts, frozen=True):
    """First event of a branch: it continues `parent` after `version` without copying it.

    `shared` is the whole history before the branch, nearest first: later changes there do not affect the branch.
    """

    parent: str
    version: int
    shared: tuple[SharedSegment, ...] = ()
    position: int = 0
    generation: int = 0
    opened: tuple[CallRef, ...] = ()


class ThreadEnded(Facts, frozen=True):
    """The thread accepts no more messages; after a `reset` the next message starts with no history."""

    reset: bool = False
    dropped: tuple[str, ...] = ()


class MessageAppended(Facts, frozen=True):
    """A message entered the conversation. Calls and answers are facts, so that pairing survives erasure."""

    role: str
    position: int = 0
    round: int | None = None
    """The version of the first message of its round, if that is another message."""
    before: int | None = None
    """The version of the message before it in its stream, if retracted ones lie between."""
    tokens: int | None = None
    tokenizer: str | None = None
    calls: tuple[tuple[str, str | None], ...] = ()
    """For each call holdfast's id and the provider's id, shortened."""
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
    """The message: text or typed parts, tool calls with arguments, tool results."""

    text: str | None = None
    parts: list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_results: list[dict[str, Any]] | None = None
    name: str | None = None
    provider_id: str | None = None
    metadata: dict[str, Any] | None = None


class MessageRetracted(Facts, frozen=True):
    """Messages `first` to `last` no longer belong to the thread; they stay in the journal.

    A branch rewound into the history it shares with other threads keeps the remaining segments in `shared`.
    """

    first: int
    last: int
    spans: tuple[tuple[int, int], ...] = ()
    """The ranges of versions among them that belonged to the thread."""
    position: int = 0
    """Number of messages left before them."""
    shared: tuple[SharedSegment, ...] | None = None
    newest: int = 0
    cause: str = "rewind"
    voided: tuple[int, ...] = ()
    """Summaries that covered some of them."""
    dropped: tuple[str, ...] = ()
    opened: tuple[CallRef, ...] = ()


class MessagePinned(Facts, frozen=True):
    """A message was pinned into every pack, or unpinned."""

    version: int
    pinned: bool = True


class MessageSpan(msgspec.Struct, frozen=True, array_like=True):
    """Messages `first` to `last` of a stream."""

    stream: str
    first: int
    last: int


class SummaryMade(Facts, frozen=True):
    """A summary of messages `first` to `last`, which stay in the journal and can be expanded.

    In a branch, `shared` are spans of other threads that it covers too, before its own, oldest first.
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
    shared: tuple[MessageSpan, ...] = ()
    replaces: tuple[int, ...] = ()
    """Versions of earlier summaries that this one replaces."""
    flushed: str | None = None
    """The scope that passages of the covered messages were written to, if any."""
    usage: Usage | None = None
    """The usage of the model that wrote it, with its failed attempts."""
    window: bool = False
    """True if a pack made it of messages older than its window. It does not stand for them in the thread."""

    def spans(self, stream: str) -> tuple[MessageSpan, ...]:
        """Return the spans that a summary in this stream covers, oldest first."""
        return (*self.shared, MessageSpan(stream, self.first, self.last)) if self.last else self.shared


class SummaryContent(Content, frozen=True):
    """The summary's text, or state extracted from the messages."""

    text: str | None = None
    state: dict[str, Any] | None = None


class TokensCounted(Facts, frozen=True):
    """Token counts of some messages under another tokenizer, so that they are counted only once."""

    tokenizer: str
    versions: tuple[int, ...]
    counts: tuple[int, ...]
