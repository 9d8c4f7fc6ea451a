"""Settle the tool calls of a turn before they begin: approve, answer, cancel, or ask about interrupted ones.

Everything about a call is settled in the journal first; only then is the call begun. Nothing that a model wrote, and
nothing that was erased, can keep a turn from going on.

The model is never told that a call which was begun was not done: it would call again, under another key, and the
effect would happen twice. The result says that the call may have run. A call runs with the arguments a person
approved, even if a release between question and run changed a default.

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
"""A call to begin now, with the answer that allowed it."""


class _End(NamedTuple):
    """A call that is not made, or not made again, with the result that the model is given."""

    came: Returned
    answered: bool = True


class _Question(NamedTuple):
    """A call that a person must decide about; `call` names it if it may have run."""

    content: QuestionContent
    call: str | None = None


class Settling:
    """The settler of one turn's tool calls, one at a time."""

    def __init__(self, ports: Ports, acting: Acting, turn: Place, rules: ToolRules) -> None:
        self._ports, self._acting, self._turn, self._rules = ports, acting, turn, rules
        self.unbegun: set[str] = set()
        """Calls that a model asked for in this block and that cannot have begun elsewhere."""

    def ready(self, view: View, tool: ToolStep) -> Ready | None:
        """Settle a call; return it if it is to be begun now, None if it was ended or asked about."""
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
        """Decide about a call: begin it, end it, or ask."""
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
        """Return how often a call was begun so far, and the arguments that a person changed it to."""
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
        """Return True if a call has had no frame yet: ending a frame that waits for approval cancels its call."""
        if call in self.unbegun:
            self.unbegun.discard(call)
            return True
        return not read.is_known(self._ports, self._acting, call)

    def _resumed(self, one: Beginning, tool: ToolStep) -> Ready | _End | _Question:
        """Act on the answer to a question about a call: a yes lets it run, a no never does."""
        answer = calls.newest_answer(self._ports, self._acting, self._turn, tool.call)
        question = None if tool.frame is None else tool.frame.question
        if answer is None or question is None or self._is_yes(one, question, answer):
            return self._fitting(one, answer, question)
        if question.call is not None:
            return _End(found_out(answer))
        return _End(denied(answer, begun_before=one.attempt > 2))

    def _is_yes(self, one: Beginning, question: Question, answer: Answer) -> bool:
        """Return True if a call may run with this answer. Where approval is required, text alone is not a yes."""
        begun = one.attempt > 1
        if question.call is None and begun and self._rules.tools_ask:
            return True  # The tool itself asked, and interprets the answer.
        if question.call is None and question.kind != "approval":
            return answer.approved is not False
        return answer.approved is True

    def _fitting(
        self, one: Beginning, answer: Answer | None = None, question: Question | None = None
    ) -> Ready | _End | _Question:
        """Begin a call with the arguments that a person changed or was shown, if its tool takes them; else ask.

        Calls begun before, and arguments that a person gave or approved, are never for the model to correct: it would
        call anew, or not at all.
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
        """Run an approved call with the arguments that were shown, even if the tool has changed since."""
        shown = self._was_shown(question)
        kept = as_shown(self._given(one), shown, self.shown(one), self._would_show(one))
        new = one if kept is None else msgspec.structs.replace(one, arguments=kept)
        why = self._unfit(new)
        of_the_call = question is not None and (one.attempt == 1 or question.call is not None)
        if why is None and of_the_call and is_more(shown, self._would_show(new)):
            why = NEWER
        if why is None:
            return new, answer
        gone = self._unfit(one) is not None  # Otherwise the tool's present arguments can be approved as they are.
        told = None if gone and one.attempt > 1 else f"It cannot run as it was approved: {why}"
        return self._again(new if gone else one, told)

    def _again(self, one: Beginning, told: str | None) -> _Question:
        return self._first(one, told) if one.attempt == 1 else self._whether(one, told=told)

    def _first(self, one: Beginning, told: str | None = None) -> _Question:
        return _Question(may_it_run(*self._seen(one), told))

    def _whether(self, one: Beginning, *, why: str | None = None, told: str | None = None) -> _Question:
        """Return the question to ask about a call that may have run."""
        content = may_have_run(*self._seen(one), unfit=self._unfit(one), why=why, told=told)
        return _Question(content, call=one.request.id)

    def ask_whether(self, one: Beginning, why: str) -> None:
        """Ask about a call that may have run just now."""
        self._ask(one, self._whether(one, why=why))

    def _ask(self, one: Beginning, asked: _Question) -> None:
        calls.ask_first(self._ports, self._acting, self._turn, one, asked.content, call=asked.call)

    # Arguments of a call

    def _unfit(self, one: Beginning) -> str | None:
        return self._rules.unfit(one.request, one.arguments, self._stored(one.request))

    def _stored(self, request: ToolCallRequest) -> ToolDef | None:
        if self._rules.knows_tools:
            return None
        return calls.stored_tool(self._ports, self._acting, self._turn.line, request.name)

    def _seen(self, one: Beginning) -> tuple[str, Any]:
        """Describe a call and its arguments for a person, with the defaults for arguments not given."""
        unsaid = self._rules.unsaid(one.request, one.arguments, self._stored(one.request))
        return call_words(one.request, one.arguments, unsaid), self._shown(one, unsaid)

    def _shown(self, one: Beginning, unsaid: Mapping[str, Any]) -> Any:
        given = self._given(one)
        return {**given, **unsaid} if isinstance(given, dict) else given

    def _given(self, one: Beginning) -> Any:
        """Return the arguments that the model or a person wrote."""
        return shown_arguments(one.request, self._ports.settings.nesting) if one.arguments is None else one.arguments

    def _was_shown(self, question: Question | None) -> Any:
        if question is None:
            return None
        return read.field(read.event_at(self._ports, self._acting, self._turn.actor, question.version), "arguments")

    def _would_show(self, one: Beginning) -> Any:
        """Return the arguments that a question would hold now."""
        return clean(self._ports, QuestionContent(reason="", arguments=self.shown(one))).arguments

    def shown(self, one: Beginning) -> Any:
        """Return the arguments that a call would be made with, for a person to read."""
        return self._seen(one)[1]


def _is_name(name: str) -> bool:
    """Return True if a tool can have this name. A model may write anything."""
    try:
        return bool(check_id(name, "name"))
    except InvalidValue:
        return False


CAREFUL: Final = "Do not simply call it again: find out first whether it has."
"""The advice to a model about a call that may have run."""
MAY_HAVE: Final = " It may or may not have taken effect."
"""The note on a call that ended without an outcome."""
TORN = Returned(result=f"{INTERRUPTED} {CAREFUL}", failed=True, interrupted=True)
CALLED_OFF = Returned(result="This call was called off before it was made.", failed=True)
NO_SUCH_TOOL = Returned(result="There is no tool of this name.", failed=True)
_LATE: Final = "Nobody answered in time, so this call did not go on."
_FORGOTTEN: Final = "What this call was about was erased."
_BEGUN: Final = f"What it did before may have taken effect. {CAREFUL}"
_OTHERWISE: Final = "Say what came of it, or run it again with all arguments that it takes, or do not."


# Results


def late(begun: bool) -> Returned:
    """Return the result of a call whose question expired, where expiry ends the call."""
    return Returned(result=f"{_LATE} {_BEGUN}" if begun else _LATE, failed=True, interrupted=begun)


def forgotten(begun: bool) -> Returned:
    """Return the result of an erased call."""
    rest = _BEGUN if begun else "It was not made."
    return Returned(result=f"{_FORGOTTEN} {rest}", failed=True, interrupted=begun)


def denied(answer: Answer, *, begun_before: bool) -> Returned:
    """Return the result of a denied call. `begun_before`: it was begun more often than the question itself took."""
    rest = f"It was not made this time. {_BEGUN}" if begun_before else "It was not made."
    return Returned(result=f"A person did not allow this call. {rest}{_said(answer.payload, answer.note)}", failed=True)


def found_out(answer: Answer) -> Returned:
    """Return the result of a call not to be run again: the outcome that the person found out, if given."""
    if answer.payload is not None and answer.payload is not ERASED:
        return Returned(result=answer.payload)
    return msgspec.structs.replace(TORN, result=f"{TORN.result}{_said(answer.note)}")


def unknown(text: str) -> Returned:
    """Return the result of a call with an unknown outcome: it timed out, or the connection was lost."""
    said = text if text.endswith(MAY_HAVE) else f"{text}{MAY_HAVE}"
    return Returned(result=f"{said} {CAREFUL}", failed=True, interrupted=True)


def _said(*said: Any) -> str:
    told = [words for words in said if words is not None and words is not ERASED]
    return "".join(f" {words if isinstance(words, str) else msgspec.json.encode(words).decode()}" for words in told)


# Questions


def may_it_run(words: str, arguments: Any, told: str | None = None) -> QuestionContent:
    """Build the question before a call is made. `told` explains the fate of an earlier answer."""
    reason = f"{words}: may it run?"
    return QuestionContent(reason=_after(told, reason), options=["approve", "deny"], arguments=arguments)


def may_have_run(
    words: str, arguments: Any, *, unfit: str | None = None, why: str | None = None, told: str | None = None
) -> QuestionContent:
    """Build the question about a call that may have run: `why` says how, `unfit` why it cannot simply rerun."""
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
    """Return a tool's own question, with the arguments that it would run with."""
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
    """Return the arguments for a person to read."""
    try:
        given = request.args
        check_plain(given, nesting)
    except InvalidValue:  # A model may write arguments that no question can hold: the person sees the raw text.
        return request.arguments
    return given


NEWER: Final = "it would use values that nobody was shown"
"""The reason to ask again about a call whose tool has gained a value."""


def as_shown(given: Any, shown: Any, used: Any, now: Any) -> dict[str, Any] | None:
    """Return all arguments of a call, so that it uses the values a question showed; None if it does anyway.

    `given` is as written, `used` adds the present defaults, and `now` is `used` as a question would show it.
    Redaction may have changed the question's copy, so only values that would now be shown differently are taken from
    it.
    """
    if not all(isinstance(one, dict) for one in (given, shown, used, now)):
        return None
    kept = {name: value for name, value in shown.items() if given.get(name) is None and now.get(name) != value}
    return {**{name: value for name, value in used.items() if name in shown}, **kept} if kept else None


def is_more(shown: Any, now: Any) -> bool:
    """Return True if a call would use a value now that a question did not show. Null is no value."""
    if not (isinstance(shown, dict) and isinstance(now, dict)):
        return False
    return any(value is not None and shown.get(name) != value for name, value in now.items())
