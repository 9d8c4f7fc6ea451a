"""Stop a turn: keep the partial reply, give every open call a result, and end the frame, in one append."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from holdfast.core.frames import budgets, calls, lifecycle
from holdfast.core.journal.codec import decode_event
from holdfast.errors import Conflict, ToolPairingError
from holdfast.flow.frames.lifecycle import check_live
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal.append import redact_as_configured
from holdfast.flow.turns.append import (
    ConversationOver,
    DraftBuilder,
    MessageBatch,
    TurnPlace,
    add_facts,
    append_to_turn,
    is_conversation_over,
)
from holdfast.flow.turns.calls import cancel_outside_children
from holdfast.ports import Env
from holdfast.records.events.calls import CallFailed, RunReturned, ToolReturned
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import OutcomeContent
from holdfast.records.events.journal import LeaseReleased
from holdfast.records.frames import Call, StreamState
from holdfast.records.ids import ulid_bytes
from holdfast.records.messages import INTERRUPTED_RESULT, Message, ToolCallResult
from holdfast.records.recovery import StopCode
from holdfast.records.sessions import ThreadState
from holdfast.records.usage import Usage

STOP_ATTEMPTS = 5


def stop_turn(
    env: Env,
    turn: TurnPlace,
    *,
    reason: str,
    status: str = "cancelled",
    code: StopCode | None = None,
    partial: Message | None = None,
    usage: Usage | int = 0,
    begun: Collection[str] = (),
    release: int | None = None,
    unowned: bool = False,
) -> list[Message]:
    """End a turn before its reply: keep the partial reply, give calls without a result one, end the frame.

    `usage` is the known usage of the model call under way. Model calls not among `begun` were left by other processes
    and may have been paid for as well. `unowned` takes the lease of a turn without a worker for this one append.
    """
    record, end = budgets.to_usage(usage), redact_as_configured(env, OutcomeContent(error=reason))
    said: list[Message] = []

    def decide(state: StreamState, speech: MessageBatch) -> list[Draft]:
        frame, growing = check_live(env, state, turn.frame), DraftBuilder(state, env.clock.now_ms())
        kept = next((version for version, one in zip(speech.versions, said, strict=True) if one.partial), None)
        for call in frame.calls.values():
            torn = call.kind == "model" and call.id not in begun
            used = record + _estimate_usage(env, call.id) if torn else record
            growing.add(_draft_call_end(turn, growing.state, call, used, kept))
        *below, popped = lifecycle.pop({turn.actor: growing.state}, turn.actor, turn.frame, status, end)[turn.actor]
        growing.add([*below, add_facts(popped, code=code)])
        taken = env.leases.draft_take(env.tenant, turn.actor, state) if unowned else []
        given_back = LeaseReleased(epoch=state.epoch + 1, owner=env.leases.process.name)
        after = [Draft(type="lease.released", facts=given_back)] if taken else []
        return [*taken, *growing.drafts, *after]

    cancel_outside_children(env, load_current_state(env, turn.actor), turn.frame)
    for _ in range(STOP_ATTEMPTS):
        said[:] = _build_final_messages(load_current_state(env, turn.thread).thread, turn, partial)
        try:
            return append_to_turn(env, turn, said, decide, release=release)[0]
        except (ConversationOver, ToolPairingError):  # The thread was reset or rewound just now: retry.
            continue
    raise Conflict(f"{turn.thread} changes too fast to stop its turn. Try again.")


def _build_final_messages(thread: ThreadState | None, turn: TurnPlace, partial: Message | None) -> list[Message]:
    """Return the messages that end a stopped turn: the partial reply, and a result for each open call."""
    if thread is None or is_conversation_over(thread, turn.started):
        return []
    said = [] if partial is None else [replace(partial, partial=True)]
    waiting = [ref for ref in thread.calls.values() if ref.version >= turn.started]
    for ref in sorted(waiting, key=lambda one: (one.version, one.id)):
        answer = ToolCallResult(tool_call_id=ref.id, result=INTERRUPTED_RESULT, is_error=True, interrupted=True)
        said.append(Message(role="tool", tool_results=(answer,), synthetic=True))
    return said


def _estimate_usage(env: Env, call: str) -> Usage:
    """Estimate an interrupted model call's usage from its pack. The same amount counts if the call is made again."""
    asked = env.journal.event(env.tenant, ulid_bytes(call))
    pack = None if asked is None else decode_event(asked).facts.pack
    shown = None if pack is None else env.journal.event(env.tenant, ulid_bytes(pack))
    return Usage() if shown is None else Usage.estimate(decode_event(shown).facts.used)


def _draft_call_end(turn: TurnPlace, state: StreamState, call: Call, usage: Usage, kept: int | None) -> list[Draft]:
    """Return the draft that ends a call; that of a model names the message with the kept part of its reply."""
    if call.kind == "tool":
        return calls.end_call(state, ToolReturned(call=call.id, frame=turn.frame, failed=True, interrupted=True))
    if call.kind == "run":
        return calls.end_call(state, RunReturned(call=call.id, frame=turn.frame, failed=True))
    stream = turn.thread if kept else None
    facts = CallFailed(call=call.id, frame=turn.frame, error="stopped", usage=usage, stream=stream, message=kept)
    return calls.end_call(state, facts)
