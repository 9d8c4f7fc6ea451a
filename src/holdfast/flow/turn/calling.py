"""The calls of a turn: what a model answered, tools that begin, what they gave. Each is one append over two streams.

The frame that works for a tool call has the call's id. It begins with the intent and ends with the outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.call_words import call_words
from holdfast.core.decide import amounts, calls, evidence, lifecycle
from holdfast.core.decide import questions as rules
from holdfast.core.stack import has_live_children, leaf_first, live_frame
from holdfast.core.step import waited_for
from holdfast.errors import FrameSuspended, ToolPairingError
from holdfast.flow import artifacts, telling
from holdfast.flow.redacting import clean
from holdfast.flow.stack import frames
from holdfast.flow.stack.frames import check_live, on_frame
from holdfast.flow.stack.pricing import priced
from holdfast.flow.stack.showing import current
from holdfast.flow.turn.turns import stop_requested
from holdfast.flow.turn.writing import ConversationOver, Growing, Place, Speech, write
from holdfast.ports import Acting, Ports
from holdfast.records.events.calls import CallContent
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import GoalContent, OutcomeContent
from holdfast.records.frames import FrameLimits, StreamState
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult
from holdfast.records.usage import Usage

REPLY = "message"
"""The kind of result under which a turn names its final reply."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that is about to be made."""

    request: ToolCallRequest
    if_interrupted: str = "ask"
    attempt: int = 1
    tokens: int | None = None
    """What its frame is granted; nothing if the turn's budget is limited and nobody says otherwise."""
    message: int = 0
    """The version of the message that asks for it."""
    arguments: Any = None
    """What is used in place of what the model wrote, because somebody changed it."""


