"""Every error holdfast raises, grouped by what the caller can do about it.

    HoldfastError
    ├── Refused             fix the call; nothing was written
    │   ├── InvalidValue        a value that cannot be stored (also a ValueError)
    │   │   ├── InvalidMessage      something that is not a message
    │   │   ├── ArgumentsUnfit      what a model wrote does not fit the tool
    │   │   └── ValueMismatch       what is stored does not fit the type asked for
    │   ├── ToolPairingError    a result that answers no open call
    │   ├── BudgetTooSmall      not even the least fits; `required` says what would, in `unit`s
    │   ├── EvidenceFailed      evidence cannot be read; `handle` names it, `reason` says why
    │   ├── RedactionFailed     the redaction hook raised, or gave no text
    │   ├── SessionClosed       the session takes no more messages
    │   ├── TooLarge            over one of the size limits
    │   ├── NotFound            no such stream, event, artifact or file
    │   │   ├── SessionNotFound     no such session or thread
    │   │   ├── MessageNotFound     no such message in this conversation
    │   │   ├── EntryNotFound       this key has no value
    │   │   └── EffectNotFound      no such effect waits
    │   ├── StreamClosed        the stream was ended for good
    │   ├── NotAJournal         the path holds something else
    │   ├── NewerSchema         written by a later release
    │   ├── FrameNotFound       no such frame (as all these, also a NotFound)
    │   │   └── ParentNotFound      no such frame to push below
    │   ├── DuplicateFrame      this id is another frame's
    │   ├── InvalidTransition   a frame cannot go from this status to that one
    │   │   ├── FrameEnded          it is completed, failed or cancelled, and that is final
    │   │   ├── FrameSuspended      it waits for an answer; `question` names it
    │   │   ├── ParentNotActive     nothing can be pushed below it now
    │   │   ├── HasLiveChildren     its children must end first
    │   │   └── HasOpenCalls        calls were begun and not ended
    │   ├── LimitExceeded       a limit of the frame or of its ancestors
    │   │   ├── MaxDepthExceeded    too many frames inside one another
    │   │   ├── ToolCallLimitExceeded
    │   │   ├── DeadlineExceeded    its time is over
    │   │   └── InsufficientTokens  more than is available
    │   │       └── BudgetExhausted     nothing is left
    │   ├── StepUnanswered      a step of a turn has no outcome yet
    │   ├── TurnLeft            a step of a turn whose block was left
    │   ├── CallNotFound        no such call is open
    │   └── QuestionNotFound    no such question; the other errors about questions:
    │       ├── AlreadyAnswered     one question, one answer
    │       ├── TokenNotFound       forged, used or replaced
    │       └── QuestionExpired     it came too late
    ├── Conflict            another writer won; reload and try again
    │   ├── VersionConflict     the stream has moved on
    │   ├── KeyReused           this key already stands for something else
    │   ├── StaleEpoch          someone else owns the stream now
    │   └── NotOwner            another process works on this actor; take over with resume_actor
    ├── Unavailable         retry later; nothing was written
    │   ├── Busy                another process holds the write lock
    │   ├── StorageFull         the disk or the quota is full
    │   ├── ReadOnly            the file or folder cannot be written
    │   ├── FileMoved           the file was moved, deleted or replaced while it was open
    │   ├── ActorBusy           another process works on this actor and shows signs of life
    │   ├── Draining            this client takes no new work
    │   └── Closed              this client was closed
    ├── OutcomeUnknown      it may or may not be stored; retry with the same key
    ├── Unsupported         this backend does not declare the capability
    ├── Corrupt             stop, run `holdfast verify`
    ├── Waiting             the work stopped to wait for an answer; `question` names it
    └── EffectFailed        a model, tool or sink failed; the failure is journaled too
        ├── EffectRefused       a sink will never take this effect
        ├── RetryLater          a sink cannot take this effect now; `retry_after` says for how long
        ├── ModelFailed         a model gave no answer; `kind` says why, `retryable` whether waiting helps
        ├── ToolFailed          a tool could not do it, in its own words
        │   └── ToolInterrupted     … and it may have taken effect
        ├── ToolTimedOut        a tool did not end in its time
        ├── SummaryFailed       the summarizer failed, said nothing or too much; nothing was changed
        └── StrategyFailed      a compaction strategy of yours failed or broke a rule; nothing was changed

The docstring of an error is its default message and says what to do. No driver
exception crosses a port: backends translate before they raise.
"""

from __future__ import annotations

import inspect


class HoldfastError(Exception):
    """holdfast could not do this."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class Refused(HoldfastError):
    """The call was refused and nothing was written. Correct it and call again."""


class InvalidValue(Refused, ValueError):
    """A value cannot be stored as given. Pass plain JSON data and valid ids."""


class InvalidMessage(InvalidValue):
    """This is not a message. Pass text, a mapping with role and content, a Message, or a provider's response."""


class ValueMismatch(InvalidValue):
    """What is stored does not fit the type that was asked for. Read it as plain data, or register an upcaster."""


