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
from holdfast.core.frames.questions import check_options
from holdfast.core.journal.codec import check_plain
from holdfast.core.values import to_plain
from holdfast.core.wire.tools import describe_call
from holdfast.errors import InvalidValue
from holdfast.flow.frames import read
from holdfast.flow.journal.redact import redact_as_configured
from holdfast.flow.turns import calls, turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.calls import ToolCallReturn, ToolCallStart
from holdfast.flow.turns.tool_rules import ToolRules
from holdfast.flow.turns.turns import TurnView
from holdfast.ports import Env
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import QuestionContent
from holdfast.records.frames import Question
from holdfast.records.ids import check_id
from holdfast.records.messages import INTERRUPTED_RESULT, ToolCallRequest, ToolDef
from holdfast.records.recovery import DO_NOT_RUN, RUN_AGAIN, Answer

ReadyCall = tuple[ToolCallStart, Answer | None]
"""A call to begin now, with the answer that allowed it."""


class _CallEnd(NamedTuple):
    """A call that is not made, or not made again, with the result that the model is given."""

    came: ToolCallReturn
    answered: bool = True


class _CallQuestion(NamedTuple):
    """A call that a person must decide about; `call` names it if it may have run."""

    content: QuestionContent
    call: str | None = None


class ToolCallSettler:
    """The settler of one turn's tool calls, one at a time."""

    def __init__(self, env: Env, turn: TurnPlace, rules: ToolRules) -> None:
        self._env, self._turn, self._rules = env, turn, rules
        self.unbegun: set[str] = set()
        """Calls that a model asked for in this block and that cannot have begun elsewhere."""

    def settle(self, view: TurnView, tool: ToolStep) -> ReadyCall | None:
        """Settle a call; return it if it is to be begun now, None if it was ended or asked about."""
        message = turns.find_call_message(self._env, self._turn, tool.call, view.tail)
        request = next(call for call in message.tool_calls if call.id == tool.call)
        attempts, changed = self._read_intent(view, tool)
        one = ToolCallStart(
            request=request,
            if_interrupted=self._rules.interruption_policy(request),
            attempt=attempts + 1,
            tokens=self._rules.tokens(request),
            message=message.version,
            arguments=changed,
        )
        found = _CallEnd(build_erased_return(attempts > 0)) if message.erased else self._decide(one, tool)
        if isinstance(found, _CallEnd):
            calls.end_turn_tool_call(self._env, self._turn, one.request, found.came, answered=found.answered)
        elif isinstance(found, _CallQuestion):
            self._ask(one, found)
        else:
            return found
        return None

    def _decide(self, one: ToolCallStart, tool: ToolStep) -> ReadyCall | _CallEnd | _CallQuestion:
        """Decide about a call: begin it, end it, or ask."""
        begun = one.attempt > 1
        if one.arguments is ERASED:
            return _CallEnd(build_erased_return(begun))
        match tool.next:
            case "begin":
                return self._decide_new(one, tool)
            case "resume":
                return self._decide_answer(one, tool)
            case "again" | "retry":
                return self._decide_fit(one)
            case "late":
                return _CallEnd(build_late_return(begun))
            case "fail":
                return _CallEnd(INTERRUPTED_RETURN, answered=False)
        return self._rerun_question(one)

    def _read_intent(self, view: TurnView, tool: ToolStep) -> tuple[int, Any]:
        """Return how often a call was begun so far, and the arguments that a person changed it to."""
        intent = view.frame.calls.get(tool.call)
        if intent is None:
            return 0, None
        event = read.read_event(self._env, self._turn.actor, intent.version)
        return (1, None) if event is None else (int(event.facts.attempt), read.content_field(event, "arguments"))

    def _decide_new(self, one: ToolCallStart, tool: ToolStep) -> ReadyCall | _CallEnd | _CallQuestion:
        if tool.frame is None and not self._is_new(tool.call):
            return _CallEnd(CANCELLED_RETURN, answered=False)
        if not _is_tool_name(one.request.name):
            return _CallEnd(NO_SUCH_TOOL_RETURN, answered=False)
        return self._approval_question(one) if self._rules.needs_approval(one.request) else (one, None)

    def _is_new(self, call: str) -> bool:
        """Return True if a call has had no frame yet: ending a frame that waits for approval cancels its call."""
        if call in self.unbegun:
            self.unbegun.discard(call)
            return True
        return not read.has_frame(self._env, call)

    def _decide_answer(self, one: ToolCallStart, tool: ToolStep) -> ReadyCall | _CallEnd | _CallQuestion:
        """Act on the answer to a question about a call: a yes lets it run, a no never does."""
        answer = calls.read_newest_answer(self._env, self._turn, tool.call)
        question = None if tool.frame is None else tool.frame.question
        if answer is None or question is None or self._is_allowed(one, question, answer):
            return self._decide_fit(one, answer, question)
        if question.call is not None:
            return _CallEnd(build_answer_return(answer))
        return _CallEnd(build_denied_return(answer, begun_before=one.attempt > 2))

    def _is_allowed(self, one: ToolCallStart, question: Question, answer: Answer) -> bool:
        """Return True if a call may run with this answer. Where approval is required, text alone is not a yes."""
        begun = one.attempt > 1
        if question.call is None and begun and self._rules.tools_ask:
            return True  # The tool itself asked, and interprets the answer.
        if question.call is None and question.kind != "approval":
            return answer.approved is not False
        return answer.approved is True

    def _decide_fit(
        self, one: ToolCallStart, answer: Answer | None = None, question: Question | None = None
    ) -> ReadyCall | _CallEnd | _CallQuestion:
        """Begin a call with the arguments that a person changed or was shown, if its tool takes them; else ask.

        Calls begun before, and arguments that a person gave or approved, are never for the model to correct: it would
        call anew, or not at all.
        """
        edited = None if answer is None else answer.arguments
        if edited is ERASED:
            return _CallEnd(build_erased_return(one.attempt > 1))
        if edited is not None:
            new = msgspec.structs.replace(one, arguments=edited)
            why = self._find_misfit(new)
            told = f"The arguments that were given do not fit: {why}"
            return (new, answer) if why is None else self._repeat_question(one, told)
        if answer is not None and answer.approved is True:
            return self._decide_approval(one, answer, question)
        return (one, answer) if one.attempt == 1 or self._find_misfit(one) is None else self._rerun_question(one)

    def _decide_approval(
        self, one: ToolCallStart, answer: Answer, question: Question | None
    ) -> ReadyCall | _CallQuestion:
        """Run an approved call with the arguments that were shown, even if the tool has changed since."""
        shown = self._question_arguments(question)
        kept = keep_shown_arguments(
            self._source_arguments(one), shown, self.display_arguments(one), self._new_question_arguments(one)
        )
        new = one if kept is None else msgspec.structs.replace(one, arguments=kept)
        why = self._find_misfit(new)
        of_the_call = question is not None and (one.attempt == 1 or question.call is not None)
        if why is None and of_the_call and has_unseen_values(shown, self._new_question_arguments(new)):
            why = UNSEEN_VALUES
        if why is None:
            return new, answer
        gone = self._find_misfit(one) is not None  # Otherwise the tool's present arguments can be approved as they are.
        told = None if gone and one.attempt > 1 else f"It cannot run as it was approved: {why}"
        return self._repeat_question(new if gone else one, told)

    def _repeat_question(self, one: ToolCallStart, told: str | None) -> _CallQuestion:
        return self._approval_question(one, told) if one.attempt == 1 else self._rerun_question(one, told=told)

    def _approval_question(self, one: ToolCallStart, told: str | None = None) -> _CallQuestion:
        return _CallQuestion(build_approval_question(*self._describe_call(one), told))

    def _rerun_question(self, one: ToolCallStart, *, why: str | None = None, told: str | None = None) -> _CallQuestion:
        """Return the question to ask about a call that may have run."""
        content = build_rerun_question(*self._describe_call(one), unfit=self._find_misfit(one), why=why, told=told)
        return _CallQuestion(content, call=one.request.id)

    def ask_to_rerun(self, one: ToolCallStart, why: str) -> None:
        """Ask about a call that may have run just now."""
        self._ask(one, self._rerun_question(one, why=why))

    def _ask(self, one: ToolCallStart, asked: _CallQuestion) -> None:
        calls.ask_about_call(self._env, self._turn, one, asked.content, call=asked.call)

    # Arguments of a call

    def _find_misfit(self, one: ToolCallStart) -> str | None:
        return self._rules.find_misfit(one.request, one.arguments, self._find_stored_tool(one.request))

    def _find_stored_tool(self, request: ToolCallRequest) -> ToolDef | None:
        if self._rules.knows_tools:
            return None
        return calls.find_stored_tool(self._env, self._turn.thread, request.name)

    def _describe_call(self, one: ToolCallStart) -> tuple[str, Any]:
        """Describe a call and its arguments for a person, with the defaults for arguments not given."""
        unsaid = self._rules.default_arguments(one.request, one.arguments, self._find_stored_tool(one.request))
        return describe_call(one.request, one.arguments, unsaid), self._merge_defaults(one, unsaid)

    def _merge_defaults(self, one: ToolCallStart, unsaid: Mapping[str, Any]) -> Any:
        given = self._source_arguments(one)
        return {**given, **unsaid} if isinstance(given, dict) else given

    def _source_arguments(self, one: ToolCallStart) -> Any:
        """Return the arguments that the model or a person wrote."""
        return readable_arguments(one.request, self._env.settings.nesting) if one.arguments is None else one.arguments

    def _question_arguments(self, question: Question | None) -> Any:
        if question is None:
            return None
        return read.content_field(read.read_event(self._env, self._turn.actor, question.version), "arguments")

    def _new_question_arguments(self, one: ToolCallStart) -> Any:
        """Return the arguments that a question would hold now."""
        return redact_as_configured(
            self._env, QuestionContent(reason="", arguments=self.display_arguments(one))
        ).arguments

    def display_arguments(self, one: ToolCallStart) -> Any:
        """Return the arguments that a call would be made with, for a person to read."""
        return self._describe_call(one)[1]


