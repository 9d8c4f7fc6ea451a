"""The catalogue: every event's wire name, schema, kind, facts and content. Names are for ever.

`owner` events carry the epoch of whoever owns the stream and are refused once another
owner took over. `inbox` events may come from any authorised writer and carry none.
`minted` facts are made by holdfast at the time of writing (ids, clocks): a retry with
the same key may bring others, so they are not compared.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.events import calls, frames, journal, memory, sessions, state, work
from holdfast.records.events.envelope import AppContent, AppFacts, Content, Facts

Kind = Literal["owner", "inbox"]
APP_PREFIX = "app."


class EventType(msgspec.Struct, frozen=True):
    """One row of the catalogue."""

    name: str
    kind: Kind
    facts: type[Facts]
    content: type[Content] | None = None
    schema: int = 1
    minted: frozenset[str] = frozenset()


def _type(
    name: str,
    kind: Kind,
    facts: type[Facts],
    content: type[Content] | None = None,
    *,
    schema: int = 1,
    minted: str = "",
) -> EventType:
    return EventType(name, kind, facts, content, schema, frozenset(minted.split()))


_TYPES = (
    # the journal itself
    _type("lease.taken", "inbox", journal.LeaseTaken),
    _type("lease.released", "owner", journal.LeaseReleased),
    _type("stream.closed", "owner", journal.StreamClosed, journal.ReasonContent),
    _type("subject.erased", "inbox", journal.SubjectErased),
    _type("actor.resumed", "owner", journal.ActorResumed, minted="took_ms last_seq"),
    # frames
    _type("frame.pushed", "owner", frames.FramePushed, frames.GoalContent, minted="frame deadline visible_from"),
    _type("frame.updated", "owner", frames.FrameUpdated, frames.GoalContent, minted="deadline stopped_at"),
    _type("frame.popped", "owner", frames.FramePopped, frames.OutcomeContent),
    _type(
        "frame.suspended", "owner", frames.FrameSuspended, frames.QuestionContent, minted="question expires_at token"
    ),
    _type("frame.resumed", "owner", frames.FrameResumed, frames.AnswerContent, minted="deadline"),
    _type("frame.handle_added", "owner", frames.HandleAdded, frames.HandleContent, minted="handle position"),
    _type("frame.handles_removed", "owner", frames.HandlesRemoved, journal.ReasonContent, minted="removal"),
    _type("frame.handles_restored", "owner", frames.HandlesRestored),
    _type("frame.result_added", "owner", frames.ResultAdded, frames.OutcomeContent, minted="position"),
    _type("frame.compacted", "owner", frames.FrameCompacted, sessions.SummaryContent, minted="compaction"),
    _type("frame.reserved", "owner", frames.FrameReserved),
    _type("frame.spent", "owner", frames.FrameSpent),
    _type("frame.overdue", "inbox", frames.FrameOverdue),
    _type("child.pushed", "owner", frames.ChildPushed, minted="child"),
    _type("child.settled", "inbox", frames.ChildSettled),
    _type("turn.joined", "inbox", frames.TurnJoined, minted="message"),
    _type("cancel.requested", "inbox", frames.CancelRequested, journal.ReasonContent),
    # questions
    _type("question.answered", "inbox", frames.QuestionAnswered, frames.AnswerContent),
    _type("question.reissued", "inbox", frames.QuestionReissued, minted="token expires_at"),
    # calls and packs
    _type("context.packed", "inbox", calls.ContextPacked, minted="pack call at_seq before cached_tokens"),
    _type("model.requested", "owner", calls.ModelRequested, calls.CallContent, minted="call pack"),
    _type("model.responded", "owner", calls.ModelResponded, calls.CallContent, minted="message"),
    _type("model.failed", "owner", calls.CallFailed, calls.CallContent, minted="message"),
    _type("tool.requested", "owner", calls.ToolRequested, calls.CallContent, minted="call message"),
    _type("tool.returned", "owner", calls.ToolReturned, calls.CallContent, minted="message"),
    _type("run.requested", "owner", calls.RunRequested, calls.CallContent, minted="call"),
    _type("run.returned", "owner", calls.RunReturned, calls.CallContent),
    # sessions and conversations
    _type("session.opened", "inbox", sessions.SessionOpened, sessions.SessionContent),
    _type("session.changed", "inbox", sessions.SessionOpened, sessions.SessionContent),
    _type("session.closing", "inbox", sessions.SessionClosing, minted="handover spans generation"),
    _type("session.offered", "owner", sessions.SessionOffered, journal.ReasonContent),
    _type("session.closed", "inbox", sessions.SessionClosed),
    _type("thread.added", "inbox", sessions.ThreadAdded),
    _type("thread.opened", "inbox", sessions.ThreadOpened),
    _type("thread.forked", "inbox", sessions.ThreadForked, minted="shared position opened generation"),
    _type("thread.ended", "inbox", sessions.ThreadEnded, minted="dropped"),
    _type(
        "message.appended",
        "inbox",
        sessions.MessageAppended,
        sessions.MessageContent,
        minted="position round before calls answers failed",
    ),
    _type("message.retracted", "inbox", sessions.MessageRetracted, journal.ReasonContent),
    _type("message.pinned", "inbox", sessions.MessagePinned),
    _type("summary.made", "inbox", sessions.SummaryMade, sessions.SummaryContent, minted="summary"),
    _type("tokens.counted", "inbox", sessions.TokensCounted),
    # state, graph, effects
    _type("state.written", "inbox", state.StateWritten, state.ValueContent, minted="expires_at effect"),
    _type("state.deleted", "inbox", state.StateDeleted, minted="effect"),
    _type("state.linked", "inbox", state.StateLinked, state.ValueContent, minted="effect"),
    _type("state.unlinked", "inbox", state.StateUnlinked, minted="effect"),
    _type("operator.ran", "inbox", state.OperatorRan, state.OutputContent, minted="effects suppressed"),
    _type("effect.declared", "inbox", state.EffectDeclared, state.EffectContent, minted="effect"),
    _type("effect.settled", "inbox", state.EffectSettled, state.SettledContent, minted="retry_at"),
    _type("effect.revived", "inbox", state.EffectRevived),
    # workers and supervision
    _type("worker.reported", "inbox", work.WorkerReported, work.ReportContent),
    _type("worker.signalled", "inbox", work.WorkerSignalled, work.ReportContent, minted="signal"),
    _type("child.started", "inbox", work.ChildStarted),
    _type("child.exited", "inbox", work.ChildExited, journal.ReasonContent),
    _type("supervisor.escalated", "inbox", work.SupervisorEscalated),
    # tasks and workflows
    _type("task.created", "owner", work.TaskCreated, work.PlanContent, minted="task"),
    _type("task.modified", "owner", work.TaskModified, work.PlanContent, minted="revision"),
    _type("task.changed", "owner", work.TaskChanged, journal.ReasonContent),
    _type("task.deleted", "owner", work.TaskDeleted),
    _type("node.changed", "owner", work.NodeChanged, frames.OutcomeContent),
    # memory
    _type("memory.noted", "inbox", memory.MemoryNoted, memory.MemoryContent, minted="memory"),
    _type("memory.forgotten", "inbox", memory.MemoryForgotten, journal.ReasonContent),
    _type("memory.extracted", "inbox", memory.MemoryExtracted),
    _type("episode.recorded", "inbox", memory.EpisodeRecorded, memory.EpisodeContent, minted="episode"),
)

CATALOGUE: dict[str, EventType] = {row.name: row for row in _TYPES}

_APP = _type("app.*", "inbox", AppFacts, AppContent)


def event_type(name: str) -> EventType | None:
    """The catalogue's row for a wire name; None if this release does not know it."""
    return CATALOGUE.get(name) or (_APP if name.startswith(APP_PREFIX) else None)


def known_type(name: str) -> EventType:
    """The catalogue's row for a type that is to be written; refuses unknown names."""
    row = event_type(name)
    if row is None:
        raise InvalidValue(f"{name!r} is not an event of the catalogue. An application's own events begin with 'app.'.")
    return row
