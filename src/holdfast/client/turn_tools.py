"""Calls of tools in a turn, before they begin: approved, answered, torn, called off, or forgotten.

Whatever has to be settled about a call is settled in the journal first; only then is it begun. Nothing that a model
wrote, and nothing that was erased, can keep a turn from going on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.client.frame import Frame
from holdfast.client.questions import choices
from holdfast.client.steps import CallTool
from holdfast.core.call_words import call_words
from holdfast.core.codec import check_plain
from holdfast.core.step import ToolStep
from holdfast.core.values import plain
from holdfast.errors import InvalidValue, Refused
from holdfast.flow.stack import showing
from holdfast.flow.turn import calling, questioning, turns
from holdfast.flow.turn.calling import Beginning, Returned
from holdfast.flow.turn.turns import View
from holdfast.flow.turn.writing import Place
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import QuestionContent
from holdfast.records.frames import Question
from holdfast.records.ids import check_id
from holdfast.records.messages import INTERRUPTED, ToolCallRequest
from holdfast.records.resume import DO_NOT, RUN_AGAIN, Answer

TORN = Returned(result=INTERRUPTED, failed=True, interrupted=True)
LATE = Returned(result="Nobody answered in time, so this call did not go on.", failed=True)
CALLED_OFF = Returned(result="This call was called off before it was made.", failed=True)
FORGOTTEN = "What this call was about was erased. It was not made."


class ToolRules:
    """What is to be done about calls of tools before they begin and after they were torn."""

    tools_ask = False
    """Whether the code of a tool asks questions itself, so that a no is for it to deal with."""

    def __init__(
        self,
        if_interrupted: str | Mapping[str, str] = "ask",
        needs_approval: Collection[str] | Callable[[str, Any], bool] = (),
    ) -> None:
        self._policies, self._approval = if_interrupted, needs_approval
        names = isinstance(needs_approval, Collection) and not isinstance(needs_approval, str)
        if not callable(needs_approval) and not names:
            raise InvalidValue("needs_approval must be a list of tools' names, or a function of a name and arguments.")
        given = if_interrupted.values() if isinstance(if_interrupted, Mapping) else [if_interrupted]
        if not all(policy in ("ask", "retry", "fail") for policy in given):
            raise InvalidValue("if_interrupted must be ask, retry or fail, or say that for each tool by its name.")

    def if_interrupted(self, request: ToolCallRequest) -> str:
        """What to do with a call that was torn."""
        policies = self._policies
        return policies.get(request.name, "ask") if isinstance(policies, Mapping) else policies

    def approval(self, request: ToolCallRequest) -> str | None:
        """What to ask a person before a call is made, if anything."""
        asks = self._approval
        wanted = _wanted(asks, request) if callable(asks) else request.name in asks
        return f"{call_words(request)}: may it run?" if wanted else None

    def unfit(self, request: ToolCallRequest) -> str | None:
        """Why a torn call cannot simply be made again, if it cannot."""
        return None

    def tokens(self, request: ToolCallRequest) -> int | None:
        """What the frame of a call is granted."""
        return None


def _wanted(asks: Callable[[str, Any], bool], request: ToolCallRequest) -> bool:
    """What a predicate says; one that fails counts as wanting a yes."""
    try:
        return bool(asks(request.name, request.args))
    except Exception:  # noqa: BLE001  # It is the caller's code, and a person is there to look.
        return True


class ToolFrame(Frame):
    """The frame of a tool call. The turn begins and ends it; the tool works in it."""

    def __init__(self, ports: Ports, acting: Acting, stream: str, frame: str) -> None:
        super().__init__(ports, acting, stream, "")
        self._id = frame

    def open(self) -> None:
        """It is open already."""
        raise Refused("The frame of a tool call is begun and ended by its turn. Push a child with frame(…) instead.")


class Settling:
    """Settles the calls of one turn, one by one."""

    def __init__(self, ports: Ports, acting: Acting, turn: Place, rules: ToolRules) -> None:
        self._ports, self._acting, self._turn, self._rules = ports, acting, turn, rules
        self.unbegun: set[str] = set()
        """Calls that a model asked for in this block and that nobody can have begun elsewhere."""

    def ready(self, view: View, tool: ToolStep) -> tuple[Beginning, Answer | None] | None:
        """A call that is to be begun now, after whatever had to be settled first; None if it was only settled."""
        message = turns.call_message(self._ports, self._acting, self._turn, tool.call, view.tail)
        request = next(call for call in message.tool_calls if call.id == tool.call)
        attempts, changed = self._intent(view, tool)
        one = Beginning(
            request=request,
            if_interrupted=self._rules.if_interrupted(request),
            attempt=attempts + 1,
            tokens=self._rules.tokens(request),
            message=message.version,
            arguments=changed,
        )
        if message.erased or changed is ERASED:
            self._forgotten(one)
            return None
        if tool.next == "begin":
            return self._fresh(one, tool)
        if tool.next == "resume":
            return self._resumed(one, tool)
        if tool.next == "again":
            return one, None
        if tool.next == "late":
            calling.end_tool(self._ports, self._acting, self._turn, one.request, LATE, answered=True)
            return None
        return self._torn(one, tool)

    def _intent(self, view: View, tool: ToolStep) -> tuple[int, Any]:
        """How often a call was begun so far, and what a person changed its arguments to."""
        intent = view.frame.calls.get(tool.call)
        if intent is None:
            return 0, None
        event = showing.event_at(self._ports, self._acting, self._turn.actor, intent.version)
        return (1, None) if event is None else (int(event.facts.attempt), showing.field(event, "arguments"))

    def _forgotten(self, one: Beginning) -> None:
        """What a call was to do was erased. Nobody knows it any more, so nothing is called."""
        came = Returned(result=FORGOTTEN, failed=True, interrupted=one.attempt > 1)
        calling.end_tool(self._ports, self._acting, self._turn, one.request, came, answered=True)

    def _fresh(self, one: Beginning, tool: ToolStep) -> tuple[Beginning, Answer | None] | None:
        if tool.frame is None and not self._is_new(tool.call):
            calling.end_tool(self._ports, self._acting, self._turn, one.request, CALLED_OFF)
            return None
        if not _is_name(one.request.name):
            came = Returned(result="There is no tool of this name.", failed=True)
            calling.end_tool(self._ports, self._acting, self._turn, one.request, came)
            return None
        reason = self._rules.approval(one.request)
        if reason is None:
            return one, None
        content = QuestionContent(reason=reason, options=["approve", "deny"], arguments=self._shown(one))
        questioning.ask_first(self._ports, self._acting, self._turn, one, content)
        return None

    def _shown(self, one: Beginning) -> Any:
        """The arguments that a call would be made with, for a person to look at."""
        changed = one.arguments
        return shown_arguments(one.request, self._ports.settings.nesting) if changed is None else changed

    def _is_new(self, call: str) -> bool:
        """Whether a call has had no frame yet: whoever ends one while it waits for a yes calls it off."""
        if call in self.unbegun:
            self.unbegun.discard(call)
            return True
        return not showing.is_known(self._ports, self._acting, call)

    def _resumed(self, one: Beginning, tool: ToolStep) -> tuple[Beginning, Answer | None] | None:
        """The answer to a question about a call: a yes lets it run, a no never does."""
        answer = questioning.newest_answer(self._ports, self._acting, self._turn, tool.call)
        question = None if tool.frame is None else tool.frame.question
        if answer is None or question is None or self._is_yes(one, question, answer):
            changed = one.arguments if answer is None or answer.arguments is None else answer.arguments
            if changed is ERASED:
                self._forgotten(one)
                return None
            return msgspec.structs.replace(one, arguments=changed), answer
        came = Returned(result=_denied(answer), failed=True)
        if question.call is not None:  # It may have run: what the person found out is what came of it.
            found = None if answer.payload is ERASED else answer.payload
            came = Returned(
                result=INTERRUPTED if found is None else found, failed=found is None, interrupted=found is None
            )
        calling.end_tool(self._ports, self._acting, self._turn, one.request, came, answered=True)
        return None

    def _is_yes(self, one: Beginning, question: Question, answer: Answer) -> bool:
        """Whether a call may run with this answer. Where a yes is asked for, words alone are none."""
        begun = one.attempt > 1
        if question.call is None and begun and self._rules.tools_ask:
            return True  # The tool itself asked, and decides what the answer means.
        if question.call is None and question.kind != "approval":
            return answer.approved is not False
        return answer.approved is True

    def _torn(self, one: Beginning, tool: ToolStep) -> tuple[Beginning, Answer | None] | None:
        unfit = self._rules.unfit(one.request)
        if tool.next == "retry" and unfit is None:
            return one, None
        if tool.next == "fail":
            calling.end_tool(self._ports, self._acting, self._turn, one.request, TORN)
            return None
        words = f"{call_words(one.request, one.arguments)} may have run. Run again?"
        content = QuestionContent(
            reason=words if unfit is None else f"{words} {unfit}",
            options=[RUN_AGAIN, DO_NOT],
            recommended=DO_NOT,
            arguments=self._shown(one),
        )
        questioning.ask_first(self._ports, self._acting, self._turn, one, content, call=one.request.id)
        return None


def asked_by(
    step: CallTool,
    reason: str,
    nesting: int,
    *,
    options: Sequence[str] | None = None,
    recommended: str | None = None,
    payload: Any = None,
    **unknown: Any,
) -> QuestionContent:
    """What a tool asks, with the arguments that it would run with."""
    if unknown:
        raise InvalidValue(f"A tool's question has options, recommended and payload, and no {', '.join(unknown)}.")
    return QuestionContent(
        reason=reason,
        options=choices(options, recommended),
        recommended=recommended,
        arguments=step.args if step.edited else shown_arguments(step.request, nesting),
        payload=plain(payload),
    )


def shown_arguments(request: ToolCallRequest, nesting: int) -> Any:
    """The arguments for a person to look at."""
    try:
        given = request.args
        check_plain(given, nesting)
    except InvalidValue:  # A model may write what no question can hold: the person sees its text.
        return request.arguments
    return given


def _is_name(name: str) -> bool:
    """Whether a tool can have this name. A model may write anything."""
    try:
        return bool(check_id(name, "name"))
    except InvalidValue:
        return False


def _denied(answer: Answer) -> str:
    said = [words for words in (answer.payload, answer.note) if words is not None and words is not ERASED]
    told = "".join(f" {words if isinstance(words, str) else msgspec.json.encode(words).decode()}" for words in said)
    return f"A person did not allow this call. It was not made.{told}"


def noted(step: CallTool, value: Any) -> Any:
    """A result, and a word if a person changed what the model had asked for."""
    if not step.edited:
        return value
    note = f"[A person changed the arguments of this call to {msgspec.json.encode(step.args).decode()}.]"
    if isinstance(value, str):
        return f"{note}\n{value}"
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return [{"type": "text", "text": note}, *value]
    return {"note": note, "result": value}