def _is_tool_name(name: str) -> bool:
    """Return True if a tool can have this name. A model may write anything."""
    try:
        return bool(check_id(name, "name"))
    except InvalidValue:
        return False


CHECK_FIRST: Final = "Do not simply call it again: find out first whether it has."
"""The advice to a model about a call that may have run."""
MAY_HAVE_RUN: Final = " It may or may not have taken effect."
"""The note on a call that ended without an outcome."""
INTERRUPTED_RETURN = ToolCallReturn(result=f"{INTERRUPTED_RESULT} {CHECK_FIRST}", failed=True, interrupted=True)
CANCELLED_RETURN = ToolCallReturn(result="This call was called off before it was made.", failed=True)
NO_SUCH_TOOL_RETURN = ToolCallReturn(result="There is no tool of this name.", failed=True)
_EXPIRED_TEXT: Final = "Nobody answered in time, so this call did not go on."
_ERASED_TEXT: Final = "What this call was about was erased."
_BEGUN_TEXT: Final = f"What it did before may have taken effect. {CHECK_FIRST}"
_CHOICE_TEXT: Final = "Say what came of it, or run it again with all arguments that it takes, or do not."


# Results


def build_late_return(begun: bool) -> ToolCallReturn:
    """Return the result of a call whose question expired, where expiry ends the call."""
    return ToolCallReturn(
        result=f"{_EXPIRED_TEXT} {_BEGUN_TEXT}" if begun else _EXPIRED_TEXT, failed=True, interrupted=begun
    )


