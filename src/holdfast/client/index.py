"""`hf.index`: every low-level operation on frames, flat. Each method calls a flow.

Frames, budgets, evidence, calls, questions, packs, briefs and actors. Frames are named by their ids. Every write takes
a `key`, under which it happens once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.client import pack as client_context
from holdfast.client.pack import ContextPack
from holdfast.connect import make_summarizer
from holdfast.core.checks import is_number
from holdfast.core.frames import stack as frame_stack
from holdfast.core.frames.questions import check_options
from holdfast.core.values import to_plain
from holdfast.errors import BudgetTooSmall, InvalidValue, TokenNotFound
from holdfast.flow.compaction import frames
from holdfast.flow.frames import calls as frame_calls
from holdfast.flow.frames import lifecycle, push, read, takeover
from holdfast.flow.frames import questions as frame_questions
from holdfast.flow.packs import briefs, visibility
from holdfast.flow.sessions import append
from holdfast.flow.turns import calls
from holdfast.flow.turns import sweep as frame_sweep
from holdfast.ports import Env, Summarizer
from holdfast.records.compaction import DEFAULT_KEEP_ROUNDS, DEFAULT_SUMMARY_TOKENS, CompactionConfig, CompactionResult
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import AnswerContent, GoalContent, HandleContent, OutcomeContent, QuestionContent
from holdfast.records.frames import Limits
from holdfast.records.packs import MAIN_ROLE, BriefContext
from holdfast.records.recovery import (
    ActorResumeState,
    Answer,
    FrameInfo,
    HandleInfo,
    QuestionInfo,
    QuestionReceipt,
    SweepReport,
)
from holdfast.records.scope import Address, Scope
from holdfast.records.usage import Usage


class QuestionsView:
    """The open questions of one tenant."""

    def __init__(self, env: Env) -> None:
        self._env = env

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
    ) -> QuestionReceipt:
        """Suspend a frame until its question is answered; return the question's id and, if requested, a link token."""
        content = QuestionContent(
            reason=_check_text(reason, "reason"),
            options=check_options(options, recommended),
            recommended=recommended,
            arguments=to_plain(arguments),
            payload=to_plain(payload),
        )
        return frame_questions.suspend_frame(
            self._env,
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
        """Answer a question by its id or its token; return its id. The frame's owner continues with the answer.

        `args` replace all arguments of the tool call in question. Arguments that the tool can never take are refused,
        as far as the tool is known, and the question stays open.
        """
        content = _make_answer(payload, args, note)
        if args is not None and approve is not False:
            calls.check_edited_arguments(self._env, to_plain(args), question=question, token=token)
        return frame_questions.answer_question(
            self._env,
            question=question,
            token=token,
            approved=_check_flag(approve),
            content=content,
        )

    def reissue_token(self, question: str, *, expires_ms: int | None = None) -> str:
        """Issue a new link token for an open question; the earlier one is void."""
        return frame_questions.reissue_token(self._env, question, expires_ms)

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
        """Resume the frame of a question and return the frame's id; record an answer too if there is none yet."""
        given = approve is not None or payload is not None or args is not None or note is not None
        frame, answered = frame_questions.find_question_frame(self._env, question, token)
        if answered and token is not None:
            raise TokenNotFound
        if args is not None and approve is not False:
            calls.check_edited_arguments(self._env, to_plain(args), question=question, token=token)
        frame_questions.resume_frame(
            self._env,
            frame,
            bring=given or not answered,
            token=token,
            approved=_check_flag(approve),
            content=_make_answer(payload, args, note),
        )
        return frame

    def questions(self) -> Iterator[QuestionInfo]:
        """Iterate over all open questions, oldest frame first."""
        return read.read_questions(self._env)

    def question(self, question: str) -> QuestionInfo:
        """Return one open question."""
        return read.read_question(self._env, question)

    def answer_to(self, scope: Address, question: str) -> Answer | None:
        """Return the answer to a question of a scope, also after its frame was resumed."""
        read.parse_id(question, "question")
        return frame_questions.read_answer(self._env, Scope.of(scope).text, question)


def _check_text(value: object, what: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidValue(f"{what} must be a text.")
    return value


def _check_flag(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidValue("approve must be True, False or left out.")
    return value


def _make_answer(payload: Any, args: Any, note: str | None) -> AnswerContent | None:
    if payload is None and args is None and note is None:
        return None
    return AnswerContent(payload=to_plain(payload), arguments=to_plain(args), note=_check_text(note, "note"))


class WorkView:
    """Budgets, evidence, results and calls of one tenant's frames."""

    def __init__(self, env: Env) -> None:
        self._env = env

    # budgets

    def reserve(self, frame: str, purpose: str, amount: int, *, key: str | None = None) -> None:
        """Set tokens aside for a purpose."""
        frame_calls.reserve_tokens(self._env, frame, purpose, amount, key)

    def release_reservation(
        self, frame: str, purpose: str, amount: int | None = None, *, key: str | None = None
    ) -> None:
        """Release a reservation, whole or in part."""
        frame_calls.release_reservation(self._env, frame, purpose, amount, key)

    def spend_reserved(self, frame: str, purpose: str, usage: Usage | int, *, key: str | None = None) -> None:
        """Record usage that a reservation pays for, as far as it goes."""
        frame_calls.spend_tokens(self._env, frame, usage, purpose, key)

    def record_usage(self, frame: str, usage: Usage | int, *, key: str | None = None) -> None:
        """Record what work used. Never refused for its amount: the work is done."""
        frame_calls.spend_tokens(self._env, frame, usage, None, key)

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
        priority: str | None = None,
        policy: str | None = None,
        tokens: int | None = None,
        trust: str | None = None,
        call: str | None = None,
        metadata: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> str:
        """Attach evidence and return the handle's id. An existing handle is changed in place."""
        content = HandleContent(description=description, target=target, body=body, metadata=to_plain(metadata))
        return frame_calls.add_handle(
            self._env,
            frame,
            kind,
            content,
            handle=handle,
            priority=priority,
            policy=policy,
            tokens=tokens,
            trust=trust,
            call=call,
            key=key,
        )

    def remove_handle(
        self, frame: str, handle: str | Sequence[str], *, reason: str | None = None, key: str | None = None
    ) -> str | None:
        """Detach evidence; return the name with which `restore_handles` brings it back."""
        names = [handle] if isinstance(handle, str) else handle
        return frame_calls.remove_handles(self._env, frame, names, reason, key)

    def restore_handles(self, frame: str, removal: str, *, key: str | None = None) -> tuple[str, ...]:
        """Attach again what one removal or compaction detached; return the handles."""
        return frame_calls.restore_handles(self._env, frame, removal, key)

    def compact_context(
        self,
        frame: str,
        target_budget: int,
        strategy: str = "priority",
        *,
        keep: int = DEFAULT_KEEP_ROUNDS,
        summarizer: Summarizer | Callable[..., str] | None = None,
        max_tokens: int = DEFAULT_SUMMARY_TOKENS,
        timeout: float | None = None,
        store: bool | str = False,
        strict: bool = False,
        key: str | None = None,
    ) -> CompactionResult:
        """Make a frame's context fit a budget: detach evidence, or replace older rounds by a summary.

        `priority`, `policy_trim` and your own strategies choose among the frame's evidence, which `restore_handles`
        brings back. The others keep the newest `keep` rounds of its conversation. Critical evidence stays.
        """
        config = CompactionConfig(strategy=strategy, keep=keep, summary_tokens=max_tokens, timeout=timeout, store=store)
        chosen = self._choose_summarizer(summarizer)
        return frames.compact_context(self._env, frame, target_budget, config, chosen, strict=strict, key=key)

    def _choose_summarizer(self, given: Any) -> Summarizer:
        tokenizer = append.models_port(self._env).tokenizer()
        return make_summarizer(given if given is not None else self._env.summarizer, tokenizer.count)

    def handles(self, frame: str) -> list[HandleInfo]:
        """Return a frame's handles in order, with their targets; detached ones are marked."""
        return read.read_handles(self._env, frame)

    def add_result(self, frame: str, kind: str, ref: str, *, summary: str | None = None, key: str | None = None) -> int:
        """Add a reference to something that the frame produced; return its position."""
        return frame_calls.add_result(self._env, frame, kind, ref, summary, key)

    # calls

    def begin_model_call(
        self,
        frame: str,
        pack: ContextPack | None = None,
        *,
        model: str | None = None,
        request: Any = None,
        if_interrupted: str = "retry",
        key: str | None = None,
    ) -> str:
        """Journal that a model is about to be called, and with which pack; return the call's id.

        Refused when no tokens are left. With a key, a second call returns the first's id, whatever was said since: show
        the model `pack_at(call)` then.
        """
        if pack is not None:
            return client_context.begin_packed_call(
                self._env,
                pack,
                frame=frame,
                model=model,
                request=to_plain(request),
                if_interrupted=if_interrupted,
                key=key,
            )
        return frame_calls.begin_model_call(
            self._env,
            frame,
            model=model,
            request=to_plain(request),
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
        """Journal a model's response, or with `error` its failure. Usage is recorded either way."""
        frame_calls.end_model_call(
            self._env,
            frame,
            call,
            usage=usage,
            finish=finish,
            response=to_plain(response),
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
        """Journal that a tool is about to be called; return the call's id, its idempotency key."""
        return frame_calls.begin_tool_call(
            self._env,
            frame,
            name,
            arguments=to_plain(arguments),
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
        """Journal a tool's value, or with `error` its failure."""
        frame_calls.end_tool_call(
            self._env,
            frame,
            call,
            value=to_plain(value),
            error=error,
            interrupted=interrupted,
            tokens=tokens,
        )


class IndexView(WorkView, QuestionsView):
    """The call stacks of one tenant."""

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
        inherit: Sequence[str] = (),
        frame_id: str | None = None,
        key: str | None = None,
    ) -> str:
        """Push a new frame and return its id. A child lives in its parent's scope unless another is given.

        `inherit` names handles of the parent that the child sees as well.
        """
        content = GoalContent(goal=goal, inputs=to_plain(inputs), metadata=to_plain(metadata))
        stream = None if scope is None else Scope.of(scope).text
        return push.push_frame(
            self._env,
            stream,
            content,
            parent=parent,
            tokens=tokens,
            limits=limits,
            inherit=inherit,
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
        """Change a frame's goal, inputs, metadata, limits or status, or a root's tokens."""
        texts = None
        if goal is not None or inputs is not None or metadata is not None:
            known = read.read_frame(self._env, frame)
            texts = GoalContent(
                goal=goal if goal is not None else _drop_erased(known.goal),
                inputs=to_plain(inputs) if inputs is not None else _drop_erased(known.inputs),
                metadata=to_plain(metadata) if metadata is not None else _drop_erased(known.metadata),
            )
        lifecycle.update_frame(
            self._env,
            frame,
            content=texts,
            status=status,
            limits=limits,
            tokens=tokens,
            key=key,
            expected=expected_version,
        )
        return read.read_frame(self._env, frame)

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
        content = OutcomeContent(summary=summary, error=error, value=to_plain(value))
        ended = lifecycle.pop_frame(self._env, frame, status, content, key=key, expected=expected_version)
        if ended is None:
            return read.read_frame(self._env, frame)
        goal = self._env.states.take_goal(self._env.tenant, ended.stream, ended.frame.goal)
        return read.describe_frame(
            self._env, ended.stream, ended.frame, completed_at=ended.at, outcome=content, goal=goal
        )

    def get_frame(self, frame: str) -> FrameInfo:
        """Return a frame with its texts, live or ended."""
        return read.read_frame(self._env, frame)

    def ancestry(self, frame: str) -> list[FrameInfo]:
        """Return the frames from the root to this one, across scopes."""
        return read.read_ancestry(self._env, frame)

    def stack(self, scope: Address) -> list[FrameInfo]:
        """Return all live frames of a scope, parents before children. A waiting parent hides nothing."""
        return read.read_stack(self._env, Scope.of(scope).text)

    def stacks(self) -> Iterator[tuple[str, list[FrameInfo]]]:
        """Iterate over every scope that has live frames, with those frames."""
        for stream in read.list_streams_with_work(self._env):
            yield stream, read.read_stack(self._env, stream)

    def top_of_stack(self, scope: Address) -> FrameInfo | None:
        """Return the deepest live frame of a scope, the newest if there are several, or None."""
        stream = Scope.of(scope).text
        top = frame_stack.top_frame(read.load_current_state(self._env, stream).frames)
        return None if top is None else read.describe_frame(self._env, stream, top)

    def leaves(self, scope: Address) -> list[FrameInfo]:
        """Return every live frame with nothing live below it, oldest first."""
        stream = Scope.of(scope).text
        found = frame_stack.leaves(read.load_current_state(self._env, stream).frames)
        return [read.describe_frame(self._env, stream, frame) for frame in found]

    # packs

    def assemble_context_pack(
        self,
        scope: Address | None = None,
        frame: str | None = None,
        *,
        budget_tokens: int | None = None,
        role: str = MAIN_ROLE,
        query: str | None = None,
        include_handles: Sequence[str] = (),
        exclude_handles: Sequence[str] = (),
        force_exclude: bool = False,
        min_compaction: str = "none",
        tokenizer: str | None = None,
        layout: str = "stable",
        stickiness: float | None = None,
        max_messages: int | None = None,
        recall: int | None = None,
        as_of: int | None = None,
    ) -> ContextPack:
        """Return the context of the next model call of a frame, given by id or as the top of a scope's stack."""
        least = self._env.settings.min_pack_tokens
        if is_number(budget_tokens, least=1, most=least - 1):
            raise BudgetTooSmall(
                f"A pack of {budget_tokens} tokens is too small: give {least} or more.", required=least
            )
        wanted = visibility.resolve_frame(self._env, scope, frame)
        asked = client_context.make_pack_request(
            budget_tokens,
            role=role,
            query=query,
            include=include_handles,
            exclude=exclude_handles,
            force_exclude=force_exclude,
            min_compaction=min_compaction,
            tokenizer=tokenizer,
            layout=layout,
            stickiness=stickiness,
            max_messages=max_messages,
            recall=recall,
        )
        return client_context.pack_frame(self._env, wanted, asked, as_of)

    def pack_at(self, call: str) -> ContextPack:
        """Return the pack that a model call was given, exactly as it was shown; erased content is marked as such."""
        return client_context.pack_at(self._env, call)

    # briefs

    def set_brief(
        self,
        scope: Address,
        role: str = MAIN_ROLE,
        *,
        system_prompt: str | None = None,
        invariants: Sequence[str] | None = None,
        working_context: Any = None,
        tools: Sequence[Any] | None = None,
        key: str | None = None,
    ) -> None:
        """Set what every pack of a role begins with in a scope: an actor's, a session's, or everywhere.

        It replaces the role's brief there. A field that is not given is inherited from a wider scope, an empty value
        means none, and with no field given the role's brief is removed there.
        """
        briefs.set_brief(
            self._env,
            scope,
            role,
            system_prompt=system_prompt,
            invariants=invariants,
            working_context=working_context,
            tools=tools,
            key=key,
        )

    def brief(self, scope: Address, role: str = MAIN_ROLE) -> BriefContext:
        """Return the effective brief of a role in a scope, each field from the nearest scope that sets it."""
        return briefs.brief_context(self._env, scope, role)

    # actors

    def resume_actor(self, scope: Address, *, incarnation: str | None = None) -> ActorResumeState:
        """Return where an actor stands: every live leaf, the path from root to current, and unfinished work.

        Without an incarnation this only reads. With one, this process becomes the owner: the earlier owner can write no
        more, and `actor.resumed` is written, once.
        """
        return takeover.resume_actor(self._env, Scope.of(scope).text, incarnation)

    def release_actor(self, scope: Address) -> None:
        """Release an actor that was taken with `resume_actor`; does nothing if it was not."""
        takeover.release_actor(self._env, Scope.of(scope).text)

    def sweep(self, *, fail_orphans: bool = False) -> SweepReport:
        """Resume frames whose timer is due, end expired ones, flag late ones; `fail_orphans` fails late orphans."""
        return frame_sweep.sweep(self._env, fail_orphans=fail_orphans)


def _drop_erased(value: Any) -> Any:
    """Return a value that stays unchanged, or None if it was erased."""
    return None if value is ERASED else value
