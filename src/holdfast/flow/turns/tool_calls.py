"""Calls of tools in a turn, before they begin: approved, answered, torn, called off, or forgotten.

Whatever has to be settled about a call is settled in the journal first; only then is it begun. Nothing that a model
wrote, and nothing that was erased, can keep a turn from going on.

What a model is told of a call that was not simply made, and what a person is asked about one.

A model that reads "it was not done" calls again, under another key, and whatever the tool did happens twice. So a call
that was begun is never said to be not done: it may have run, and that is what the result says.

What a person approves is what runs, also if a release came between the question and the run.

A question shows a call with the defaults of its tool, and a default can be another one by the time of the yes. Then the
call is made with those that were shown. What nobody was shown is never used without asking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.core.frames.next_step import ToolStep
from holdfast.core.frames.questions import choices
from holdfast.core.journal.codec import check_plain
from holdfast.core.values import plain
from holdfast.core.wire.tools import call_words
from holdfast.errors import InvalidValue
from holdfast.flow.frames import read
from holdfast.flow.journal.redact import clean
from holdfast.flow.turns import calls, turns
from holdfast.flow.turns.append import Place
from holdfast.flow.turns.calls import Beginning, Returned
from holdfast.flow.turns.tool_rules import ToolRules
from holdfast.flow.turns.turns import View
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import QuestionContent
from holdfast.records.frames import Question
from holdfast.records.ids import check_id
from holdfast.records.messages import INTERRUPTED, ToolCallRequest, ToolDef
from holdfast.records.recovery import DO_NOT, RUN_AGAIN, Answer

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
        found = _End(forgotten(attempts > 0)) if message.erased else self._settled(one, tool)
        if isinstance(found, _End):
            calls.end_tool(self._ports, self._acting, self._turn, one.request, found.came, answered=found.answered)
        elif isinstance(found, _Question):
            self._ask(one, found)
        else:
            return found
        return None

    def _settled(self, one: Beginning, tool: ToolStep) -> Ready | _End | _Question:
        """What is to be done about a call now."""
        begun = one.attempt > 1
        if one.arguments is ERASED:
            return _End(forgotten(begun))
        match tool.next:
            case "begin":
                return self._fresh(one, tool)
            case "resume":
                return self._resumed(one, tool)
            case "again" | "retry":
                return self._fitting(one)
            case "late":
                return _End(late(begun))
            case "fail":
                return _End(TORN, answered=False)
        return self._whether(one)

    def _intent(self, view: View, tool: ToolStep) -> tuple[int, Any]:
        """How often a call was begun so far, and what a person changed its arguments to."""
        intent = view.frame.calls.get(tool.call)
        if intent is None:
            return 0, None
        event = read.event_at(self._ports, self._acting, self._turn.actor, intent.version)
        return (1, None) if event is None else (int(event.facts.attempt), read.field(event, "arguments"))

    def _fresh(self, one: Beginning, tool: ToolStep) -> Ready | _End | _Question:
        if tool.frame is None and not self._is_new(tool.call):
            return _End(CALLED_OFF, answered=False)
        if not _is_name(one.request.name):
            return _End(NO_SUCH_TOOL, answered=False)
        return self._first(one) if self._rules.approval(one.request) else (one, None)

    def _is_new(self, call: str) -> bool:
        """Whether a call has had no frame yet: whoever ends one while it waits for a yes calls it off."""
        if call in self.unbegun:
            self.unbegun.discard(call)
            return True
        return not read.is_known(self._ports, self._acting, call)

    def _resumed(self, one: Beginning, tool: ToolStep) -> Ready | _End | _Question:
        """The answer to a question about a call: a yes lets it run, a no never does."""
        answer = calls.newest_answer(self._ports, self._acting, self._turn, tool.call)
        question = None if tool.frame is None else tool.frame.question
        if answer is None or question is None or self._is_yes(one, question, answer):
            return self._fitting(one, answer, question)
        if question.call is not None:
            return _End(found_out(answer))
        return _End(denied(answer, begun_before=one.attempt > 2))

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
            return _End(forgotten(one.attempt > 1))
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
        kept = as_shown(self._given(one), shown, self.shown(one), self._would_show(one))
        new = one if kept is None else msgspec.structs.replace(one, arguments=kept)
        why = self._unfit(new)
        of_the_call = question is not None and (one.attempt == 1 or question.call is not None)
        if why is None and of_the_call and is_more(shown, self._would_show(new)):
            why = NEWER
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
        return _Question(may_it_run(*self._seen(one), told))

    def _whether(self, one: Beginning, *, why: str | None = None, told: str | None = None) -> _Question:
        """Ask what to do about a call that may have run."""
        content = may_have_run(*self._seen(one), unfit=self._unfit(one), why=why, told=told)
        return _Question(content, call=one.request.id)

    def ask_whether(self, one: Beginning, why: str) -> None:
        """Ask what to do about a call that may have run just now."""
        self._ask(one, self._whether(one, why=why))

    def _ask(self, one: Beginning, asked: _Question) -> None:
        calls.ask_first(self._ports, self._acting, self._turn, one, asked.content, call=asked.call)

    # what would be used

    def _unfit(self, one: Beginning) -> str | None:
        """Why the tool does not take what it would be called with, if it does not."""
        return self._rules.unfit(one.request, one.arguments, self._stored(one.request))

    def _stored(self, request: ToolCallRequest) -> ToolDef | None:
        if self._rules.knows_tools:
            return None
        return calls.stored_tool(self._ports, self._acting, self._turn.line, request.name)

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
        return read.field(read.event_at(self._ports, self._acting, self._turn.actor, question.version), "arguments")

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


CAREFUL: Final = "Do not simply call it again: find out first whether it has."
"""What a model is told to do about a call that may have run."""
MAY_HAVE: Final = " It may or may not have taken effect."
"""What those say whose call ended without an outcome."""
TORN = Returned(result=f"{INTERRUPTED} {CAREFUL}", failed=True, interrupted=True)
CALLED_OFF = Returned(result="This call was called off before it was made.", failed=True)
NO_SUCH_TOOL = Returned(result="There is no tool of this name.", failed=True)
_LATE: Final = "Nobody answered in time, so this call did not go on."
_FORGOTTEN: Final = "What this call was about was erased."
_BEGUN: Final = f"What it did before may have taken effect. {CAREFUL}"
_OTHERWISE: Final = "Say what came of it, or run it again with all arguments that it takes, or do not."


# results


def late(begun: bool) -> Returned:
    """Nobody answered in time, and it was agreed that this is the end then."""
    return Returned(result=f"{_LATE} {_BEGUN}" if begun else _LATE, failed=True, interrupted=begun)


def forgotten(begun: bool) -> Returned:
    """What a call was to do was erased."""
    rest = _BEGUN if begun else "It was not made."
    return Returned(result=f"{_FORGOTTEN} {rest}", failed=True, interrupted=begun)


def denied(answer: Answer, *, begun_before: bool) -> Returned:
    """A no to a call. `begun_before` says that it was begun more often than the question itself took."""
    rest = f"It was not made this time. {_BEGUN}" if begun_before else "It was not made."
    return Returned(result=f"A person did not allow this call. {rest}{_said(answer.payload, answer.note)}", failed=True)


def found_out(answer: Answer) -> Returned:
    """A no to running again what may have run: what the person found out is what came of it."""
    if answer.payload is not None and answer.payload is not ERASED:
        return Returned(result=answer.payload)
    return msgspec.structs.replace(TORN, result=f"{TORN.result}{_said(answer.note)}")


def unknown(text: str) -> Returned:
    """A call whose outcome nobody knows: out of its time, or cut off from whoever does the work."""
    said = text if text.endswith(MAY_HAVE) else f"{text}{MAY_HAVE}"
    return Returned(result=f"{said} {CAREFUL}", failed=True, interrupted=True)


def _said(*said: Any) -> str:
    told = [words for words in said if words is not None and words is not ERASED]
    return "".join(f" {words if isinstance(words, str) else msgspec.json.encode(words).decode()}" for words in told)


# questions


def may_it_run(words: str, arguments: Any, told: str | None = None) -> QuestionContent:
    """Before a call is made. `told` says what became of an earlier answer."""
    reason = f"{words}: may it run?"
    return QuestionContent(reason=_after(told, reason), options=["approve", "deny"], arguments=arguments)


def may_have_run(
    words: str, arguments: Any, *, unfit: str | None = None, why: str | None = None, told: str | None = None
) -> QuestionContent:
    """What to do about a call that may have run. `why` says how that came, `unfit` why it cannot simply run again."""
    begun = f"{words} may have run" if why is None else f"{words} may have run: {why.rstrip('.')}"
    asked = f"{begun}. Run again?" if unfit is None else f"{begun}, and {unfit.rstrip('.')}. {_OTHERWISE}"
    return QuestionContent(
        reason=_after(told, asked), options=[RUN_AGAIN, DO_NOT], recommended=DO_NOT, arguments=arguments
    )


def _after(told: str | None, asked: str) -> str:
    return asked if told is None else f"{told.rstrip('.')}. {asked}"


def asked_by(
    reason: str,
    arguments: Any,
    /,
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
        arguments=arguments,
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


NEWER: Final = "it would use values that nobody was shown"
"""Why a call is asked about again whose tool has come to use something more."""


def as_shown(given: Any, shown: Any, used: Any, now: Any) -> dict[str, Any] | None:
    """All that a call is made with so that it uses what a question showed; None if it does so anyway.

    `given` is what somebody wrote, `used` that with the defaults of now, and `now` what a question would show of it. A
    redaction may have changed what the question holds: so nothing is taken from it that would be shown as it was.
    """
    if not all(isinstance(one, dict) for one in (given, shown, used, now)):
        return None
    kept = {name: value for name, value in shown.items() if given.get(name) is None and now.get(name) != value}
    return {**{name: value for name, value in used.items() if name in shown}, **kept} if kept else None


def is_more(shown: Any, now: Any) -> bool:
    """Whether a call would use something now that a question did not show. Nothing at all, null, is no value."""
    if not (isinstance(shown, dict) and isinstance(now, dict)):
        return False
    return any(value is not None and shown.get(name) != value for name, value in now.items())