def build_erased_return(begun: bool) -> ToolCallReturn:
    """Return the result of an erased call."""
    rest = _BEGUN_TEXT if begun else "It was not made."
    return ToolCallReturn(result=f"{_ERASED_TEXT} {rest}", failed=True, interrupted=begun)


def build_denied_return(answer: Answer, *, begun_before: bool) -> ToolCallReturn:
    """Return the result of a denied call. `begun_before`: it was begun more often than the question itself took."""
    rest = f"It was not made this time. {_BEGUN_TEXT}" if begun_before else "It was not made."
    return ToolCallReturn(
        result=f"A person did not allow this call. {rest}{_join_remarks(answer.payload, answer.note)}", failed=True
    )


def build_answer_return(answer: Answer) -> ToolCallReturn:
    """Return the result of a call not to be run again: the outcome that the person found out, if given."""
    if answer.payload is not None and answer.payload is not ERASED:
        return ToolCallReturn(result=answer.payload)
    return msgspec.structs.replace(
        INTERRUPTED_RETURN, result=f"{INTERRUPTED_RETURN.result}{_join_remarks(answer.note)}"
    )


def build_unknown_return(text: str) -> ToolCallReturn:
    """Return the result of a call with an unknown outcome: it timed out, or the connection was lost."""
    said = text if text.endswith(MAY_HAVE_RUN) else f"{text}{MAY_HAVE_RUN}"
    return ToolCallReturn(result=f"{said} {CHECK_FIRST}", failed=True, interrupted=True)


