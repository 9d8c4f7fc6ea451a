"""`hf.index`: every low-level operation on frames, flat. Each method calls a flow.

Frames, budgets, evidence, calls, questions, packs, briefs and actors. Frames are named by their ids. Every write takes
a `key`, under which it happens once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

from holdfast.client import pack as client_context
from holdfast.client.options import PackOptions, QuestionOptions, SharedPackOptions, SummarizerChoice, refuse_unknown
from holdfast.client.pack import ContextPack
from holdfast.client.questions import ask_question, check_flag, make_answer
from holdfast.client.state import StoreChoice
from holdfast.connect import make_summarizer
from holdfast.core.frames import stack as frame_stack
from holdfast.core.numbers import is_number
from holdfast.core.values import to_plain
from holdfast.errors import BudgetTooSmall, TokenNotFound
from holdfast.flow.compaction import frames
from holdfast.flow.frames import calls as frame_calls
from holdfast.flow.frames import evidence, lifecycle, read, takeover
from holdfast.flow.frames import questions as frame_questions
from holdfast.flow.packs import briefs, visibility
from holdfast.flow.turns import calls
from holdfast.flow.turns import sweep as frame_sweep
from holdfast.ports import Env, Summarizer
from holdfast.records.compaction import DEFAULT_KEEP_ROUNDS, DEFAULT_SUMMARY_TOKENS, CompactionConfig, CompactionResult
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import GoalContent, HandleContent, OutcomeContent
from holdfast.records.frames import Limits
from holdfast.records.packs import MAIN_ROLE, BriefContext
from holdfast.records.recovery import (
    ActorResumeState,
    Answer,
    FrameInfo,
    HandleInfo,
    QuestionInfo,
    QuestionReceipt,
    ResultInfo,
    SweepReport,
)
from holdfast.records.scope import Address, Scope
from holdfast.records.usage import Usage


class IndexView:
    """The frames of one tenant at the low level: call stacks, budgets, evidence, calls and questions."""

    def __init__(self, env: Env) -> None:
        self.env = env

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
        return lifecycle.push_frame(
            self.env,
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
            known = read.read_frame(self.env, frame)
            texts = GoalContent(
                goal=goal if goal is not None else _drop_erased(known.goal),
                inputs=to_plain(inputs) if inputs is not None else _drop_erased(known.inputs),
                metadata=to_plain(metadata) if metadata is not None else _drop_erased(known.metadata),
            )
        lifecycle.update_frame(
            self.env,
            frame,
            content=texts,
            status=status,
            limits=limits,
            tokens=tokens,
            key=key,
            expected=expected_version,
        )
        return read.read_frame(self.env, frame)

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
        ended = lifecycle.pop_frame(self.env, frame, status, content, key=key, expected=expected_version)
        if ended is None:
            return read.read_frame(self.env, frame)
        goal = self.env.states.goals.drop((self.env.tenant, ended.stream, ended.frame.goal))
        return read.describe_frame(
            self.env, ended.stream, ended.frame, completed_at=ended.at, outcome=content, goal=goal
        )

    def get_frame(self, frame: str) -> FrameInfo:
        """Return a frame with its texts, live or ended."""
        return read.read_frame(self.env, frame)

    def ancestry(self, frame: str) -> list[FrameInfo]:
        """Return the frames from the root to this one, across scopes."""
        return read.read_ancestry(self.env, frame)

    def stack(self, scope: Address) -> list[FrameInfo]:
        """Return all live frames of a scope, parents before children. A waiting parent hides nothing."""
        return read.read_stack(self.env, Scope.of(scope).text)

    def stacks(self) -> Iterator[tuple[str, list[FrameInfo]]]:
        """Iterate over every scope that has live frames, with those frames."""
        for stream in read.list_streams_with_work(self.env):
            yield stream, read.read_stack(self.env, stream)

    def top_of_stack(self, scope: Address) -> FrameInfo | None:
        """Return the deepest live frame of a scope, the newest if there are several, or None."""
        stream = Scope.of(scope).text
        top = frame_stack.top_frame(read.load_current_state(self.env, stream).frames)
        return None if top is None else read.describe_frame(self.env, stream, top)

    def leaves(self, scope: Address) -> list[FrameInfo]:
        """Return every live frame with nothing live below it, oldest first."""
        stream = Scope.of(scope).text
        found = frame_stack.leaves(read.load_current_state(self.env, stream).frames)
        return [read.describe_frame(self.env, stream, frame) for frame in found]

    # packs

    def assemble_context_pack(
        self,
        scope: Address | None = None,
        frame: str | None = None,
        *,
        budget_tokens: int | None = None,
        include_handles: Sequence[str] = (),
        exclude_handles: Sequence[str] = (),
        **options: Unpack[SharedPackOptions],
    ) -> ContextPack:
        """Return the context of the next model call of a frame, given by id or as the top of a scope's stack."""
        least = self.env.settings.min_pack_tokens
        if is_number(budget_tokens, least=1, most=least - 1):
            raise BudgetTooSmall(
                f"A pack of {budget_tokens} tokens is too small: give {least} or more.", required=least
            )
        wanted = visibility.resolve_frame(self.env, scope, frame)
        refuse_unknown(options, SharedPackOptions, "assemble_context_pack")
        given: PackOptions = {**options, "include": include_handles, "exclude": exclude_handles}
        asked = client_context.make_pack_request("assemble_context_pack", budget_tokens, given)
        return client_context.pack_frame(self.env, wanted, asked, options.get("as_of"))

    def pack_at(self, call: str) -> ContextPack:
        """Return the pack that a model call was given, exactly as it was shown; erased content is marked as such."""
        return client_context.pack_at(self.env, call)

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
            self.env,
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
        return briefs.brief_context(self.env, scope, role)

    # actors

    def resume_actor(self, scope: Address, *, incarnation: str | None = None) -> ActorResumeState:
        """Return where an actor stands: every live leaf, the path from root to current, and unfinished work.

        Without an incarnation this only reads. With one, this process becomes the owner: the earlier owner can write no
        more, and `actor.resumed` is written, once.
        """
        return takeover.resume_actor(self.env, Scope.of(scope).text, incarnation)

    def release_actor(self, scope: Address) -> None:
        """Release an actor that was taken with `resume_actor`; does nothing if it was not."""
        takeover.release_actor(self.env, Scope.of(scope).text)

    def sweep(self, *, fail_orphans: bool = False) -> SweepReport:
        """Resume frames whose timer is due, end expired ones, flag late ones; `fail_orphans` fails late orphans."""
        return frame_sweep.sweep(self.env, fail_orphans=fail_orphans)

    # budgets

    def reserve(self, frame: str, purpose: str, amount: int, *, key: str | None = None) -> None:
        """Set tokens aside for a purpose."""
        lifecycle.reserve_tokens(self.env, frame, purpose, amount, key)

    def release_reservation(
        self, frame: str, purpose: str, amount: int | None = None, *, key: str | None = None
    ) -> None:
        """Release a reservation, whole or in part."""
        lifecycle.release_reservation(self.env, frame, purpose, amount, key)

    def spend_reserved(self, frame: str, purpose: str, usage: Usage | int, *, key: str | None = None) -> None:
        """Record usage that a reservation pays for, as far as it goes."""
        lifecycle.spend_tokens(self.env, frame, usage, purpose, key)

    def record_usage(self, frame: str, usage: Usage | int, *, key: str | None = None) -> None:
        """Record what work used. Never refused for its amount: the work is done."""
        lifecycle.spend_tokens(self.env, frame, usage, None, key)

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
        return evidence.add_handle(
            self.env,
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
        return evidence.remove_handles(self.env, frame, names, reason, key)

    def restore_handles(self, frame: str, removal: str, *, key: str | None = None) -> tuple[str, ...]:
        """Attach again what one removal or compaction detached; return the handles."""
        return evidence.restore_handles(self.env, frame, removal, key)

    def compact_context(
        self,
        frame: str,
        target_budget: int,
        strategy: str = "priority",
        *,
        keep: int = DEFAULT_KEEP_ROUNDS,
        summarizer: SummarizerChoice | None = None,
        max_tokens: int = DEFAULT_SUMMARY_TOKENS,
        timeout: float | None = None,
        store: StoreChoice = False,
        strict: bool = False,
        key: str | None = None,
    ) -> CompactionResult:
        """Make a frame's context fit a budget: detach evidence, or replace older rounds by a summary.

        `priority`, `policy_trim` and your own strategies choose among the frame's evidence, which `restore_handles`
        brings back. The others keep the newest `keep` rounds of its conversation if these fit the budget, and fewer if
        they do not. Critical evidence stays.
        """
        config = CompactionConfig(strategy=strategy, keep=keep, summary_tokens=max_tokens, timeout=timeout, store=store)
        chosen = choose_frame_summarizer(self.env, summarizer)
        return frames.compact_context(self.env, frame, target_budget, config, chosen, strict=strict, key=key)

    def handles(self, frame: str) -> list[HandleInfo]:
        """Return a frame's handles in order, with their targets; detached ones are marked."""
        return read.read_handles(self.env, frame)

    def add_result(self, frame: str, kind: str, ref: str, *, summary: str | None = None, key: str | None = None) -> int:
        """Add a reference to something that the frame produced; return its position."""
        return evidence.add_result(self.env, frame, kind, ref, summary, key)

    def results(self, frame: str) -> list[ResultInfo]:
        """Return the references that a frame added to what it produced, in order, with their summaries."""
        return read.read_results(self.env, frame)

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
        asked = to_plain(request)
        if pack is not None:
            return client_context.begin_packed_call(
                self.env, pack, frame=frame, model=model, request=asked, if_interrupted=if_interrupted, key=key
            )
        return frame_calls.begin_model_call(
            self.env, frame, model=model, request=asked, if_interrupted=if_interrupted, key=key
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
            self.env,
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
        data = to_plain(arguments)
        return frame_calls.begin_tool_call(
            self.env, frame, name, arguments=data, if_interrupted=if_interrupted, provider_id=provider_id, key=key
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
        plain = to_plain(value)
        frame_calls.end_tool_call(
            self.env, frame, call, value=plain, error=error, interrupted=interrupted, tokens=tokens
        )

    # questions

    def suspend_frame(
        self,
        frame: str,
        reason: str | None = None,
        *,
        call: str | None = None,
        key: str | None = None,
        **options: Unpack[QuestionOptions],
    ) -> QuestionReceipt:
        """Suspend a frame until its question is answered; return the question's id and, if requested, a link token."""
        return ask_question(self.env, frame, reason, "suspend_frame", options, call=call, key=key)

    def reissue_token(self, question: str, *, expires_ms: int | None = None) -> str:
        """Issue a new link token for an open question; the earlier one is void."""
        return frame_questions.reissue_token(self.env, question, expires_ms)

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
        frame, answered = frame_questions.find_question_frame(self.env, question, token)
        if answered and token is not None:
            raise TokenNotFound
        if args is not None and approve is not False:
            calls.check_edited_arguments(self.env, to_plain(args), question=question, token=token)
        approved, content, bring = check_flag(approve), make_answer(payload, args, note), given or not answered
        frame_questions.resume_frame(self.env, frame, bring=bring, token=token, approved=approved, content=content)
        return frame

    def question(self, question: str) -> QuestionInfo:
        """Return one open question."""
        return read.read_question(self.env, question)

    def answer_to(self, scope: Address, question: str) -> Answer | None:
        """Return the answer to a question of a scope, also after its frame was resumed."""
        read.parse_id(question, "question")
        return frame_questions.read_answer(self.env, Scope.of(scope).text, question)


def choose_frame_summarizer(env: Env, given: Any) -> Summarizer:
    """Return the given summarizer, or else the client's, counting as the default model does."""
    models = env.models
    count, window = models.tokenizer().count, models.info(None).input_budget
    return make_summarizer(given if given is not None else env.summarizer, count, window)


def _drop_erased(value: Any) -> Any:
    """Return a value that stays unchanged, or None if it was erased."""
    return None if value is ERASED else value
