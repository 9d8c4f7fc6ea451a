"""The rules of appending messages to a thread: tool pairing and new generations. Pure.

A message is refused only if it answers a call that does not wait for a result. Everything else is
accepted as it is, and made valid where it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import Conflict, SessionClosed, SessionNotFound, ToolPairingError
from holdfast.records.events.envelope import Draft
from holdfast.records.events.sessions import CallRef, MessageAppended, MessageContent, SessionOpened, ThreadOpened
from holdfast.records.frames import StreamState
from holdfast.records.sessions import SessionState, ThreadState
from holdfast.records.usage import Usage


class CallAnswer(msgspec.Struct, frozen=True):
    """The call that a result answers, by holdfast's id or by the shortened provider id."""

    id: str
    provider: str | None
    failed: bool


class MessageDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is ready to be written except for its position and the calls it answers."""

    role: str
    content: MessageContent
    calls: tuple[tuple[str, str | None], ...] = ()
    answers: tuple[CallAnswer, ...] = ()
    tokens: int | None = None
    tokenizer: str | None = None
    partial: bool = False
    synthetic: bool = False
    policy: str | None = None
    model: str | None = None
    provider: str | None = None
    usage: Usage | None = None
    frame: str | None = None
    call: str | None = None
    artifacts: tuple[str, ...] = ()


def is_reset(state: StreamState, name: str) -> bool:
    """Return True if the next message begins a new generation; refuse a thread that takes no more messages."""
    if state.thread is None:
        raise SessionNotFound(f"There is no conversation {name}. Open it with hf.session(…), or check its id.")
    if state.thread.ended and not state.thread.fresh:
        raise SessionClosed(
            f"{name} was closed and takes no more messages. reset() begins anew under its id; "
            "hf.new_session() begins another."
        )
    return state.thread.ended


def begin_generation(thread: ThreadState, session: StreamState) -> tuple[list[Draft], list[Draft]]:
    """Return the events that open the next generation of a session that was reset.

    The first list is for the thread, the second for the session, if this thread is the first to begin it.
    """
    known = session.session or SessionState()
    if known.status == "open" and known.generation <= thread.generation:
        raise Conflict("Another process ended the session meanwhile. Try again.")  # The known state was stale.
    if known.status == "open":
        return [Draft(type="thread.opened", facts=ThreadOpened(generation=known.generation))], []
    generation = known.generation + 1
    opened = Draft(type="session.opened", facts=SessionOpened(generation=generation))
    return [Draft(type="thread.opened", facts=ThreadOpened(generation=generation))], [opened]


def append_messages(thread: ThreadState, version: int, entries: Sequence[MessageDraft]) -> list[Draft]:
    """Return the events for messages that follow `version`, each with its position and the calls it answers."""
    waiting = dict(thread.calls)
    position, drafts = thread.messages, []
    before = thread.newest if thread.edited > thread.newest else None
    for entry in entries:
        version += 1
        position += 1
        answers, round = _match_answers(waiting, entry) if entry.answers else ((), None)
        facts = MessageAppended(
            role=entry.role,
            position=position,
            round=round,
            before=before,
            tokens=entry.tokens,
            tokenizer=entry.tokenizer,
            calls=entry.calls,
            answers=answers,
            failed=tuple([id for id, answer in zip(answers, entry.answers, strict=True) if answer.failed]),
            partial=entry.partial,
            synthetic=entry.synthetic,
            policy=entry.policy,
            model=entry.model,
            provider=entry.provider,
            usage=entry.usage,
            frame=entry.frame,
            call=entry.call,
            artifacts=entry.artifacts,
        )
        drafts.append(Draft(type="message.appended", facts=facts, content=entry.content))
        before = None
        waiting.update({id: CallRef(id, version, provider) for id, provider in entry.calls})
    return drafts


def _match_answers(waiting: dict[str, CallRef], entry: MessageDraft) -> tuple[tuple[str, ...], int | None]:
    """Return the calls that a message answers, which no longer wait, and the round it belongs to."""
    found: list[CallRef] = []
    for answer in entry.answers:
        call = _find_call(waiting, answer)
        del waiting[call.id]
        found.append(call)
    # A call from a shared parent thread has no position in this stream: its result begins a round here.
    return tuple([call.id for call in found]), found[0].version if found[0].version > 0 else None


def _find_call(waiting: dict[str, CallRef], answer: CallAnswer) -> CallRef:
    """Find a call by holdfast's id, else by the provider's.

    Providers reuse ids: of the calls that match, the first one of the newest message is taken.
    """
    if answer.id in waiting:
        return waiting[answer.id]
    wanted = answer.provider or answer.id
    fits = [call for call in waiting.values() if call.provider == wanted] if wanted else list(waiting.values())
    if not wanted and len(fits) > 1:
        raise ToolPairingError(f"{len(fits)} calls wait for results. Say which one this answers: tool_call_id=….")
    if not fits:
        which = f" {wanted!r}" if wanted else ""
        raise ToolPairingError(
            f"No call{which} waits for a result: it was answered already, or never made. "
            "Append the assistant's message with its tool calls first."
        )
    newest = max(call.version for call in fits)
    return min((call for call in fits if call.version == newest), key=lambda call: call.id)