class ToolPairingError(Refused):
    """This result answers no open call. Append the assistant's message with the call first, and one result each."""


class BudgetTooSmall(Refused):
    """Not even what must be shown fits this limit. Raise it to `required`, or make the parts smaller that are named.

    `unit` says what is counted: "tokens", or "messages" where it is their number that is limited.
    """

    def __init__(self, message: str | None = None, *, required: int = 0, unit: str = "tokens") -> None:
        self.required, self.unit = required, unit
        super().__init__(message)


class EvidenceFailed(Refused):
    """Evidence cannot be read. Attach what it should lead to, lower its priority, or detach it."""

    def __init__(self, message: str | None = None, *, handle: str = "", reason: str = "", erased: bool = False) -> None:
        self.handle, self.reason, self.erased = handle, reason, erased
        super().__init__(message)


class RedactionFailed(Refused):
    """The redaction hook raised or did not give text, so nothing was written. Correct the hook and call again."""


class SessionClosed(Refused):
    """This session was closed and takes no more messages. Reset it to begin anew, or open another."""


class TooLarge(Refused):
    """Something is over a size limit. Make it smaller, store it as an artifact, or raise the limit."""


class NotFound(Refused):
    """There is no such thing in this journal. Check the id, the scope and the tenant."""


class SessionNotFound(NotFound):
    """There is no such session or thread. Check its id and the tenant, or let it be created."""


class MessageNotFound(NotFound):
    """There is no such message in this conversation. It was retracted, or the id belongs elsewhere."""


class EntryNotFound(NotFound):
    """This key has no value, or its time is over. Check the key and the scope, or use read, which gives None."""

    def __init__(self, message: str | None = None, *, scope: str = "", key: str = "") -> None:
        self.scope, self.key = scope, key
        super().__init__(message)


class EffectNotFound(NotFound):
    """No such effect waits. It was settled already, or the id is wrong."""


class StreamClosed(Refused):
    """This stream was closed for good and takes no more events. Use a new one."""


class NotAJournal(Refused):
    """This path does not hold a holdfast journal. Give the path of a journal, or of a new file."""


class NewerSchema(Refused):
    """This journal was written by a later release of holdfast. Upgrade holdfast to open it."""


class FrameNotFound(NotFound):
    """There is no such frame. Check its id and the tenant."""


class ParentNotFound(FrameNotFound):
    """There is no such frame to push below. Check the parent's id and the tenant."""


class DuplicateFrame(Refused):
    """A frame with this id exists and is not the same. Use a new id, or none."""


class InvalidTransition(Refused):
    """The frame cannot go from its status to that one."""

    def __init__(self, message: str | None = None, *, before: str = "", after: str = "") -> None:
        self.before, self.after = before, after
        super().__init__(message)


class FrameEnded(InvalidTransition):
    """The frame has ended, and that is final. Push a new one."""


class FrameSuspended(InvalidTransition):
    """The frame waits for an answer. Answer its question, then resume it."""

    def __init__(self, message: str | None = None, *, question: str = "") -> None:
        self.question = question
        super().__init__(message, before="suspended")


class ParentNotActive(InvalidTransition):
    """The parent is suspended or has ended, so nothing can be pushed below it."""


class HasLiveChildren(InvalidTransition):
    """The frame has live children. End them first, or fail or cancel the frame, which cancels them too."""


class HasOpenCalls(InvalidTransition):
    """Calls of this frame were begun and not ended. End them, or fail or cancel the frame."""


class LimitExceeded(Refused):
    """A limit of the frame or of its ancestors was reached."""


class MaxDepthExceeded(LimitExceeded):
    """The frame is at its depth limit. Do the work in it, or raise `limits.depth` of its root."""


class ToolCallLimitExceeded(LimitExceeded):
    """The frame has made all the tool calls it may. End it, or raise its limits."""


class DeadlineExceeded(LimitExceeded):
    """The frame's time is over. End it; work that was begun can still be recorded."""


class InsufficientTokens(LimitExceeded):
    """The frame has fewer tokens available than were asked for."""

    def __init__(self, message: str | None = None, *, requested: int = 0, available: int = 0) -> None:
        self.requested, self.available = requested, available
        super().__init__(message)


class BudgetExhausted(InsufficientTokens):
    """The frame's budget is spent. End it, release a reservation, or push work with a larger grant."""

    def __init__(self, message: str | None = None, *, left: int = 0, requested: int = 1) -> None:
        self.left = left
        super().__init__(message, requested=requested, available=left)


class ArgumentsUnfit(InvalidValue):
    """The arguments that a model wrote do not fit the tool. It is told what is wrong and may call again."""


class StepUnanswered(Refused):
    """A step of a turn was given no outcome. Call done(…) or fail(…) on it before you ask for the next one."""


class TurnLeft(Refused):
    """The block of this turn was left, so its steps count no more. Open the turn again with its key."""


class CallNotFound(NotFound):
    """No such call is open in this frame. It was ended already, or never begun."""


