"""Calls of tools in a turn, before they begin: approved, answered, torn, called off, or forgotten.

Whatever has to be settled about a call is settled in the journal first; only then is it begun. Nothing that a model
wrote, and nothing that was erased, can keep a turn from going on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.client import approved, tool_words
from holdfast.client.tool_rules import ToolRules
from holdfast.client.tool_words import shown_arguments
from holdfast.core.call_words import call_words
from holdfast.core.step import ToolStep
from holdfast.errors import InvalidValue
from holdfast.flow.redacting import clean
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
from holdfast.records.messages import ToolCallRequest, ToolDef
from holdfast.records.resume import Answer

Ready = tuple[Beginning, Answer | None]
"""A call that is to be begun now, with the answer that let it."""


class _End(NamedTuple):
    """A call that is not made, or not made again, with what the model is told of it."""

    came: Returned
    answered: bool = True


class _Question(NamedTuple):
    """A call that somebody has to say something about; `call` names it if it may have run."""

    content: QuestionContent
    call: str | None = None


class Settling:
    """Settles the calls of one turn, one by one."""

    def __init__(self, ports: Ports, acting: Acting, turn: Place, rules: ToolRules) -> None:
        self._ports, self._acting, self._turn, self._rules = ports, acting, turn, rules
        self.unbegun: set[str] = set()
        """Calls that a model asked for in this block and that nobody can have begun elsewhere."""

    def ready(self, view: View, tool: ToolStep) -> Ready | None:
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
        found = _End(tool_words.forgotten(attempts > 0)) if message.erased else self._settled(one, tool)
        if isinstance(found, _End):
            calling.end_tool(self._ports, self._acting, self._turn, one.request, found.came, answered=found.answered)
        elif isinstance(found, _Question):
            self._ask(one, found)
        else:
            return found
        return None

    def _settled(self, one: Beginning, tool: ToolStep) -> Ready | _End | _Question:
        """What is to be done about a call now."""
        begun = one.attempt > 1
        if one.arguments is ERASED:
            return _End(tool_words.forgotten(begun))
        match tool.next:
            case "begin":
                return self._fresh(one, tool)
            case "resume":
                return self._resumed(one, tool)
            case "again" | "retry":
                return self._fitting(one)
            case "late":
                return _End(tool_words.late(begun))
            case "fail":
                return _End(tool_words.TORN, answered=False)
        return self._whether(one)

    def _intent(self, view: View, tool: ToolStep) -> tuple[int, Any]:
        """How often a call was begun so far, and what a person changed its arguments to."""
        intent = view.frame.calls.get(tool.call)
        if intent is None:
            return 0, None
        event = showing.event_at(self._ports, self._acting, self._turn.actor, intent.version)
        return (1, None) if event is None else (int(event.facts.attempt), showing.field(event, "arguments"))

    def _fresh(self, one: Beginning, tool: ToolStep) -> Ready | _End | _Question:
        if tool.frame is None and not self._is_new(tool.call):
            return _End(tool_words.CALLED_OFF, answered=False)
        if not _is_name(one.request.name):
            return _End(tool_words.NO_SUCH_TOOL, answered=False)
        return self._first(one) if self._rules.approval(one.request) else (one, None)

    def _is_new(self, call: str) -> bool:
        """Whether a call has had no frame yet: whoever ends one while it waits for a yes calls it off."""
        if call in self.unbegun:
            self.unbegun.discard(call)
            return True
        return not showing.is_known(self._ports, self._acting, call)

    def _resumed(self, one: Beginning, tool: ToolStep) -> Ready | _End | _Question:
        """The answer to a question about a call: a yes lets it run, a no never does."""
        answer = questioning.newest_answer(self._ports, self._acting, self._turn, tool.call)
        question = None if tool.frame is None else tool.frame.question
        if answer is None or question is None or self._is_yes(one, question, answer):
            return self._fitting(one, answer, question)
        if question.call is not None:
            return _End(tool_words.found_out(answer))
        return _End(tool_words.denied(answer, begun_before=one.attempt > 2))

    def _is_yes(self, one: Beginning, question: Question, answer: Answer) -> bool:
        """Whether a call may run with this answer. Where a yes is asked for, words alone are none."""
        begun = one.attempt > 1
        if question.call is None and begun and self._rules.tools_ask:
            return True  # The tool itself asked, and decides what the answer means.
        if question.call is None and question.kind != "approval":
            return answer.approved is not False
        return answer.approved is True

    def _fitting(
        self, one: Beginning, answer: Answer | None = None, question: Question | None = None
    ) -> Ready | _End | _Question:
        """A call that is begun now, with what a person changed or was shown, if its tool takes it; else one is asked.

        What was begun before, and what a person gave or approved, is never for the model to correct: it would call
        anew, or not at all.
        """
        edited = None if answer is None else answer.arguments
        if edited is ERASED:
            return _End(tool_words.forgotten(one.attempt > 1))
        if edited is not None:
            new = msgspec.structs.replace(one, arguments=edited)
            why = self._unfit(new)
            told = f"The arguments that were given do not fit: {why}"
            return (new, answer) if why is None else self._again(one, told)
        if answer is not None and answer.approved is True:
            return self._approved(one, answer, question)
        return (one, answer) if one.attempt == 1 or self._unfit(one) is None else self._whether(one)

    def _approved(self, one: Beginning, answer: Answer, question: Question | None) -> Ready | _Question:
        """A call with a yes, and no word of its arguments: those that were shown count, whatever the tool is by now."""
        shown = self._was_shown(question)
        kept = approved.as_shown(self._given(one), shown, self.shown(one), self._would_show(one))
        new = one if kept is None else msgspec.structs.replace(one, arguments=kept)
        why = self._unfit(new)
        of_the_call = question is not None and (one.attempt == 1 or question.call is not None)
        if why is None and of_the_call and approved.is_more(shown, self._would_show(new)):
            why = approved.NEWER
        if why is None:
            return new, answer
        gone = self._unfit(one) is not None  # Else what the tool uses by now can be approved as it is.
        told = None if gone and one.attempt > 1 else f"It cannot run as it was approved: {why}"
        return self._again(new if gone else one, told)

    def _again(self, one: Beginning, told: str | None) -> _Question:
        """Ask once more, as it was asked before."""
        return self._first(one, told) if one.attempt == 1 else self._whether(one, told=told)

    def _first(self, one: Beginning, told: str | None = None) -> _Question:
        """Ask before a call is made."""
        return _Question(tool_words.may_it_run(*self._seen(one), told))

    def _whether(self, one: Beginning, *, why: str | None = None, told: str | None = None) -> _Question:
        """Ask what to do about a call that may have run."""
        content = tool_words.may_have_run(*self._seen(one), unfit=self._unfit(one), why=why, told=told)
        return _Question(content, call=one.request.id)

    def ask_whether(self, one: Beginning, why: str) -> None:
        """Ask what to do about a call that may have run just now."""
        self._ask(one, self._whether(one, why=why))

    def _ask(self, one: Beginning, asked: _Question) -> None:
        questioning.ask_first(self._ports, self._acting, self._turn, one, asked.content, call=asked.call)

    # what would be used

    def _unfit(self, one: Beginning) -> str | None:
        """Why the tool does not take what it would be called with, if it does not."""
        return self._rules.unfit(one.request, one.arguments, self._stored(one.request))

    def _stored(self, request: ToolCallRequest) -> ToolDef | None:
        if self._rules.knows_tools:
            return None
        return questioning.stored_tool(self._ports, self._acting, self._turn.line, request.name)

    def _seen(self, one: Beginning) -> tuple[str, Any]:
        """A call and its arguments for a person to look at, with what is used where nobody said anything."""
        unsaid = self._rules.unsaid(one.request, one.arguments, self._stored(one.request))
        return call_words(one.request, one.arguments, unsaid), self._shown(one, unsaid)

    def _shown(self, one: Beginning, unsaid: Mapping[str, Any]) -> Any:
        given = self._given(one)
        return {**given, **unsaid} if isinstance(given, dict) else given

    def _given(self, one: Beginning) -> Any:
        """What somebody wrote: the model, or a person who changed it."""
        return shown_arguments(one.request, self._ports.settings.nesting) if one.arguments is None else one.arguments

    def _was_shown(self, question: Question | None) -> Any:
        """The arguments that a question holds."""
        if question is None:
            return None
        return showing.field(
            showing.event_at(self._ports, self._acting, self._turn.actor, question.version), "arguments"
        )

    def _would_show(self, one: Beginning) -> Any:
        """The arguments that a question would hold now."""
        return clean(self._ports, QuestionContent(reason="", arguments=self.shown(one))).arguments

    def shown(self, one: Beginning) -> Any:
        """The arguments that a call would be made with, for a person to look at."""
        return self._seen(one)[1]


def _is_name(name: str) -> bool:
    """Whether a tool can have this name. A model may write anything."""
    try:
        return bool(check_id(name, "name"))
    except InvalidValue:
        return False
