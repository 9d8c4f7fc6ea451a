"""`hf.index`, the part about questions: suspend, answer once, resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.core.values import plain
from holdfast.errors import InvalidValue, TokenNotFound
from holdfast.flow.stack import asking, showing
from holdfast.flow.turn import questioning
from holdfast.ports import Acting, Ports
from holdfast.records.events.frames import AnswerContent, QuestionContent
from holdfast.records.resume import (
    Answer,
    Asked,
    QuestionInfo,
)
from holdfast.records.scope import Address, Scope


class QuestionsView:
    """The open questions of one tenant."""

    def __init__(self, ports: Ports, acting: Acting) -> None:
        self._ports = ports
        self._acting = acting

    # questions

    def suspend_frame(
        self,
        frame: str,
        reason: str | None = None,
        *,
        kind: str = "approval",
        options: Sequence[str] | None = None,
        recommended: str | None = None,
        arguments: Any = None,
        payload: Any = None,
        token: bool = False,
        expires_ms: int | None = None,
        on_expiry: str | None = None,
        until: int | None = None,
        call: str | None = None,
        subtree: bool = False,
        release_budget: bool = True,
        key: str | None = None,
    ) -> Asked:
        """Stop a frame until somebody answers; gives the question's id and, if asked for, a link token."""
        content = QuestionContent(
            reason=_text(reason, "reason"),
            options=choices(options, recommended),
            recommended=recommended,
            arguments=plain(arguments),
            payload=plain(payload),
        )
        return asking.suspend(
            self._ports,
            self._acting,
            frame,
            content,
            kind=kind,
            token=token,
            expires_ms=expires_ms,
            on_expiry=on_expiry,
            until=until,
            call=call,
            subtree=subtree,
            release=release_budget,
            key=key,
        )

    def answer(
        self,
        question: str | None = None,
        *,
        token: str | None = None,
        approve: bool | None = None,
        payload: Any = None,
        args: Any = None,
        note: str | None = None,
    ) -> str:
        """Answer a question by id, or with its token; gives its id. The frame's owner goes on with it.

        `args` are all arguments of a tool call, in place of those that were asked about. What the tool can never take
        is refused, as far as it is known, and the question stays open.
        """
        content = _answer(payload, args, note)
        if args is not None and approve is not False:
            questioning.check_edited(self._ports, self._acting, plain(args), question=question, token=token)
        return asking.answer(
            self._ports,
            self._acting,
            question=question,
            token=token,
            approved=_flag(approve),
            content=content,
        )

    def reissue_token(self, question: str, *, expires_ms: int | None = None) -> str:
        """A new link token for an open question; the earlier one is void."""
        return asking.reissue(self._ports, self._acting, question, expires_ms)

    def resume_frame(
        self,
        question: str | None = None,
        *,
        token: str | None = None,
        approve: bool | None = None,
        payload: Any = None,
        args: Any = None,
        note: str | None = None,
    ) -> str:
        """Let the frame of a question go on; gives the frame's id. Brings an answer along if none was given."""
        given = approve is not None or payload is not None or args is not None or note is not None
        frame, answered = asking.found(self._ports, self._acting, question, token)
        if answered and token is not None:
            raise TokenNotFound
        if args is not None and approve is not False:
            questioning.check_edited(self._ports, self._acting, plain(args), question=question, token=token)
        asking.resume(
            self._ports,
            self._acting,
            frame,
            bring=given or not answered,
            token=token,
            approved=_flag(approve),
            content=_answer(payload, args, note),
        )
        return frame

    def questions(self) -> Iterator[QuestionInfo]:
        """Every open question, oldest frame first."""
        return showing.questions(self._ports, self._acting)

    def question(self, question: str) -> QuestionInfo:
        """One open question."""
        return showing.question(self._ports, self._acting, question)

    def answer_to(self, scope: Address, question: str) -> Answer | None:
        """What was answered to a question of a scope, also after its frame went on."""
        showing.raw_id(question, "question")
        return asking.answer_of(self._ports, self._acting, Scope.of(scope).text, question)


def _text(value: object, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidValue(f"{what} must be a text.")
    return value


def choices(options: Sequence[str] | None, recommended: str | None) -> list[str] | None:
    """What can be chosen, as a list of texts; what is recommended is one of them."""
    if options is None:
        return None
    if not isinstance(options, list | tuple) or not all(isinstance(option, str) for option in options):
        raise InvalidValue("options must be a list of texts.")
    if recommended is not None and recommended not in options:
        raise InvalidValue(f"{recommended!r} is recommended and not among the options.")
    return list(options)


def _flag(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidValue("approve must be True, False or left out.")
    return value


def _answer(payload: Any, args: Any, note: str | None) -> AnswerContent | None:
    if payload is None and args is None and note is None:
        return None
    return AnswerContent(payload=plain(payload), arguments=plain(args), note=_text(note, "note"))