class QuestionNotFound(NotFound):
    """There is no such open question. Its frame was resumed or has ended, or the id is wrong."""


class AlreadyAnswered(QuestionNotFound):
    """This question has an answer already, and one question has one answer."""


class TokenNotFound(QuestionNotFound):
    """This token opens nothing: it was used, replaced by a newer one, or never issued."""


class QuestionExpired(QuestionNotFound):
    """The answer came after the question's time. Ask again, or issue a new token."""


class Conflict(HoldfastError):
    """Another writer was first and nothing was written. Reload and try again."""


class VersionConflict(Conflict):
    """The stream is not at the expected version. Reload it and decide again."""

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        self.stream, self.expected, self.actual = stream, expected, actual
        super().__init__(
            f"{stream} is at version {actual}, not {expected}: another writer was first. "
            "Reload it and decide again; nothing was written."
        )


class KeyReused(Conflict):
    """This key was already used for something else. Use a new key for a new operation."""


class StaleEpoch(Conflict):
    """Another owner has taken this stream over. Stop writing to it and resume from the journal."""

    def __init__(self, stream: str, held: int, current: int) -> None:
        self.stream, self.held, self.current = stream, held, current
        super().__init__(
            f"{stream} is owned under epoch {current}, this writer holds {held}: another owner took "
            "over. Stop and resume from the journal; nothing was written."
        )


class NotOwner(Conflict):
    """Another process works on this actor. Wait for it, or take over with resume_actor once it is gone."""


class Unavailable(HoldfastError):
    """The journal cannot do this now and nothing was written. Try again later."""


class Busy(Unavailable):
    """Another process kept the write lock too long. Try again, or find the process that holds it."""


class StorageFull(Unavailable):
    """The disk is full and nothing was written. Free space; reading still works, writing will resume."""


class ReadOnly(Unavailable):
    """The journal cannot be written here. Check the permissions of the file and of its folder."""


class FileMoved(Unavailable):
    """The file was moved, deleted or replaced while it was open. Close this client, and open the journal again."""


class ActorBusy(Busy):
    """Another process works on this actor and shows signs of life. Try again later, or use another actor."""


class Draining(Unavailable):
    """This client is shutting down and takes no new work. Push it elsewhere."""


class Closed(Unavailable):
    """This client is closed. Open a new one."""


class OutcomeUnknown(HoldfastError):
    """The commit may or may not have reached the disk. Call again with the same key to find out."""


class Unsupported(HoldfastError):
    """This backend does not offer that. See its declared capabilities."""


class Corrupt(HoldfastError):
    """Stored data is damaged. Stop writing, run `holdfast verify`, and restore from a backup."""


class Waiting(HoldfastError):
    """The work stopped to wait for an answer. Answer the question, then run the same code again."""

    def __init__(self, message: str | None = None, *, question: str = "") -> None:
        self.question = question
        super().__init__(message)


class EffectFailed(HoldfastError):
    """A model, tool or sink failed. The failure is in the journal; see its event for details."""


class EffectRefused(EffectFailed):
    """A sink will never take this effect, so it is not tried again. Correct the cause and revive it, or discard it."""


class RetryLater(EffectFailed):
    """A sink cannot take this effect now. It is tried again, not before `retry_after` seconds if that is given."""

    def __init__(self, message: str | None = None, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ModelFailed(EffectFailed):
    """A model gave no answer that can be used. Try again if `retryable`; else correct the request or the settings.

    `kind` is one of rate_limited, unavailable, timeout, cut, malformed, refused, rejected, unauthorised, unknown_model,
    quota and failed: a model of your own that raised something else, which is the cause of this one. `usage` is what it
    used all the same, as far as that is known, and `partial` what it had said.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        kind: str = "unavailable",
        retryable: bool = False,
        status: int | None = None,
        usage: object = None,
        partial: str = "",
    ) -> None:
        self.kind, self.retryable, self.status = kind, retryable, status
        self.usage, self.partial = usage, partial
        super().__init__(message)


class ToolFailed(EffectFailed):
    """A tool could not do it. Raise this in a tool to tell the model in your own words what went wrong."""


class ToolInterrupted(ToolFailed):
    """Whether a tool took effect is not known. Raise this in a tool; its `if_interrupted` says what comes next."""


class ToolTimedOut(EffectFailed):
    """A tool did not end in its time, so whether it took effect is not known. Raise `timeout`, or look."""


class SummaryFailed(EffectFailed):
    """The summarizer failed or said nothing. Nothing was changed; try again, or use another summarizer.

    `longer` says that nothing is wrong with it but that it is no shorter than what it was to stand for. `usage` is what
    its model used all the same, if it asked one.
    """

    def __init__(self, message: str | None = None, *, longer: bool = False) -> None:
        self.longer = longer
        self.usage: object = None
        super().__init__(message)


class StrategyFailed(EffectFailed):
    """A compaction strategy failed or broke a rule. Nothing was changed; correct it, or use another."""
