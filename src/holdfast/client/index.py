"""`hf.index`: every operation on frames at the low level, flat. Each method is a line that names a flow.

Frames are named by their ids. Every write takes a `key`, under which it happens once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.client import context
from holdfast.client.pack import ContextPack
from holdfast.client.questions import QuestionsView
from holdfast.client.work import WorkView
from holdfast.core import stack
from holdfast.core.values import plain
from holdfast.errors import BudgetTooSmall
from holdfast.flow.context import briefs, seeing
from holdfast.flow.stack import frames, owning, pushing, showing, sweeping
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.frames import GoalContent, OutcomeContent
from holdfast.records.frames import Limits
from holdfast.records.packs import MAIN_ROLE, BriefContext
from holdfast.records.resume import (
    ActorResumeState,
    FrameInfo,
    Swept,
)
from holdfast.records.scope import Address, Scope


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
        """A new unit of work; gives its id. A child lives in its parent's scope unless another is given.

        `inherit` names handles of the parent that the child is to see as well.
        """
        content = GoalContent(goal=goal, inputs=plain(inputs), metadata=plain(metadata))
        stream = None if scope is None else Scope.of(scope).text
        return pushing.push(
            self._ports,
            self._acting,
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
        """Change what a frame is for, its limits, whether it waits, or a root's tokens."""
        texts = None
        if goal is not None or inputs is not None or metadata is not None:
            known = showing.frame_info(self._ports, self._acting, frame)
            texts = GoalContent(
                goal=goal if goal is not None else _kept(known.goal),
                inputs=plain(inputs) if inputs is not None else _kept(known.inputs),
                metadata=plain(metadata) if metadata is not None else _kept(known.metadata),
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
        goal = self._ports.states.take_goal(self._acting.tenant, ended.stream, ended.frame.goal)
        return showing.describe(
            self._ports, self._acting, ended.stream, ended.frame, completed_at=ended.at, outcome=content, goal=goal
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
        """What a frame's next model call is shown: of a frame by its id, or of the top of a scope's stack."""
        least = self._ports.settings.min_pack_tokens
        if isinstance(budget_tokens, int) and not isinstance(budget_tokens, bool) and 0 < budget_tokens < least:
            raise BudgetTooSmall(
                f"A pack of {budget_tokens} tokens is too small: give {least} or more.", required=least
            )
        wanted = seeing.frame_in(self._ports, self._acting, scope, frame)
        asked = context.asked_for(
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
        return context.pack_frame(self._ports, self._acting, wanted, asked, as_of)

    def pack_at(self, call: str) -> ContextPack:
        """The pack that a model call was given, exactly as it was shown; what was erased since says so."""
        return context.pack_at(self._ports, self._acting, call)

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
        """What every pack of a role begins with in a scope: an actor's, a session's, or everywhere.

        It replaces the brief that the role had there. What is not given is looked up further away, an empty value
        says that there is none, and with nothing given the role has no brief there any more.
        """
        briefs.set_brief(
            self._ports,
            self._acting,
            scope,
            role,
            system_prompt=system_prompt,
            invariants=invariants,
            working_context=working_context,
            tools=tools,
            key=key,
        )

    def brief(self, scope: Address, role: str = MAIN_ROLE) -> BriefContext:
        """The brief that holds for a role in a scope, each field from the nearest scope that says it."""
        return briefs.context_of(self._ports, self._acting, scope, role)

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


def _kept(value: Any) -> Any:
    """What stays as it is; what was erased stays away."""
    return None if value is ERASED else value
