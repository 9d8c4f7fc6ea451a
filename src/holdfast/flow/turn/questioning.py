"""Questions about a tool call: its frame waits, so that tools beside each other can wait beside each other."""

from __future__ import annotations

from typing import Any

from holdfast.core.call_words import call_words
from holdfast.core.decide import questions as rules
from holdfast.core.stack import children
from holdfast.core.tool_schemas import misfit
from holdfast.errors import CallNotFound, InvalidValue
from holdfast.flow.context import briefs
from holdfast.flow.conversation.lines import line_of
from holdfast.flow.redacting import clean
from holdfast.flow.stack import asking
from holdfast.flow.stack.frames import on_frame
from holdfast.flow.stack.showing import current, stream_of
from holdfast.flow.turn.calling import Beginning, pushed
from holdfast.flow.turn.turns import call_message, turn_place
from holdfast.flow.turn.writing import Growing, Place
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import FrameSuspended as Suspended
from holdfast.records.events.frames import GoalContent, QuestionContent
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.messages import ToolDef
from holdfast.records.packs import MAIN_ROLE
from holdfast.records.resume import Answer


def ask_first(
    ports: Ports,
    acting: Acting,
    turn: Place,
    one: Beginning,
    content: QuestionContent,
    *,
    kind: str = "approval",
    call: str | None = None,
) -> str:
    """A question about a call: its frame begins, if it is not there, and waits. Gives the question's id.

    One that was answered, and after which the call cannot go on, ends with that: its answer is kept.
    """
    question, content = ulid_text(ports.ids.ulid()), clean(ports, content)
    goal = clean(ports, GoalContent(goal=call_words(one.request)))

    def decide(state: StreamState) -> list[Draft]:
        now = ports.clock.now_ms()
        growing, frame = Growing(state, now), state.frames.get(one.request.id)
        if frame is None:
            growing.add(pushed(ports, turn, state, one, goal))
        elif frame.question is not None and rules.due(frame.question, now):
            growing.add(rules.resume(state, frame.id, now=now))
        facts = Suspended(frame=one.request.id, question=question, kind=kind, prior="active", call=call)
        below = [ulid_text(ports.ids.ulid()) for _ in _unasked(growing.state, one.request.id)]
        growing.add(
            rules.suspend(growing.state, facts, content, subtree=True, release=True, below=below, leave_away=True)
        )
        return growing.drafts

    on_frame(ports, acting, turn.frame, decide)
    ports.states.note_place(acting.tenant, one.request.id, turn.actor)
    return question


def _unasked(state: StreamState, frame: str) -> list[str]:
    found = []
    for child in children(state.frames, frame):
        found += _unasked(state, child.id)
        if child.question is None:
            found.append(child.id)
    return found


# what the tool takes, where its code is not at hand


def stored_tool(ports: Ports, acting: Acting, line: str, name: str) -> ToolDef | None:
    """A tool as a conversation's brief has it; None if it says nothing of it."""
    found = briefs.context_of(ports, acting, line, MAIN_ROLE).available_tools
    return next((one for one in found if one.name == name), None)


def check_edited(
    ports: Ports, acting: Acting, arguments: Any, *, question: str | None = None, token: str | None = None
) -> None:
    """Refuse arguments for a call that its tool can never take, as far as is known here: the question stays open."""
    frame_id, answered = asking.found(ports, acting, question, token)
    asked = None if answered else _asked_about(ports, acting, frame_id)
    tool = None if asked is None else stored_tool(ports, acting, *asked)
    why = None if tool is None else misfit(tool.name, tool.parameters, arguments)
    if why is not None:
        raise InvalidValue(f"{why}. Give all of them: args replaces what the model wrote, and is not merged with it.")


def _asked_about(ports: Ports, acting: Acting, frame_id: str) -> tuple[str, str] | None:
    """The conversation and the name of the tool whose call a frame works for; None if it works for none."""
    actor = stream_of(ports, acting, frame_id)
    live = current(ports, acting, actor).frames
    frame = live.get(frame_id)
    turn = None if frame is None or frame.parent is None else live.get(frame.parent)
    at = None if turn is None else turn_place(ports, acting, Place(actor=actor, line=""), turn)
    if at is None or frame_id not in line_of(ports, acting, at.line).calls:
        return None
    message = call_message(ports, acting, at, frame_id, ())
    return next(((at.line, call.name) for call in message.tool_calls if call.id == frame_id), None)


def newest_answer(ports: Ports, acting: Acting, turn: Place, call: str) -> Answer | None:
    """What was answered to the question that a call waits for; None if there is no answer yet."""
    frame = current(ports, acting, turn.actor).frames.get(call)
    if frame is None or frame.question is None:
        raise CallNotFound(f"No question about call {call} is open.")
    return asking.answer_of(ports, acting, turn.actor, frame.question.id)
