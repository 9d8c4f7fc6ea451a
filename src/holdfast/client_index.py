"""`hf.index`: every operation on frames at the low level, flat. Each method is a line that names a flow.

Frames are named by their ids. Every write takes a `key`, under which it happens once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.core import stack
from holdfast.core.values import plain
from holdfast.errors import InvalidValue, TokenNotFound, Unsupported
from holdfast.flow import asking, frames, owning, showing, sweeping, working
from holdfast.ports import Acting, Ports
from holdfast.records.events.frames import AnswerContent, GoalContent, HandleContent, OutcomeContent, QuestionContent
from holdfast.records.frames import Limits
from holdfast.records.resume import (
    ActorResumeState,
    Answer,
    Asked,
    FrameInfo,
    HandleInfo,
    QuestionInfo,
    Swept,
)
from holdfast.records.scope import Scope
from holdfast.records.usage import Usage

Address = Scope | str


class IndexView:
    """The call stacks of one tenant."""

    def __init__(self, ports: Ports, acting: Acting) -> None:
        self._ports = ports
        self._acting = acting

    # frames

    def push_frame(
        self,
        goal: str,
        *,
        scope: Address | None = None,
        parent: str | None = None,
        inputs: Any = None,
        metadata: dict[str, Any] | None = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        frame_id: str | None = None,
        key: str | None = None,
    ) -> str:
        """A new unit of work; gives its id. A child lives in its parent's scope unless another is given."""
        content = GoalContent(goal=goal, inputs=plain(inputs), metadata=plain(metadata))
        stream = None if scope is None else Scope.of(scope).text
        return frames.push(
            self._ports,
            self._acting,
            stream,
            content,
            parent=parent,
            tokens=tokens,
            limits=limits,
            frame_id=frame_id,
            key=key,
        )

    def update_frame(
        self,
        frame: str,
        *,
        goal: str | None = None,
        inputs: Any = None,
        metadata: dict[str, Any] | None = None,
        status: str | None = None,
        limits: Limits | None = None,
        tokens: int | None = None,
        expected_version: int | None = None,
        key: str | None = None,
    ) -> FrameInfo:
        """Change what a frame is for, its limits, whether it waits, or a root's tokens."""
        texts = None
        if goal is not None or inputs is not None or metadata is not None:
            known = showing.frame_info(self._ports, self._acting, frame)
            texts = GoalContent(
                goal=goal if goal is not None else _kept(known.goal),
                inputs=plain(inputs) if inputs is not None else known.inputs or None,
                metadata=plain(metadata) if metadata is not None else known.metadata or None,
            )
        frames.update(
            self._ports,
            self._acting,
            frame,
            content=texts,
            status=status,
            limits=limits,
            tokens=tokens,
            key=key,
            expected=expected_version,
        )
        return showing.frame_info(self._ports, self._acting, frame)

    def pop_frame(
        self,
        frame: str,
        status: str = "completed",
        *,
        summary: str | None = None,
        error: str | None = None,
        value: Any = None,
        expected_version: int | None = None,
        key: str | None = None,
    ) -> FrameInfo:
        """End a frame and settle its budget. Failing or cancelling it cancels everything below, leaf first."""
        content = OutcomeContent(summary=summary, error=error, value=plain(value))
        ended = frames.pop(self._ports, self._acting, frame, status, content, key=key, expected=expected_version)
        if ended is None:
            return showing.frame_info(self._ports, self._acting, frame)
        return showing.describe(
            self._ports, self._acting, ended.stream, ended.frame, completed_at=ended.at, outcome=content
        )

    def get_frame(self, frame: str) -> FrameInfo:
        """A frame with its texts, live or ended."""
        return showing.frame_info(self._ports, self._acting, frame)

    def ancestry(self, frame: str) -> list[FrameInfo]:
        """Root to this frame, across scopes."""
        return showing.ancestry(self._ports, self._acting, frame)

    def stack(self, scope: Address) -> list[FrameInfo]:
        """Every live frame of a scope, parents before children. A waiting parent hides nothing."""
        return showing.stack_of(self._ports, self._acting, Scope.of(scope).text)

    def stacks(self) -> Iterator[tuple[str, list[FrameInfo]]]:
        """Every scope that has live frames, with them."""
        for stream in showing.streams_with_work(self._ports, self._acting):
            yield stream, showing.stack_of(self._ports, self._acting, stream)

    def top_of_stack(self, scope: Address) -> FrameInfo | None:
        """The deepest live frame of a scope, the newest of several, or None."""
        stream = Scope.of(scope).text
        top = stack.top(showing.current(self._ports, self._acting, stream).frames)
        return None if top is None else showing.describe(self._ports, self._acting, stream, top)

    def leaves(self, scope: Address) -> list[FrameInfo]:
        """Every live frame with nothing live below it, oldest first."""
        stream = Scope.of(scope).text
        found = stack.leaves(showing.current(self._ports, self._acting, stream).frames)
        return [showing.describe(self._ports, self._acting, stream, frame) for frame in found]

    # budgets

    def reserve(self, frame: str, purpose: str, amount: int, *, key: str | None = None) -> None:
        """Set tokens aside for a purpose."""
        working.reserve(self._ports, self._acting, frame, purpose, amount, key)

    def release_reservation(
        self, frame: str, purpose: str, amount: int | None = None, *, key: str | None = None
    ) -> None:
        """Give a reservation back, all of it or a part."""
        working.release(self._ports, self._acting, frame, purpose, amount, key)

    def spend_reserved(self, frame: str, purpose: str, usage: Usage | int, *, key: str | None = None) -> None:
        """Record usage that a reservation pays for, as far as it goes."""
        working.spend(self._ports, self._acting, frame, usage, purpose, key)

    def record_usage(self, frame: str, usage: Usage | int, *, key: str | None = None) -> None:
        """Record what work used. Never refused for its amount: the work is done."""
        working.spend(self._ports, self._acting, frame, usage, None, key)

    # evidence and results

    def add_handle(
        self,
        frame: str,
        kind: str,
        *,
        handle: str | None = None,
        description: str | None = None,
        target: str | None = None,
        body: str | None = None,
        priority: str = "medium",
        tokens: int | None = None,
        trust: str | None = None,
        call: str | None = None,
        metadata: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> str:
        """Attach evidence; gives the handle's id. A handle that is there already is changed in place."""
        content = HandleContent(description=description, target=target, body=body, metadata=plain(metadata))
        return working.add_handle(
            self._ports,
            self._acting,
            frame,
            kind,
            content,
            handle=handle,
            priority=priority,
            tokens=tokens,
            trust=trust,
            call=call,
            key=key,
        )

    def remove_handle(
        self, frame: str, handle: str | Sequence[str], *, reason: str | None = None, key: str | None = None
    ) -> str | None:
        """Detach evidence; gives the name under which `restore_handles` brings it back."""
        names = [handle] if isinstance(handle, str) else list(handle)
        return working.remove_handles(self._ports, self._acting, frame, names, reason, key)

    def restore_handles(self, frame: str, removal: str, *, key: str | None = None) -> tuple[str, ...]:
        """Attach again what one removal or compaction detached; gives the handles."""
        return working.restore_handles(self._ports, self._acting, frame, removal, key)

    def handles(self, frame: str) -> list[HandleInfo]:
        """A frame's handles in order, with what they point to; detached ones are marked."""
        return showing.handles(self._ports, self._acting, frame)

    def add_result(self, frame: str, kind: str, ref: str, *, summary: str | None = None, key: str | None = None) -> int:
        """Point to something the frame produced; gives its position."""
        return working.add_result(self._ports, self._acting, frame, kind, ref, summary, key)

    # calls

    def begin_model_call(
        self,
        frame: str,
        pack: Any = None,
        *,
        model: str | None = None,
        request: Any = None,
        purpose: str | None = None,
        if_interrupted: str = "retry",
        key: str | None = None,
    ) -> str:
        """Journal that a model is about to be called; gives the call's id. Refused when nothing is left to spend."""
        if pack is not None:
            raise Unsupported("This release makes no context packs yet. Call it without one.")
        return working.begin_model(
            self._ports,
            self._acting,
            frame,
            model=model,
            request=plain(request),
            purpose=purpose,
            if_interrupted=if_interrupted,
            key=key,
        )

    def end_model_call(
        self,
        frame: str,
        call: str,
        *,
        usage: Usage | int = 0,
        finish: str | None = None,
        response: Any = None,
        provider_id: str | None = None,
        error: str | None = None,
        retryable: bool = False,
        doubtful: Usage | None = None,
    ) -> None:
        """Journal what a model answered, or with `error` that it failed. What it used is recorded either way."""
        working.end_model(
            self._ports,
            self._acting,
            frame,
            call,
            usage=usage,
            finish=finish,
            response=plain(response),
            provider_id=provider_id,
            error=error,
            retryable=retryable,
            doubtful=doubtful,
        )

    def begin_tool_call(
        self,
        frame: str,
        name: str,
        *,
        arguments: Any = None,
        if_interrupted: str = "ask",
        provider_id: str | None = None,
        key: str | None = None,
    ) -> str:
        """Journal that a tool is about to be called; gives the call's id, its idempotency key."""
        return working.begin_tool(
            self._ports,
            self._acting,
            frame,
            name,
            arguments=plain(arguments),
            if_interrupted=if_interrupted,
            provider_id=provider_id,
            key=key,
        )

    def end_tool_call(
        self,
        frame: str,
        call: str,
        *,
        value: Any = None,
        error: str | None = None,
        interrupted: bool = False,
        tokens: int | None = None,
    ) -> None:
        """Journal what a tool returned, or with `error` that it failed."""
        working.end_tool(
            self._ports,
            self._acting,
            frame,
            call,
            value=plain(value),
            error=error,
            interrupted=interrupted,
            tokens=tokens,
        )

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
            options=None if options is None else [str(option) for option in options],
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
        """Answer a question by id, or with its token; gives its id. The frame's owner goes on with it."""
        return asking.answer(
            self._ports,
            self._acting,
            question=question,
            token=token,
            approved=_flag(approve),
            content=_answer(payload, args, note),
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

    # actors

    def resume_actor(self, scope: Address, *, incarnation: str | None = None) -> ActorResumeState:
        """Where an actor stands: every live leaf, root to current, and what was left undone.

        Without an incarnation this only reads. With one, this process becomes the owner: whoever
        owned the scope before can write no more, and `actor.resumed` is written, once.
        """
        return owning.resume_actor(self._ports, self._acting, Scope.of(scope).text, incarnation)

    def release_actor(self, scope: Address) -> None:
        """Give an actor back that was taken with `resume_actor`; does nothing if it was not."""
        owning.release_actor(self._ports, self._acting, Scope.of(scope).text)

    def sweep(self, *, fail_orphans: bool = False) -> Swept:
        """Resume what a timer woke, end what expired, flag what is late, and fail late work of the dead if asked to."""
        return sweeping.sweep(self._ports, self._acting, fail_orphans=fail_orphans)


def _text(value: object, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidValue(f"{what} must be a text.")
    return value


def _kept(text: object) -> str | None:
    """A text that stays as it is; one that was erased stays away."""
    return text if isinstance(text, str) else None


def _flag(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidValue("approve must be True, False or left out.")
    return value


def _answer(payload: Any, args: Any, note: str | None) -> AnswerContent | None:
    if payload is None and args is None and note is None:
        return None
    return AnswerContent(payload=plain(payload), arguments=plain(args), note=_text(note, "note"))
