"""What a model is told of a call that was not simply made, and what a person is asked about one.

A model that reads "it was not done" calls again, under another key, and whatever the tool did happens twice. So a call
that was begun is never said to be not done: it may have run, and that is what the result says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.client.questions import choices
from holdfast.client.steps import CallTool
from holdfast.core.codec import check_plain
from holdfast.core.values import plain
from holdfast.errors import InvalidValue
from holdfast.flow.turn.calling import Returned
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import QuestionContent
from holdfast.records.messages import INTERRUPTED, ToolCallRequest
from holdfast.records.resume import DO_NOT, RUN_AGAIN, Answer

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


def noted(step: CallTool, value: Any) -> Any:
    """A result, and a word if it is not of what the model had asked for: a person changed that, or approved more."""
    if not step.edited:
        return value
    used = msgspec.json.encode(step.args).decode()
    note = f"[A person changed the arguments of this call to {used}.]"
    if _is_filled_in(step):
        note = f"[This call was made with the arguments that a person approved: {used}.]"
    if isinstance(value, str):
        return f"{note}\n{value}"
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return [{"type": "text", "text": note}, *value]
    return {"note": note, "result": value}


def _is_filled_in(step: CallTool) -> bool:
    """Whether all that the model gave is used, and something beside it."""
    try:
        wrote = step.request.args
    except InvalidValue:
        return False
    if not isinstance(wrote, dict) or not isinstance(step.args, dict):
        return False
    return all(value is None or step.args.get(name) == value for name, value in wrote.items())


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