def _join_remarks(*said: Any) -> str:
    told = [words for words in said if words is not None and words is not ERASED]
    return "".join(f" {words if isinstance(words, str) else msgspec.json.encode(words).decode()}" for words in told)


# Questions


def build_approval_question(words: str, arguments: Any, told: str | None = None) -> QuestionContent:
    """Build the question before a call is made. `told` explains the fate of an earlier answer."""
    reason = f"{words}: may it run?"
    return QuestionContent(reason=_prefix_reason(told, reason), options=["approve", "deny"], arguments=arguments)


def build_rerun_question(
    words: str, arguments: Any, *, unfit: str | None = None, why: str | None = None, told: str | None = None
) -> QuestionContent:
    """Build the question about a call that may have run: `why` says how, `unfit` why it cannot simply rerun."""
    begun = f"{words} may have run" if why is None else f"{words} may have run: {why.rstrip('.')}"
    asked = f"{begun}. Run again?" if unfit is None else f"{begun}, and {unfit.rstrip('.')}. {_CHOICE_TEXT}"
    return QuestionContent(
        reason=_prefix_reason(told, asked), options=[RUN_AGAIN, DO_NOT_RUN], recommended=DO_NOT_RUN, arguments=arguments
    )


def _prefix_reason(told: str | None, asked: str) -> str:
    return asked if told is None else f"{told.rstrip('.')}. {asked}"


def build_tool_question(
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
        options=check_options(options, recommended),
        recommended=recommended,
        arguments=arguments,
        payload=to_plain(payload),
    )


def readable_arguments(request: ToolCallRequest, nesting: int) -> Any:
    """Return the arguments for a person to read."""
    try:
        given = request.args
        check_plain(given, nesting)
    except InvalidValue:  # A model may write arguments that no question can hold: the person sees the raw text.
        return request.arguments
    return given


UNSEEN_VALUES: Final = "it would use values that the question did not show"
"""The reason to ask again about a call whose tool has gained a value."""


def keep_shown_arguments(given: Any, shown: Any, used: Any, now: Any) -> dict[str, Any] | None:
    """Return all arguments of a call, so that it uses the values a question showed; None if it does anyway.

    `given` is as written, `used` adds the present defaults, and `now` is `used` as a question would show it.
    Redaction may have changed the question's copy, so only values that would now be shown differently are taken from
    it.
    """
    if not all(isinstance(one, dict) for one in (given, shown, used, now)):
        return None
    kept = {name: value for name, value in shown.items() if given.get(name) is None and now.get(name) != value}
    return {**{name: value for name, value in used.items() if name in shown}, **kept} if kept else None


def has_unseen_values(shown: Any, now: Any) -> bool:
    """Return True if a call would use a value now that a question did not show. Null is no value."""
    if not (isinstance(shown, dict) and isinstance(now, dict)):
        return False
    return any(value is not None and shown.get(name) != value for name, value in now.items())