class Returned(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a tool call."""

    result: Any
    failed: bool = False
    interrupted: bool = False


def end_model(
    ports: Ports,
    acting: Acting,
    turn: Place,
    call: str,
    message: Message,
    *,
    model: str | None,
    usage: Usage | int = 0,
    finish: str | None = None,
    doubtful: Usage | None = None,
    may_end: bool = True,
    release: int | None = None,
) -> tuple[Message, Usage | None]:
    """What a model answered, with its words; gives the message and, if the turn has ended with it, what that used.

    `model` is what the call was begun with: not every reply says who gave it.
    """
    record = priced(ports, amounts.usage_of(usage), message.model or model)
    told = message.usage is not None or record.spent or record.cost
    said = msgspec.structs.replace(message, usage=record) if told else message
    total = Usage()

    def decide(state: StreamState, speech: Speech) -> list[Draft]:
        nonlocal total
        check_live(ports, acting, state, turn.frame)
        growing = Growing(state, ports.clock.now_ms())
        ended = calls.end_model(
            state,
            turn.frame,
            call,
            usage=record,
            finish=finish,
            error=None,
            retryable=False,
            doubtful=doubtful,
            content=None,
        )
        facts = msgspec.structs.replace(ended[0].facts, stream=turn.line, message=speech.versions[0])
        growing.add([msgspec.structs.replace(ended[0], facts=facts)])
        total = growing.state.frames[turn.frame].usage
        # Somebody spoke since the model was shown the conversation: it has not answered that yet.
        unseen = speech.line.newest > speech.line.packed
        ends = may_end and not speech.calls[0] and not unseen and not _is_busy(growing.state, turn)
        # Whoever asked for a stop before the reply was kept was told that it stops: it does, with the reply as said.
        if ends and not (_is_more(state, turn, call) and stop_requested(ports, acting, turn) is not None):
            growing.add(_finished(turn, growing.state, speech.ids[0]))
        return growing.drafts

    messages, changed = write(ports, acting, turn, [said], decide, release=release, call=call)
    telling.call_ended(ports, call, usage=record, finish=finish, error=None)
    return messages[0], total if any(name == "frame.popped" for name, _ in changed.facts) else None


def _is_busy(state: StreamState, turn: Place) -> bool:
    """Whether work of the turn's own is not done. What the model said is kept; its end has to wait."""
    frame = live_frame(state, turn.frame)
    return bool(frame.calls) or frame.question is not None or has_live_children(state.frames, frame)


def _is_more(state: StreamState, turn: Place, call: str) -> bool:
    """Whether anything was written about a turn since a call of its was begun: then somebody may want it to stop."""
    return state.version > live_frame(state, turn.frame).calls[call].version


def _finished(turn: Place, state: StreamState, reply: str) -> list[Draft]:
    """The end of a turn, and which message is its reply."""
    named = evidence.add_result(state, turn.frame, REPLY, reply, None)
    after = Growing(state, 0)
    after.add(named)
    popped = lifecycle.pop({turn.actor: after.state}, turn.actor, turn.frame, "completed", OutcomeContent())
    return [*named, *popped[turn.actor]]


def finish(ports: Ports, acting: Acting, turn: Place, reply: Message, *, release: int | None = None) -> bool:
    """End a turn whose last word is the model's; False if somebody said something meanwhile, or wants it to stop."""

    def decide(state: StreamState, speech: Speech) -> list[Draft]:
        check_live(ports, acting, state, turn.frame)
        answered = speech.line.newest == reply.version and stop_requested(ports, acting, turn) is None
        return _finished(turn, state, reply.id) if answered else []

    return any(name == "frame.popped" for name, _ in write(ports, acting, turn, (), decide, release=release)[1].facts)


def begin_tools(ports: Ports, acting: Acting, turn: Place, wanted: Sequence[Beginning]) -> None:
    """Tools are about to be called: an intent and a frame for each, in one append."""
    contents = [clean(ports, _edited(one)) for one in wanted]
    goals = [clean(ports, GoalContent(goal=call_words(one.request))) for one in wanted]

    def decide(state: StreamState) -> list[Draft]:
        growing = Growing(state, ports.clock.now_ms())
        calls.check_tool_calls(state, calls.check_working(state, turn.frame, ports.clock.now_ms()), len(wanted))
        for one, content, goal in zip(wanted, contents, goals, strict=True):
            frame = growing.state.frames.get(one.request.id)
            if frame is not None and frame.question is not None:  # With the intent: else a crash would lose the answer.
                growing.add(rules.resume(growing.state, frame.id, now=ports.clock.now_ms()))
            growing.add(_begun(ports, turn, growing.state, one, content))
            if one.request.id not in growing.state.frames:
                growing.add(pushed(ports, turn, growing.state, one, goal))
        return growing.drafts

    on_frame(ports, acting, turn.frame, decide)
    for one in wanted:
        ports.states.note_place(acting.tenant, one.request.id, turn.actor)
        telling.tool_begun(
            ports,
            one.request.id,
            frame=turn.frame,
            name=one.request.name,
            conversation=turn.line,
            attempt=one.attempt,
        )


def _edited(one: Beginning) -> CallContent | None:
    return None if one.arguments is None else CallContent(arguments=one.arguments)


def _begun(ports: Ports, turn: Place, state: StreamState, one: Beginning, content: CallContent | None) -> list[Draft]:
    (draft,) = calls.begin_tool(
        state,
        turn.frame,
        one.request.id,
        one.request.name,
        if_interrupted=one.if_interrupted,
        content=content,
        now=ports.clock.now_ms(),
    )
    facts = msgspec.structs.replace(draft.facts, stream=turn.line, message=one.message, attempt=one.attempt)
    return [msgspec.structs.replace(draft, facts=facts)]


def pushed(ports: Ports, turn: Place, state: StreamState, one: Beginning, goal: GoalContent) -> list[Draft]:
    parent = live_frame(state, turn.frame)
    unlimited = parent.tokens.available is None
    (draft,) = lifecycle.push(
        {turn.actor: state},
        turn.actor,
        one.request.id,
        parent=(turn.actor, turn.frame),
        tokens=one.tokens if one.tokens is not None else None if unlimited else 0,
        limits=None,
        default=FrameLimits(),
        content=goal,
        now=ports.clock.now_ms(),
    )[turn.actor]
    return [msgspec.structs.replace(draft, facts=msgspec.structs.replace(draft.facts, tool_call=True))]


def end_tool(
    ports: Ports,
    acting: Acting,
    turn: Place,
    request: ToolCallRequest,
    came: Returned,
    *,
    files: Sequence[bytes] = (),
    answered: bool = False,
) -> Message:
    """What a tool gave: the result in the conversation, the outcome of its intent, the end of its frame.

    `files` are bodies that no message holds: they are kept as artifacts, which the outcome names. `answered` says that
    the outcome is what a person answered to the question that the call waits for.
    """
    answer = ToolCallResult(
        tool_call_id=request.id,
        result=came.result,
        is_error=came.failed,
        provider_id=request.provider_id,
        interrupted=came.interrupted,
    )
    message = Message(role="tool", tool_results=(answer,))
    placed = [artifacts.prepare(ports, acting, body) for body in files]
    names = tuple(dict.fromkeys(one.name.hex() for one in placed))

    def decide(state: StreamState, speech: Speech) -> list[Draft]:
        check_live(ports, acting, state, turn.frame)
        growing = Growing(state, ports.clock.now_ms())
        if not answered:
            _check_answerable(state, request.id)
        if request.id in live_frame(state, turn.frame).calls:
            growing.add(_returned(turn, state, request.id, came, speech, names))
        growing.add(_child_ended(turn, growing.state, request.id, came))
        return growing.drafts

    now = current(ports, acting, turn.actor)
    if not answered:
        _check_answerable(now, request.id)
    call_back(ports, acting, now, request.id)
    try:
        said = write(ports, acting, turn, [message], decide, placed=placed)[0][0]
        telling.tool_ended(ports, request.id, failed=came.failed, interrupted=came.interrupted)
        return said  # noqa: TRY300  # What comes after is another outcome.
    except (ConversationOver, ToolPairingError):
        # The call was rewound, or somebody else answered it: there is no place for the result any more.
        drop_tool(ports, acting, turn, request.id, came)
        return message


def drop_tool(ports: Ports, acting: Acting, turn: Place, call: str, came: Returned) -> None:
    """The outcome of a call that nobody waits for any more: its intent and its frame end, and nothing is said."""

    def decide(state: StreamState) -> list[Draft]:
        growing = Growing(state, ports.clock.now_ms())
        if call in live_frame(state, turn.frame).calls:
            how = {"failed": came.failed, "interrupted": came.interrupted}
            growing.add(calls.end_tool(state, turn.frame, call, tokens=None, content=None, **how))
        growing.add(_child_ended(turn, growing.state, call, came))
        return growing.drafts

    call_back(ports, acting, current(ports, acting, turn.actor), call)
    on_frame(ports, acting, turn.frame, decide)


def _check_answerable(state: StreamState, call: str) -> None:
    """A tool that waits for an answer gives nothing, whatever its code did with the exception that said so."""
    frame = state.frames.get(call)
    asked = [] if frame is None else waited_for(state.frames, frame)
    if asked:
        raise FrameSuspended(
            f"The call {call} waits for an answer to question {asked[0].id}, so nothing else counts as its "
            "outcome. Answer the question; the tool runs again then.",
            question=asked[0].id,
        )


def _returned(
    turn: Place, state: StreamState, call: str, came: Returned, speech: Speech, names: tuple[str, ...]
) -> list[Draft]:
    (draft,) = calls.end_tool(
        state, turn.frame, call, failed=came.failed, interrupted=came.interrupted, tokens=None, content=None
    )
    facts = msgspec.structs.replace(draft.facts, stream=turn.line, message=speech.versions[0], artifacts=names)
    return [msgspec.structs.replace(draft, facts=facts)]


def _child_ended(turn: Place, state: StreamState, call: str, came: Returned) -> list[Draft]:
    """The frame of a call ends with it; what its tool left undone below ends as well."""
    frame = state.frames.get(call)
    if frame is None:
        return []
    undone = has_live_children(state.frames, frame) or bool(frame.calls) or frame.question is not None
    status = "failed" if came.failed or undone else "completed"
    content = OutcomeContent(error="failed") if status == "failed" else OutcomeContent()
    return list(lifecycle.pop({turn.actor: state}, turn.actor, call, status, content)[turn.actor])


def call_back(ports: Ports, acting: Acting, state: StreamState, frame: str) -> None:
    """What works for a frame in other streams ends first: one append is about its turn's two."""
    live = state.frames
    if frame not in live:
        return
    for one in (*leaf_first(live, frame), live[frame]):
        for child in one.away:
            frames.pop(ports, acting, child, "cancelled", OutcomeContent(error="What it worked for has ended."))
