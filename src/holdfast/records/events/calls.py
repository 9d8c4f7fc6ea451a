"""Events of calls: intent before, outcome after, with the same call id. Also the packs that the calls were given."""

from __future__ import annotations

from typing import Any

from holdfast.records.events.envelope import Content, Facts
from holdfast.records.usage import Usage


class ModelRequested(Facts, frozen=True):
    """A model is about to be called."""

    call: str
    frame: str
    model: str | None = None
    pack: str | None = None
    context_hash: str | None = None
    attempt: int = 1
    hosted_tools: bool = False
    if_interrupted: str = "retry"


class ModelResponded(Facts, frozen=True):
    """A model answered; its text is the message at `message` of `stream`."""

    call: str
    frame: str
    usage: Usage = Usage()
    finish: str | None = None
    stream: str | None = None
    message: int | None = None
    doubtful: Usage | None = None
    overdraft: int = 0


class CallFailed(Facts, frozen=True):
    """A call ended in an error; its usage is recorded all the same."""

    call: str
    frame: str
    error: str
    retryable: bool = False
    usage: Usage = Usage()
    stream: str | None = None
    message: int | None = None
    overdraft: int = 0


class ToolRequested(Facts, frozen=True):
    """A tool is about to be called; its arguments are in the message at `message` of `stream`."""

    call: str
    frame: str
    name: str
    if_interrupted: str = "ask"
    stream: str | None = None
    message: int | None = None
    position: int = 0
    attempt: int = 1


class ToolReturned(Facts, frozen=True):
    """A tool returned; its result is the message at `message` of `stream`, or this event's content."""

    call: str
    frame: str
    failed: bool = False
    interrupted: bool = False
    stream: str | None = None
    message: int | None = None
    tokens: int | None = None


class RunRequested(Facts, frozen=True):
    """A memoised step is about to run."""

    call: str
    frame: str
    name: str
    if_interrupted: str = "ask"


class RunReturned(Facts, frozen=True):
    """A memoised step returned; its value is this event's content."""

    call: str
    frame: str
    failed: bool = False


class CallContent(Content, frozen=True):
    """Arguments, values and errors of a call outside a conversation."""

    arguments: Any = None
    value: Any = None
    error: str | None = None
    provider_id: str | None = None
    response: Any = None


class ContextPacked(Facts, frozen=True, kw_only=True):
    """The pack a model was shown: each piece's origin and cut, so that it can be rebuilt.

    `before` is the version of the previous pack.
    """

    pack: str
    call: str
    frame: str | None = None
    digest: str
    level: str
    layout: str
    tokenizer: str
    exact: bool
    renderer: int
    settings: str
    budget: int
    asked: int
    """The budget that was asked for, before any limit."""
    used: int
    role: str = "main"
    model: str | None = None
    at_seq: int = 0
    window_stream: str | None = None
    window_start: int | None = None
    cached_tokens: int = 0
    limited_by: str | None = None
    breakdown: dict[str, int] = {}
    manifest: tuple[PackedPiece, ...] = ()
    left_out: tuple[OmittedPiece, ...] = ()
    shown: int = 0
    """Number of messages of the thread that are shown."""
    truncated: int = 0
    """Number of messages of the thread that are neither shown nor summarised."""
    questions: tuple[str, ...] = ()
    """Ids of older rounds that are shown because the turn answers them."""
    stable: int = 0
    """Number of segments before the content fetched for this call only."""
    before: int = 0


class PackedPiece(Facts, frozen=True, kw_only=True):
    """One piece of a pack: its origin, its cut and its tokens."""

    kind: str
    id: str
    tokens: int = 0
    stream: str | None = None
    first: int | None = None
    last: int | None = None
    part: str | None = None
    handle: str | None = None
    handle_stream: str | None = None
    handle_version: int | None = None
    artifact: str | None = None
    entry: str | None = None
    cut: str | None = None
    trust: str | None = None
    priority: str | None = None


class OmittedPiece(Facts, frozen=True, kw_only=True):
    """A candidate left out of a pack, with the reason in one word."""

    id: str
    kind: str
    why: str
    tokens: int | None = None
