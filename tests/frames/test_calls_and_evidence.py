"""Calls with intent and outcome, their limits and policies; handles and results; what a restart finds."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Limits, Usage
from holdfast.errors import CallNotFound, DeadlineExceeded, HasOpenCalls, ToolCallLimitExceeded
from holdfast.testing.clock import FrozenClock
from holdfast.types import ERASED
from tests.backends import IN_MEMORY
from tests.frames.conftest import ACTOR


def test_intent_is_journaled_before_and_outcome_after(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    tool = hf.index.begin_tool_call(frame, "search", arguments={"q": "x"}, provider_id="call_1")
    model = hf.index.begin_model_call(frame, model="gpt-5-mini", request={"messages": []})
    calls = {call.id: (call.kind, call.name, call.if_interrupted) for call in hf.index.get_frame(frame).calls}
    assert calls == {tool: ("tool", "search", "ask"), model: ("model", "gpt-5-mini", "retry")}
    with pytest.raises(HasOpenCalls, match="search"):
        hf.index.pop_frame(frame)
    hf.index.end_tool_call(frame, tool, value=["found"], tokens=12)
    hf.index.end_model_call(frame, model, usage=Usage(input=10, output=3), finish="stop", response={"text": "hi"})
    found = hf.index.get_frame(frame)
    assert (found.calls, found.tool_calls, found.tokens.used) == ((), 1, 13)
    returned, responded = hf.journal.events(ACTOR, types=["tool.returned", "model.responded"])
    assert (returned.content.value, returned.facts.tokens) == (["found"], 12)
    assert (responded.content.response, responded.facts.usage) == ({"text": "hi"}, Usage(input=10, output=3))


def test_a_providers_id_may_repeat_and_ours_does_not(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    first, second = (hf.index.begin_tool_call(frame, "t", provider_id="call_0") for _ in range(2))
    assert first != second
    hf.index.end_tool_call(frame, second, value=2)
    assert [call.id for call in hf.index.get_frame(frame).calls] == [first]


def test_a_call_has_one_outcome(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    call = hf.index.begin_tool_call(frame, "t")
    hf.index.end_tool_call(frame, call, value=1)
    before = hf.journal.position()
    hf.index.end_tool_call(frame, call, value=1)
    with pytest.raises(CallNotFound, match="another outcome"):
        hf.index.end_tool_call(frame, call, value=2)
    with pytest.raises(CallNotFound):
        hf.index.end_model_call(frame, call)
    other = hf.index.begin_model_call(frame)
    with pytest.raises(holdfast.errors.InvalidValue, match="model call"):
        hf.index.end_tool_call(frame, other)
    assert hf.journal.position() == before + 1


def test_a_begun_call_with_a_key_is_begun_once(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, limits=Limits(tool_calls=1))
    call = hf.index.begin_tool_call(frame, "t", arguments={"a": 1}, key="k")
    assert hf.index.begin_tool_call(frame, "t", arguments={"a": 1}, key="k") == call
    with pytest.raises(holdfast.errors.KeyReused):
        hf.index.begin_tool_call(frame, "t", arguments={"a": 2}, key="k")
    assert hf.index.get_frame(frame).tool_calls == 1


def test_tool_calls_are_counted_and_refused_beyond_the_limit(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, limits=Limits(tool_calls=2))
    for _ in range(2):
        hf.index.end_tool_call(frame, hf.index.begin_tool_call(frame, "t"), error="Timeout: 3 s")
    before = hf.journal.position()
    with pytest.raises(ToolCallLimitExceeded):
        hf.index.begin_tool_call(frame, "t")
    assert hf.journal.position() == before


def test_no_work_begins_after_the_deadline_and_what_was_begun_is_recorded(
    hf: holdfast.Holdfast, clock: FrozenClock
) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, limits=Limits(timeout_ms=100))
    frame = hf.index.push_frame("f", parent=root)
    call = hf.index.begin_tool_call(frame, "slow")
    clock.advance(100)
    hf.index.begin_model_call(frame)
    clock.advance(1)
    before = hf.journal.position()
    for begin in (lambda: hf.index.begin_tool_call(frame, "t"), lambda: hf.index.begin_model_call(frame)):
        with pytest.raises(DeadlineExceeded):
            begin()
    assert hf.journal.position() == before
    hf.index.end_tool_call(frame, call, value="late, but here")
    hf.index.record_usage(frame, 5)
    swept = hf.index.sweep()
    assert set(swept.overdue) == {root, frame}
    assert hf.index.sweep() == holdfast.types.SweepReport()
    assert hf.index.pop_frame(root, "failed", error="late").status == "failed"


def test_what_was_left_undone_is_reported_with_its_kind(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR)
    child = hf.index.push_frame("child", parent=root)
    tool = hf.index.begin_tool_call(child, "pay")
    safe = hf.index.begin_tool_call(child, "look", if_interrupted="retry")
    model = hf.index.begin_model_call(child, model="m")
    asks = hf.index.push_frame("asks", parent=root)
    question = hf.index.suspend_frame(asks, "May I?").question
    broke = hf.index.push_frame("broke", parent=root)
    hf.index.end_tool_call(broke, hf.index.begin_tool_call(broke, "t"), error="Boom: x")
    found = hf.index.resume_actor(ACTOR)
    seen = {(work.frame, work.kind, work.call, work.question): work for work in found.pending}
    assert set(seen) == {
        (root, "waiting_for_subcall", None, None),
        (child, "tool_in_progress", tool, None),
        (child, "tool_in_progress", safe, None),
        (child, "model_in_progress", model, None),
        (asks, "waiting_for_user", None, question),
        (broke, "unhandled_error", None, None),
    }
    assert seen[root, "waiting_for_subcall", None, None].description == "Frame 'root' waiting"
    assert seen[child, "tool_in_progress", tool, None].description == "Tool 'pay' incomplete"
    assert seen[child, "tool_in_progress", tool, None].unsafe_to_retry
    assert not seen[child, "tool_in_progress", safe, None].unsafe_to_retry
    assert [work.next for work in found.pending] == ["children", "ask", "retry", "retry", "answer", "work"]
    assert found.recovery.pending_work_items == 6
    assert found.recovery.last_event_seq == hf.journal.position()
    hf.index.record_usage(broke, 1)
    assert "unhandled_error" not in {work.kind for work in hf.index.resume_actor(ACTOR).pending}


def test_resuming_reads_only_unless_an_incarnation_is_given(hf: holdfast.Holdfast) -> None:
    hf.index.push_frame("f", scope=ACTOR)
    before = hf.journal.position()
    hf.index.resume_actor(ACTOR)
    hf.index.resume_actor(ACTOR)
    assert hf.journal.position() == before
    for _ in range(3):
        found = hf.index.resume_actor(ACTOR, incarnation="boot-1")
        assert found.epoch == 1
    resumed = [event.type for event in hf.journal.events(ACTOR, after=1)]
    assert resumed == ["lease.taken", "actor.resumed"]
    hf.index.resume_actor(ACTOR, incarnation="boot-2")
    types = [event.type for event in hf.journal.events(ACTOR, types=["actor.resumed"])]
    assert len(types) == 2
    hf.index.release_actor(ACTOR)
    assert hf.index.resume_actor(ACTOR).holder is None


def test_handles_have_priority_position_and_versions(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    first = hf.index.add_handle(frame, "tool_output", description="a", target="x", tokens=40)
    second = hf.index.add_handle(frame, "document", handle="doc", priority="critical", body="text", metadata={"p": 1})
    assert second == "doc"
    again = hf.index.add_handle(frame, "tool_output", handle=first, description="b", priority="low")
    assert again == first
    handles = hf.index.handles(frame)
    assert [(h.id, h.priority, h.position, h.description) for h in handles] == [
        (first, 25, 1, "b"),
        ("doc", 100, 2, None),
    ]
    assert (handles[1].body, handles[1].metadata, handles[0].version > handles[1].version) == ("text", {"p": 1}, True)


def test_detaching_is_reversible(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    names = [hf.index.add_handle(frame, "event_ref", handle=f"h{number}") for number in range(3)]
    removal = hf.index.remove_handle(frame, names[:2], reason="too long")
    assert removal is not None
    assert [h.removed for h in hf.index.handles(frame)] == [removal, removal, None]
    with pytest.raises(holdfast.errors.NotFound, match="h0"):
        hf.index.remove_handle(frame, "h0")
    assert set(hf.index.restore_handles(frame, removal)) == set(names[:2])
    assert [h.removed for h in hf.index.handles(frame)] == [None] * 3
    with pytest.raises(holdfast.errors.NotFound):
        hf.index.restore_handles(frame, removal)


def test_results_are_read_with_their_summaries_until_they_are_erased(hf: holdfast.Holdfast) -> None:
    frame = hf.as_user("ann").index.push_frame("f", scope="s")
    hf.as_user("ann").index.add_result(frame, "file", "r1", summary="the offer")
    hf.index.add_result(frame, "file", "r2")
    hf.index.pop_frame(frame)
    read = [(one.position, one.kind, one.ref, one.summary) for one in hf.index.results(frame)]
    assert read == [(1, "file", "r1", "the offer"), (2, "file", "r2", None)]
    hf.journal.erase("ann")
    assert [one.summary for one in hf.index.results(frame)] == [ERASED, None]


def test_results_are_kept_in_order_also_after_the_end(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    assert [hf.index.add_result(frame, "file", f"r{number}", summary="s") for number in range(3)] == [1, 2, 3]
    hf.index.add_handle(frame, "artifact", handle="a")
    hf.index.pop_frame(frame)
    found = hf.index.get_frame(frame)
    assert [(ref.position, ref.kind, ref.ref) for ref in found.results] == [
        (1, "file", "r0"),
        (2, "file", "r1"),
        (3, "file", "r2"),
    ]
    assert [handle.id for handle in found.handles] == ["a"]


@pytest.mark.parametrize(
    "how",
    [
        {"kind": "smell"},
        {"kind": "document", "priority": "urgent"},
        {"kind": "document", "trust": "absolute"},
        {"kind": "document", "tokens": -1},
        {"kind": "document", "handle": "\n"},
    ],
)
@IN_MEMORY
def test_evidence_that_makes_no_sense_is_refused(hf: holdfast.Holdfast, how: dict[str, object]) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    before = hf.journal.position()
    with pytest.raises(holdfast.errors.InvalidValue):
        hf.index.add_handle(frame, **how)  # type: ignore[arg-type]
    assert hf.journal.position() == before
