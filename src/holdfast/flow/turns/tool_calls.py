"""Settle the tool calls of a turn before they begin: approve, answer, cancel, or ask about interrupted ones.

Everything about a call is settled in the journal first; only then is the call begun. Nothing that a model wrote, and
nothing that was erased, can keep a turn from going on.

The model is never told that a call which was begun was not done: it would call again, under another key, and the
effect would happen twice. The result says that the call may have run. A call runs with the arguments a person
approved, even if a release between question and run changed a default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from holdfast.core.frames.next_step import ToolStep
from holdfast.core.frames.questions import check_options
from holdfast.core.journal.codec import check_plain
from holdfast.core.values import to_plain
from holdfast.core.wire.tools import default_arguments, describe_call, describe_misfit
from holdfast.errors import InvalidValue
from holdfast.flow.frames import read
from holdfast.flow.journal.append import redact_as_configured
from holdfast.flow.turns import calls, turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.calls import ToolCallReturn, ToolCallStart
from holdfast.flow.turns.turns import TurnView
from holdfast.ports import Env
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import QuestionContent
from holdfast.records.frames import Question
from holdfast.records.ids import check_id
from holdfast.records.messages import INTERRUPTED_RESULT, Message, ToolCallRequest, ToolDef
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


class ToolRules:
    """Rules for tool calls: which ones need approval, which arguments fit, what happens to an interrupted call.

    These are the rules of a loop that calls tools itself and knows only their names; an agent has its own, which know
    its tools.
    """

    tools_ask = False
    """True if a tool's code asks questions itself, so that it also handles a no."""
    knows_tools = False
    """True if the tools themselves are at hand, so that their stored definitions need not be read."""

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

    def call_terms(self, request: ToolCallRequest) -> tuple[str, int | None]:
        """Return the policy for an interrupted call, and the tokens granted to the call's frame."""
        policies = self._policies
        return (policies.get(request.name, "ask") if isinstance(policies, Mapping) else policies), None

    def needs_approval(self, request: ToolCallRequest) -> bool:
        """Return True if a person must approve a call before it is made. A predicate that fails counts as True."""
        if not callable(self._approval):
            return request.name in self._approval
        try:
            return bool(self._approval(request.name, request.args))
        except Exception:  # noqa: BLE001  # It is the caller's code, and a person is there to look.
            return True

    def starts_at_once(self, request: ToolCallRequest) -> bool:
        """Return True if a new call begins without a decision, and without any of the caller's code."""
        return False

    def find_misfit(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> str | None:
        """Return why the tool does not take its arguments, or None. `arguments` are a person's, if any.

        `stored` is the tool's definition in the conversation's brief: nothing else is known of it here.
        """
        given = _call_arguments(request, arguments)
        why = None if stored is None or given is UNSET else describe_misfit(stored.name, stored.parameters, given)
        return None if why is None else lower_first_letter(why)

    def default_arguments(self, request: ToolCallRequest, arguments: Any, stored: ToolDef | None) -> Mapping[str, Any]:
        """Return the tool's defaults for arguments not given."""
        given = _call_arguments(request, arguments)
        return {} if stored is None or not isinstance(given, dict) else default_arguments(stored.parameters, given)


def lower_first_letter(sentence: str) -> str:
    """Return a sentence as part of another one."""
    return sentence[:1].lower() + sentence[1:]


def _call_arguments(request: ToolCallRequest, arguments: Any) -> Any:
    """Return a call's arguments; UNSET if they are not valid JSON."""
    try:
        return request.args if arguments is None else arguments
    except InvalidValue:
        return UNSET


def _is_tool_name(name: str) -> bool:
    """Return True if a tool can have this name. A model may write anything."""
    try:
        check_id(name, "name")
    except InvalidValue:
        return False
    return True


class ToolCallSettler(msgspec.Struct):
    """The settler of one turn's tool calls, one at a time."""

    _env: Env
    _turn: TurnPlace
    _rules: ToolRules
    unbegun: set[str] = set()
    """Calls that a model asked for in this block and that cannot have begun elsewhere."""

    def find_starter(self, message: Message) -> Callable[[ToolCallRequest], ToolCallStart] | None:
        """Return how each call of a new reply begins; None if there is none, or one needs a decision first."""
        wanted = message.tool_calls
        starts = wanted and all(self._rules.starts_at_once(one) and _is_tool_name(one.name) for one in wanted)
        return self._start_new if starts else None

    def _start_new(self, request: ToolCallRequest) -> ToolCallStart:
        policy, tokens = self._rules.call_terms(request)
        return ToolCallStart(request=request, if_interrupted=policy, tokens=tokens)

    def settle(self, view: TurnView, tool: ToolStep) -> ReadyCall | None:
        """Settle a call; return it if it is to be begun now, None if it was ended or asked about."""
        message = turns.find_call_message(self._env, self._turn, tool.call, view.tail)
        request = next(call for call in message.tool_calls if call.id == tool.call)
        intent, attempts, changed = view.frame.calls.get(tool.call), 0, None
        if intent is not None:
            event = read.read_event(self._env, self._turn.actor, intent.version)
            attempts = 1 if event is None else int(event.facts.attempt)
            changed = read.content_field(event, "arguments")
        policy, tokens = self._rules.call_terms(request)
        one = ToolCallStart(
            request=request,
            if_interrupted=policy,
            attempt=attempts + 1,
            tokens=tokens,
            message=message.version,
            arguments=changed,
        )
        found = _CallEnd(build_erased_return(attempts > 0)) if message.erased else self._decide(one, tool)
        if isinstance(found, _CallEnd):
            calls.end_turn_tool_call(self._env, self._turn, one.request, found.came, answered=found.answered)
        elif isinstance(found, _CallQuestion):
            calls.ask_about_call(self._env, self._turn, one, found.content, call=found.call)
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
                new = tool.call in self.unbegun
                self.unbegun.discard(tool.call)
                if tool.frame is None and not new and read.has_frame(self._env, tool.call):
                    # Ending a frame that waits for approval cancels its call.
                    return _CallEnd(CANCELLED_RETURN, answered=False)
                if not _is_tool_name(one.request.name):
                    return _CallEnd(NO_SUCH_TOOL_RETURN, answered=False)
                return self._approval_question(one) if self._rules.needs_approval(one.request) else (one, None)
            case "resume":
                return self._decide_answer(one, tool)
            case "again" | "retry":
                return self._decide_fit(one)
            case "late":  # Its question expired, and expiry ends the call.
                text = f"{_EXPIRED_TEXT} {_BEGUN_TEXT}" if begun else _EXPIRED_TEXT
                return _CallEnd(ToolCallReturn(result=text, failed=True, interrupted=begun))
            case "fail":
                return _CallEnd(INTERRUPTED_RETURN, answered=False)
        return self._rerun_question(one)

    def _decide_answer(self, one: ToolCallStart, tool: ToolStep) -> ReadyCall | _CallEnd | _CallQuestion:
        """Act on the answer to a question about a call: a yes lets it run, a no never does."""
        answer = calls.read_newest_answer(self._env, self._turn, tool.call)
        question = None if tool.frame is None else tool.frame.question
        if answer is None or question is None or self._is_allowed(one, question, answer):
            return self._decide_fit(one, answer, question)
        if question.call is not None:
            return _CallEnd(build_answer_return(answer))
        # Begun more often than the question itself took: it may have run before.
        rest = f"It was not made this time. {_BEGUN_TEXT}" if one.attempt > 2 else "It was not made."
        told = f"A person did not allow this call. {rest}{_join_remarks(answer.payload, answer.note)}"
        return _CallEnd(ToolCallReturn(result=told, failed=True))

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
            new = replace(one, arguments=edited)
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
        asked = None if question is None else read.read_event(self._env, self._turn.actor, question.version)
        shown = read.content_field(asked, "arguments")
        kept = keep_shown_arguments(
            self._source_arguments(one), shown, self.display_arguments(one), self._new_question_arguments(one)
        )
        new = one if kept is None else replace(one, arguments=kept)
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
        """Return the question before a call is made. `told` explains the fate of an earlier answer."""
        words, arguments = self._describe_call(one)
        reason = _prefix_reason(told, f"{words}: may it run?")
        return _CallQuestion(QuestionContent(reason=reason, options=["approve", "deny"], arguments=arguments))

    def _rerun_question(self, one: ToolCallStart, *, why: str | None = None, told: str | None = None) -> _CallQuestion:
        """Return the question about a call that may have run: `why` says how."""
        (words, arguments), unfit = self._describe_call(one), self._find_misfit(one)
        begun = f"{words} may have run" if why is None else f"{words} may have run: {why.rstrip('.')}"
        asked = f"{begun}. Run again?" if unfit is None else f"{begun}, and {unfit.rstrip('.')}. {_CHOICE_TEXT}"
        content = QuestionContent(
            reason=_prefix_reason(told, asked),
            options=[RUN_AGAIN, DO_NOT_RUN],
            recommended=DO_NOT_RUN,
            arguments=arguments,
        )
        return _CallQuestion(content, call=one.request.id)

    def ask_to_rerun(self, one: ToolCallStart, why: str) -> None:
        """Ask about a call that may have run just now."""
        asked = self._rerun_question(one, why=why)
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
        given = self._source_arguments(one)
        shown = {**given, **unsaid} if isinstance(given, dict) else given
        return describe_call(one.request, one.arguments, unsaid), shown

    def _source_arguments(self, one: ToolCallStart) -> Any:
        """Return the arguments that the model or a person wrote, for a person to read."""
        if one.arguments is not None:
            return one.arguments
        try:
            given = one.request.args
            check_plain(given, self._env.settings.nesting)
        except InvalidValue:  # A model may write arguments that no question can hold: the person sees the raw text.
            return one.request.arguments
        return given

    def _new_question_arguments(self, one: ToolCallStart) -> Any:
        """Return the arguments that a question would hold now."""
        return redact_as_configured(
            self._env, QuestionContent(reason="", arguments=self.display_arguments(one))
        ).arguments

    def display_arguments(self, one: ToolCallStart) -> Any:
        """Return the arguments that a call would be made with, for a person to read."""
        return self._describe_call(one)[1]


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


def build_erased_return(begun: bool) -> ToolCallReturn:
    """Return the result of an erased call."""
    rest = _BEGUN_TEXT if begun else "It was not made."
    return ToolCallReturn(result=f"{_ERASED_TEXT} {rest}", failed=True, interrupted=begun)


def build_answer_return(answer: Answer) -> ToolCallReturn:
    """Return the result of a call not to be run again: the outcome that the person found out, if given."""
    if answer.payload is not None and answer.payload is not ERASED:
        return ToolCallReturn(result=answer.payload)
    return replace(INTERRUPTED_RETURN, result=f"{INTERRUPTED_RETURN.result}{_join_remarks(answer.note)}")


def _join_remarks(*said: Any) -> str:
    told = [words for words in said if words is not None and words is not ERASED]
    return "".join(f" {words if isinstance(words, str) else msgspec.json.encode(words).decode()}" for words in told)


# Questions


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
