"""Events of frames: pushed, changed, lent to, suspended, resumed, popped.

The nine names of the source documents stay; reservations, spending, handle removal,
overdue marks and children in other streams have names of their own under `frame.`
and `child.`, so that no event needs a map of arbitrary changes.
"""

from __future__ import annotations

from typing import Any

from holdfast.records.events.envelope import Content, Facts
from holdfast.records.frames import FrameLimits
from holdfast.records.usage import Usage


class FramePushed(Facts, frozen=True):
    """A unit of work began. `parent` is a frame of this stream; `outer` is one of another stream."""

    frame: str
    depth: int = 0
    parent: str | None = None
    outer: str | None = None
    outer_stream: str | None = None
    granted: int | None = None
    limits: FrameLimits = FrameLimits()
    deadline: int | None = None
    conversation: str | None = None
    """For a turn: the thread that it answers in."""
    visible_from: int | None = None
    """For a turn: the version of the message that began it."""
    agent: str | None = None
    """For a turn: the agent that answers, so that the same agent can resume it."""
    tool_call: bool = False
    """True if the frame works for a tool call of a turn: then its id is the call's."""


class GoalContent(Content, frozen=True):
    """The purpose of a frame."""

    goal: str | None = None
    inputs: Any = None
    metadata: dict[str, Any] | None = None


class FrameUpdated(Facts, frozen=True):
    """Status, limits, deadline, clock or texts of a frame changed; absent fields did not change."""

    frame: str
    status: str | None = None
    limits: FrameLimits | None = None
    deadline: int | None = None
    granted: int | None = None
    context_hash: str | None = None
    texts: bool = False
    stopped_at: int | None = None
    runs: bool = False


class FrameReserved(Facts, frozen=True):
    """Tokens were set aside for a purpose; a negative amount gives them back."""

    frame: str
    purpose: str
    amount: int


class FrameSpent(Facts, frozen=True):
    """Tokens were spent, from a reservation if `purpose` is given."""

    frame: str
    usage: Usage
    purpose: str | None = None
    from_reserved: int = 0
    overdraft: int = 0


class FramePopped(Facts, frozen=True):
    """A unit of work ended. `usage` covers the whole subtree; the grant goes back to the parent.

    `code` names the limit or the failure that stopped a turn, as `Reply.code` does.
    """

    frame: str
    status: str
    code: str | None = None
    parent: str | None = None
    granted: int = 0
    usage: Usage = Usage()
    used: int = 0
    wakes_parent: bool = False
    cascade: bool = False
    question: str | None = None


class OutcomeContent(Content, frozen=True):
    """The outcome in free text and data."""

    summary: str | None = None
    error: str | None = None
    value: Any = None


class FrameSuspendedFacts(Facts, frozen=True):
    """A frame was suspended to wait. `token` is the hash of a link token, never the token."""

    frame: str
    question: str
    kind: str
    prior: str
    parent: str | None = None
    released: int = 0
    expires_at: int | None = None
    on_expiry: str | None = None
    until: int | None = None
    token: str | None = None
    call: str | None = None
    within: str | None = None


class QuestionContent(Content, frozen=True):
    """The question."""

    reason: str | None = None
    options: list[str] | None = None
    recommended: str | None = None
    arguments: Any = None
    payload: Any = None


class QuestionReissued(Facts, frozen=True):
    """The link token was replaced; the earlier one is void."""

    frame: str
    question: str
    token: str
    expires_at: int | None = None


class QuestionAnswered(Facts, frozen=True):
    """An authorised caller answered, by id or by token; the owner resumes the frame."""

    frame: str
    question: str
    via: str
    approved: bool | None = None
    edited: bool = False


class AnswerContent(Content, frozen=True):
    """The answer, with arguments as edited on approval."""

    payload: Any = None
    arguments: Any = None
    note: str | None = None


class FrameResumed(Facts, frozen=True):
    """A suspended frame resumed, its grant reserved again and its deadline moved by the pause."""

    frame: str
    question: str
    status: str
    parent: str | None = None
    reserved_again: int = 0
    deadline: int | None = None


class FrameOverdue(Facts, frozen=True):
    """A frame passed its deadline; a flag for people, which does not end it."""

    frame: str
    deadline: int


class HandleAdded(Facts, frozen=True):
    """Evidence was attached, or attached again with new values."""

    frame: str
    handle: str
    kind: str
    priority: int = 50
    position: int = 0
    tokens: int | None = None
    policy: str | None = None
    trust: str | None = None
    source_stream: str | None = None
    source_version: int | None = None
    call: str | None = None


class HandleContent(Content, frozen=True):
    """The description and location of the evidence."""

    description: str | None = None
    target: str | None = None
    body: str | None = None
    metadata: dict[str, Any] | None = None


class HandlesRemoved(Facts, frozen=True):
    """Evidence was detached. This is reversible: `removal` identifies it."""

    frame: str
    handles: tuple[str, ...]
    removal: str


class HandlesRestored(Facts, frozen=True):
    """The evidence that one removal or compaction detached was attached again."""

    frame: str
    handles: tuple[str, ...]
    removal: str


class ResultAdded(Facts, frozen=True):
    """A frame produced a result."""

    frame: str
    position: int
    kind: str
    ref: str


class FrameCompacted(Facts, frozen=True):
    """A frame's context was compacted; detached evidence can be restored by `compaction`."""

    frame: str
    compaction: str
    strategy: str
    level: str
    removed: tuple[str, ...] = ()
    original_tokens: int = 0
    final_tokens: int = 0
    summarized: int = 0
    reached_target: bool = True
    flushed: str | None = None
    """The scope that passages of the detached evidence were written to, if any."""
    sources: tuple[tuple[str, int], ...] = ()
    """The stream and version of each event whose text is in these passages."""


class ChildPushed(Facts, frozen=True):
    """A frame of this stream lent tokens to a child in another stream."""

    frame: str
    child: str
    child_stream: str
    granted: int = 0


class ChildSettled(Facts, frozen=True):
    """A child in another stream ended; its grant came back and its usage was recorded."""

    frame: str
    child: str
    status: str
    granted: int = 0
    usage: Usage = Usage()
    used: int = 0
    wakes_parent: bool = False


class TurnJoined(Facts, frozen=True):
    """A message arrived during a turn, which answers it too: the one at `message` of `stream`."""

    frame: str
    stream: str
    message: int


class CancelRequested(Facts, frozen=True):
    """A stop of the frame was requested; its owner acts on it."""

    frame: str
