"""The same code with the same keys goes on where it stood."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

import holdfast
from holdfast import Limits
from holdfast.errors import FrameEnded, KeyReused, Refused
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.testing.clock import FrozenClock
from tests.frames.blocks import SCOPE, Holdfast, client, holder, never
from tests.frames.conftest import ACTOR


def test_a_live_frame_is_taken_up() -> None:
    journal = MemoryJournal()
    with pytest.raises(KeyboardInterrupt), client(journal).frame("job", key="job") as first:
        raise KeyboardInterrupt
    with client(journal).frame("job", key="job") as second:
        assert second.id == first.id
    assert second.status == "completed"


def test_a_completed_frame_replays_and_nothing_is_written() -> None:
    journal = MemoryJournal()

    def work(hf: Holdfast, step: Callable[[], object]) -> list[object]:
        with hf.frame("job", key="job") as root:
            one = root.run(step, key="one")
            with root.frame("child", key="c") as child:
                two = child.run(step, key="two")
            return [one, two, root.result("all")]

    numbers = itertools.count()
    first = work(client(journal), lambda: next(numbers))
    before = journal.position()
    hf = client(journal)
    assert work(hf, never) == first == [0, 1, "all"]
    assert journal.position() == before
    assert holder(hf) is None
    with pytest.raises(FrameEnded, match="another result"), hf.frame("job", key="job") as root:
        root.result("something else")
    with pytest.raises(FrameEnded), hf.frame("job", key="job") as root:
        root.run(never, key="three")
    assert journal.position() == before


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_the_key_of_a_failed_frame_is_refused_with_help(status: str) -> None:
    hf = client()
    frame = hf.index.push_frame("job", scope=SCOPE, key="job")
    hf.index.pop_frame(frame, status, error="it broke")
    before = hf.journal.position()
    with pytest.raises(FrameEnded, match=rf"{status} \(it broke\)\. Use a new key.*on_error='leave'"):
        hf.frame("job", key="job").open()
    assert hf.journal.position() == before
    assert (holder(hf), hf.env.leases.count_users()) == (None, 0)


def test_a_key_that_stands_for_something_else_is_refused() -> None:
    hf = client()
    hf.journal.append(SCOPE, "app.noted", key="job")
    with pytest.raises(KeyReused, match=r"app\.noted"):
        hf.frame("job", key="job").open()


def test_a_block_is_entered_once() -> None:
    hf = client()
    block = hf.frame("job")
    with pytest.raises(Refused, match="once its block is entered"):
        _ = block.id
    with block, pytest.raises(Refused, match="entered already"):
        block.open()
    with pytest.raises(Refused, match="entered already"), block:
        pass
    assert block.status == "completed"


def test_a_child_s_key_is_its_parent_s_own() -> None:
    hf = client()
    for number in range(2):
        with hf.frame("job", key=f"job-{number}") as root, root.frame("child", key="c") as child:
            assert child.run(lambda: number, key="a") == number  # noqa: B023


def test_detaching_can_be_run_again() -> None:
    journal = MemoryJournal()
    for stop in (True, False):
        try:
            with client(journal).frame("job", key="job") as root:
                root.detach(root.attach("url", handle="h", target="x", key="attach"), key="detach")
                if stop:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
    assert root.status == "completed"


def test_the_newest_frame_is_the_last_pushed_whatever_the_clock_says() -> None:
    clock, journal = FrozenClock(), MemoryJournal()
    client(journal, clock).index.push_frame("older", scope=SCOPE)
    clock.jump(-10 * 365 * 86_400_000)
    index = client(journal, clock).index
    index.push_frame("newer", scope=SCOPE)
    top = index.top_of_stack(SCOPE)
    assert top is not None
    assert top.goal == "newer"
    assert [frame.goal for frame in index.leaves(SCOPE)] == ["older", "newer"]


def test_a_key_stands_for_everything_that_was_asked_for(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, tokens=100)
    hf.index.reserve(frame, "p", 3, key="rv")
    hf.index.update_frame(frame, limits=Limits(depth=2), key="u")
    hf.index.add_handle(frame, "document", handle="h", priority="low", key="h")
    call = hf.index.begin_tool_call(frame, "t", if_interrupted="retry", key="t")
    before = hf.journal.position()
    for act in (
        lambda: hf.index.release_reservation(frame, "p", key="rv"),
        lambda: hf.index.update_frame(frame, limits=Limits(depth=1), key="u"),
        lambda: hf.index.update_frame(frame, tokens=500, key="u"),
        lambda: hf.index.add_handle(frame, "document", handle="h", priority="high", key="h"),
        lambda: hf.index.begin_tool_call(frame, "t", if_interrupted="fail", key="t"),
    ):
        with pytest.raises(holdfast.errors.KeyReused):
            act()
    hf.index.update_frame(frame, limits=Limits(depth=2), key="u")
    assert hf.index.begin_tool_call(frame, "t", if_interrupted="retry", key="t") == call
    assert hf.journal.position() == before


def test_keys_of_children_steps_and_questions_do_not_meet(hf: holdfast.Holdfast) -> None:
    with hf.frame("f", key="k") as frame:
        for key in ("ask/x", "run/x", "do/x", "x"):
            with frame.frame("child", key=key):
                pass
        frame.run(lambda: 1, key="x")
        frame.spend(1, key="x")
        assert frame.suspend("?", key="x").answer is None
    assert hf.index.get_frame(frame.id).status == "suspended"


def test_the_same_status_again_under_its_key_is_the_same_request(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    hf.index.update_frame(frame, status="active", key="k")
    hf.index.update_frame(frame, status="waiting")
    assert hf.index.update_frame(frame, status="active", key="k").status == "waiting"
    with pytest.raises(holdfast.errors.KeyReused):
        hf.index.update_frame(frame, status="waiting", key="k")
