"""Questions of frames: asked by a frame in its block or by `hf.index`, answered by `hf.answer`."""

from __future__ import annotations

from typing import Any

from holdfast.client.options import QuestionOptions, refuse_unknown
from holdfast.core.frames.questions import check_options
from holdfast.core.values import to_plain
from holdfast.errors import InvalidValue
from holdfast.flow.frames import questions
from holdfast.flow.turns import calls
from holdfast.ports import Env
from holdfast.records.events.frames import AnswerContent, QuestionContent
from holdfast.records.recovery import QuestionReceipt


def ask_question(
    env: Env,
    frame: str,
    reason: str | None,
    method: str,
    options: QuestionOptions,
    *,
    call: str | None = None,
    key: str | None = None,
) -> QuestionReceipt:
    """Suspend a frame until its question is answered."""
    refuse_unknown(options, QuestionOptions, method)
    recommended = options.get("recommended")
    content = QuestionContent(
        reason=_check_text(reason, "reason"),
        options=check_options(options.get("options"), recommended),
        recommended=recommended,
        arguments=to_plain(options.get("arguments")),
        payload=to_plain(options.get("payload")),
    )
    return questions.suspend_frame(
        env,
        frame,
        content,
        kind=options.get("kind", "approval"),
        token=options.get("token", False),
        expires_ms=options.get("expires_ms"),
        on_expiry=options.get("on_expiry"),
        until=options.get("until"),
        call=call,
        subtree=options.get("subtree", False),
        release=options.get("release_budget", True),
        key=key,
    )


def answer_question(
    env: Env,
    question: str | None,
    *,
    token: str | None,
    approve: bool | None,
    payload: Any,
    args: Any,
    note: str | None,
) -> str:
    """Answer a question by its id or its token; return its id. The frame's owner continues with the answer.

    `args` replace all arguments of the tool call in question. Arguments that the tool can never take are refused, as
    far as the tool is known, and the question stays open.
    """
    content = make_answer(payload, args, note)
    if args is not None and approve is not False:
        calls.check_edited_arguments(env, to_plain(args), question=question, token=token)
    return questions.answer_question(env, question=question, token=token, approved=check_flag(approve), content=content)


def check_flag(value: object) -> bool | None:
    """Check the flag of an answer: approved, rejected, or neither."""
    if value is not None and not isinstance(value, bool):
        raise InvalidValue("approve must be True, False or left out.")
    return value


def make_answer(payload: Any, args: Any, note: str | None) -> AnswerContent | None:
    """Make the content of an answer, or None if it has none."""
    if payload is None and args is None and note is None:
        return None
    return AnswerContent(payload=to_plain(payload), arguments=to_plain(args), note=_check_text(note, "note"))


def _check_text(value: object, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidValue(f"{what} must be a text.")
    return value
