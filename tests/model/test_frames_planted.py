"""The model test can fail: each rule of frames is broken on purpose, and a short walk must notice.

Every bug is a patch made here, never a switch in the source. The walk that notices is
walked again without the bug, so that it is the bug that was noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.frames import budgets, calls, evidence, lifecycle, questions, stack
from holdfast.core.journal import chain, fold, load, project
from holdfast.flow.frames import questions as frame_questions
from holdfast.flow.frames.leases import StreamLeases
from holdfast.flow.journal import append as changing
from holdfast.journal.memory import journal
from holdfast.records.frames import FrameLimits, FrameState, StreamState
from holdfast.records.usage import Usage
from tests.model.test_budgets_concurrent import live_and_look_back
from tests.model.test_frames_model import walk_once

Patch = pytest.MonkeyPatch
WALKS = 32


def spent_tokens_refunded(patch: Patch) -> None:
    """The whole grant comes back, and what was used of it is forgotten."""
    fold_settled, settle = fold._settle_child, project._settle_child_row

    def folded(live: Any, parent: str, facts: Any, version: int) -> None:
        fold_settled(live, parent, replace(facts, used=0, usage=Usage()), version)

    def settled(parent: str, facts: Any, version: int) -> Any:
        return settle(parent, replace(facts, used=0, usage=Usage()), version)

    patch.setattr(fold, "_settle_child", folded)
    patch.setattr(project, "_settle_child_row", settled)


def depth_not_inherited(patch: Patch) -> None:
    patch.setattr(lifecycle, "tightest_limits", lambda line: list(line)[-1].limits)
    patch.setattr(lifecycle, "clamp_limits", lambda limits, bound: limits)


def parent_not_woken(patch: Patch) -> None:
    patch.setattr(lifecycle, "should_wake", lambda *_: False)


def cascade_omitted(patch: Patch) -> None:
    patch.setattr(lifecycle, "_cancel_below", lambda states, stream, frame, drafts: (frame.usage, frame.used))


def cascade_root_first(patch: Patch) -> None:
    original = lifecycle.pop

    def pop(*args: Any, **kwargs: Any) -> Any:
        return {stream: events[::-1] for stream, events in original(*args, **kwargs).items()}

    patch.setattr(lifecycle, "pop", pop)


def deadline_runs_while_suspended(patch: Patch) -> None:
    original = questions.resume

    def resume(state: StreamState, frame_id: str, *, now: int) -> Any:
        frame = state.frames.get(frame_id)
        waited = 0 if frame is None or frame.question is None else frame.question.suspended_at
        return original(state, frame_id, now=min(now, waited))

    patch.setattr(questions, "resume", resume)


def clock_of_an_ancestor_not_stopped(patch: Patch) -> None:
    patch.setattr(stack, "is_all_suspended", lambda *_: False)


def token_usable_twice(patch: Patch) -> None:
    """What a token said before counts as said now."""
    original = changing.decide_and_append

    def change(*args: Any, **kwargs: Any) -> Any:
        return replace(original(*args, **kwargs), repeated=False)

    patch.setattr(frame_questions, "decide_and_append", change)


def two_owners(patch: Patch) -> None:
    patch.setattr(chain, "OWNER_TYPES", frozenset())
    patch.setattr(changing, "OWNER_TYPES", frozenset())


def zombie_not_told(patch: Patch) -> None:
    patch.setattr(StreamLeases, "epoch", lambda self, tenant, stream, state: state.epoch)


def open_call_lost_on_load(patch: Patch) -> None:
    original = load._build_frame

    def frame(id: str, row: Any, parts: Any) -> FrameState:
        return replace(original(id, row, parts), calls={})

    patch.setattr(load, "_build_frame", frame)


def grant_not_lent(patch: Patch) -> None:
    update = fold._update_frame

    def updated(live: Any, id: str, version: int, *, lent: int = 0, **changes: Any) -> None:
        update(live, id, version, **changes)

    patch.setattr(fold, "_update_frame", updated)


def grant_not_taken_again(patch: Patch) -> None:
    original = questions._resume_subtree

    def resume(state: StreamState, frame: FrameState, *args: Any) -> None:
        assert frame.question is not None
        original(state, replace(frame, question=replace(frame.question, released=0)), *args)

    patch.setattr(questions, "_resume_subtree", resume)


def released_twice(patch: Patch) -> None:
    patch.setattr(lifecycle, "outstanding_loan", lambda frame: frame.granted or 0)


def resumed_below_what_waits(patch: Patch) -> None:
    original = stack.ancestry

    def ancestry(frames: Any, frame_id: str) -> list[FrameState]:
        *above, own = original(frames, frame_id)
        return [*(replace(frame, question=None) for frame in above), own]

    patch.setattr(questions, "ancestry", ancestry)


def tool_calls_not_limited(patch: Patch) -> None:
    patch.setattr(calls, "tightest_limits", lambda line: FrameLimits(tool_calls=1000))


def deadline_not_looked_at(patch: Patch) -> None:
    original = calls.check_can_work
    patch.setattr(calls, "check_can_work", lambda state, frame_id, now: original(state, frame_id, 0))


def overdraft_refused(patch: Patch) -> None:
    original = budgets.spend

    def spend(state: StreamState, frame_id: str, usage: Any, purpose: str | None = None) -> Any:
        drafts = original(state, frame_id, usage, purpose)
        if drafts and purpose is None:
            budgets.check_available(state.frames[frame_id], drafts[0].facts.usage.spent)  # type: ignore[attr-defined]
        return drafts

    patch.setattr(budgets, "spend", spend)


def handle_loses_its_place(patch: Patch) -> None:
    original = evidence.add_handle

    def add_handle(state: StreamState, frame_id: str, *args: Any, **kwargs: Any) -> Any:
        [draft] = original(state, frame_id, *args, **kwargs)
        handles = state.frames[frame_id].handles.values()
        last = max((handle.position for handle in handles), default=0)
        return [replace(draft, facts=replace(draft.facts, position=last + 1))]

    patch.setattr(evidence, "add_handle", add_handle)


def key_not_compared(patch: Patch) -> None:
    original = changing._find_earlier_result

    def earlier(env: Any, stream: str, key: str, same: Any) -> Any:
        return original(env, stream, key, lambda events: True)

    patch.setattr(changing, "_find_earlier_result", earlier)


BUGS: list[Callable[[Patch], None]] = [
    spent_tokens_refunded,
    depth_not_inherited,
    parent_not_woken,
    cascade_omitted,
    cascade_root_first,
    deadline_runs_while_suspended,
    clock_of_an_ancestor_not_stopped,
    token_usable_twice,
    two_owners,
    zombie_not_told,
    open_call_lost_on_load,
    grant_not_lent,
    grant_not_taken_again,
    released_twice,
    resumed_below_what_waits,
    tool_calls_not_limited,
    deadline_not_looked_at,
    overdraft_refused,
    handle_loses_its_place,
    key_not_compared,
]


@cache
def walk_without_bugs(seed: int) -> None:
    """Once for all the bugs that the same walk notices."""
    walk_once(seed, "memory")


@pytest.mark.parametrize("plant", BUGS, ids=[plant.__name__ for plant in BUGS])
def test_a_planted_bug_is_noticed_by_a_short_walk(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    for seed in range(WALKS):
        with monkeypatch.context() as patch:
            plant(patch)
            try:
                walk_once(seed, "memory")
            except AssertionError as noticed:
                print(str(noticed).splitlines()[0])
                break
    else:
        pytest.fail(f"{WALKS} walks did not notice: {plant.__name__}")
    walk_without_bugs(seed)


def version_not_compared(patch: Patch) -> None:
    """Two decisions on the same state are both written."""
    original = chain.find_refusal
    patch.setattr(journal, "find_refusal", lambda part, head: original(replace(part, expected=None), head))


def test_a_planted_bug_is_noticed_by_many_children(tmp_path: Path, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        version_not_compared(patch)
        with pytest.raises(Exception):
            live_and_look_back("memory", tmp_path, 2)
