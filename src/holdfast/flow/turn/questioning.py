"""Questions about a tool call: its frame waits, so that tools beside each other can wait beside each other."""

from __future__ import annotations

from holdfast.core.call_words import call_words
from holdfast.core.decide import questions as rules
from holdfast.core.stack import children
from holdfast.errors import CallNotFound
from holdfast.flow.redacting import clean
from holdfast.flow.stack.asking import answer_of
from holdfast.flow.stack.frames import on_frame
from holdfast.flow.stack.showing import current
from holdfast.flow.turn.calling import Beginning, pushed
from holdfast.flow.turn.writing import Growing, Place
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import FrameSuspended as Suspended
from holdfast.records.events.frames import GoalContent, QuestionContent
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text
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
    """A question about a call: its frame begins, if it is not there, and waits. Gives the question's id."""
    question, content = ulid_text(ports.ids.ulid()), clean(ports, content)
    goal = clean(ports, GoalContent(goal=call_words(one.request)))

    def decide(state: StreamState) -> list[Draft]:
        growing = Growing(state, ports.clock.now_ms())
        if one.request.id not in state.frames:
            growing.add(pushed(ports, turn, state, one, goal))
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


def newest_answer(ports: Ports, acting: Acting, turn: Place, call: str) -> Answer | None:
    """What was answered to the question that a call waits for; None if there is no answer yet."""
    frame = current(ports, acting, turn.actor).frames.get(call)
    if frame is None or frame.question is None:
        raise CallNotFound(f"No question about call {call} is open.")
    return answer_of(ports, acting, turn.actor, frame.question.id)
