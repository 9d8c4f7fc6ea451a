"""How a block is left decides what becomes of its frame."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.core.frames import questions as rules
from holdfast.errors import FrameSuspended, HasLiveChildren, ParentNotActive, StorageFull
from holdfast.journal.memory.journal import MemoryJournal
from tests.frames.blocks import SCOPE, Flaky, client, holder, kinds, name, never, torn

LEFT: list[tuple[BaseException, str, str]] = [
    (ValueError("no"), "fail", "failed"),
    (ValueError("no"), "leave", "active"),
    (asyncio.CancelledError(), "fail", "active"),
    (KeyboardInterrupt(), "fail", "active"),
    (SystemExit(3), "fail", "active"),
    (GeneratorExit(), "fail", "active"),
]
WAYS = [f"{type(error).__name__}-{on_error}" for error, on_error, _ in LEFT]


def leave_root(error: BaseException, on_error: str, status: str) -> None:
    hf = client()
    frame = hf.frame("job", on_error=on_error)

    def work() -> None:
        with frame:
            assert holder(hf) == name(hf)
            raise error

    with pytest.raises(type(error)) as caught:
        work()
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert any(frame.id in note for note in getattr(error, "__notes__", [])) == isinstance(error, Exception)
    assert frame.status == status
    assert holder(hf) is None
    assert not hf.env.leases.count_users()
    assert frame.info().error == ("ValueError: no" if status == "failed" else None)


@pytest.mark.parametrize(("error", "on_error", "status"), LEFT, ids=WAYS)
def test_a_root_left_by_an_error(error: BaseException, on_error: str, status: str) -> None:
    leave_root(error, on_error, status)


@pytest.mark.parametrize(("error", "on_error", "status"), LEFT, ids=WAYS)
def test_a_child_left_by_an_error_that_its_parent_catches(error: BaseException, on_error: str, status: str) -> None:
    hf = client()
    with hf.frame("job") as root:
        with pytest.raises(type(error)) as caught, root.frame("child", key="c", on_error=on_error) as child:
            raise error
        assert caught.value is error
        assert child.status == status
        assert holder(hf) == name(hf), "the root still works"
        assert root.status == ("active" if status == "failed" else "waiting")
        if status == "active":
            with root.frame("child", key="c"):
                pass
    assert root.status == "completed"
    assert holder(hf) is None


@pytest.mark.parametrize(("error", "on_error", "status"), LEFT, ids=WAYS)
def test_a_child_left_by_an_error_that_nobody_catches(error: BaseException, on_error: str, status: str) -> None:
    hf = client()
    with pytest.raises(type(error)) as caught, hf.frame("job") as root, root.frame("c", on_error=on_error) as child:
        raise error
    assert caught.value is error
    if not isinstance(error, Exception):
        assert (root.status, child.status) == ("waiting", "active")
    else:
        # The root fails either way, and what its child had been left as is cancelled with it.
        assert (root.status, child.status) == ("failed", "cancelled" if on_error == "leave" else "failed")
    assert holder(hf) is None


def test_left_normally() -> None:
    hf = client()
    with hf.frame("job", tokens=100) as root:
        with root.frame("child", tokens=40) as child:
            child.spend(7)
            assert child.result({"a": 1}) == {"a": 1}
        assert (child.status, root.left) == ("completed", 93)
        root.result([1, 2], summary="done")
    assert (root.status, root.value(), root.info().summary) == ("completed", [1, 2], "done")
    assert kinds(hf)[-2:] == ["frame.popped", "lease.released"]


def test_left_normally_but_suspended() -> None:
    hf = client()
    with hf.frame("job") as root:
        root.suspend("Well?")
    assert (root.status, holder(hf)) == ("suspended", None)


def test_left_normally_while_all_work_below_is_suspended() -> None:
    hf = client()
    with hf.frame("job", key="job") as root, root.frame("child", key="c") as child:
        child.suspend("Well?", key="q")
    assert (root.status, child.status, holder(hf)) == ("waiting", "suspended", None)
    hf.answer(next(hf.questions()).id, approve=True)
    with hf.frame("job", key="job") as root, root.frame("child", key="c") as child:
        assert child.ask("Well?", key="q").approved
    assert (root.status, child.status) == ("completed", "completed")


def test_left_normally_with_a_child_at_work_is_refused_and_stays_live() -> None:
    hf = client()
    with pytest.raises(HasLiveChildren), hf.frame("job") as root:
        root.frame("child").open()
    assert (root.status, holder(hf)) == ("waiting", None)


@pytest.mark.parametrize(("go_on", "error"), [("run", FrameSuspended), ("child", ParentNotActive)])
def test_code_that_goes_on_in_a_suspended_frame_does_not_fail_it(go_on: str, error: type[Exception]) -> None:
    hf = client()
    root = hf.frame("job")

    def work() -> None:
        with root:
            root.suspend("Well?")
            if go_on == "run":
                root.run(never, key="a")
            else:
                root.frame("child").open()

    with pytest.raises(error):
        work()
    assert (root.status, holder(hf)) == ("suspended", None)


def test_a_generator_that_is_closed_leaves_its_frame_live() -> None:
    hf = client()

    def work() -> Iterator[holdfast.Frame]:
        with hf.frame("job", key="job") as frame:
            yield frame

    generator = work()
    frame = next(generator)
    generator.close()  # type: ignore[attr-defined]
    assert (frame.status, holder(hf)) == ("active", None)
    with hf.frame("job", key="job") as again:
        assert again.id == frame.id


def test_failing_cancels_everything_below_leaf_first() -> None:
    hf = client()

    def work() -> None:
        with hf.frame("root") as root:
            child = hf.index.push_frame("child", parent=root.id)
            hf.index.push_frame("leaf", parent=child)
            hf.index.push_frame("other", parent=root.id)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()
    popped: list[Any] = [event.facts for event in hf.journal.events(SCOPE, types=["frame.popped"])]
    ended = [(hf.index.get_frame(facts.frame).goal, facts.status) for facts in popped]
    assert ended[-1] == ("root", "failed")
    assert ended.index(("leaf", "cancelled")) < ended.index(("child", "cancelled"))
    assert set(ended) == {("leaf", "cancelled"), ("child", "cancelled"), ("other", "cancelled"), ("root", "failed")}


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_block_whose_end_fails_keeps_the_first_error(error: BaseException) -> None:
    journal: Any = Flaky(MemoryJournal())
    hf = client(journal)
    frame = hf.frame("job", key="job")

    def work() -> None:
        with frame:
            journal.error = StorageFull()
            raise error

    with pytest.raises(type(error)) as caught:
        work()
    assert caught.value is error
    assert any("could not be" in note and "disk is full" in note for note in error.__notes__)
    journal.error = None
    assert frame.status == "active"
    assert not hf.env.leases.count_users(), "no sign of life for a block that is over"
    with client(journal).frame("job", key="job") as again:
        assert again.id == frame.id
    assert again.status == "completed"


def test_an_interrupt_while_a_failed_block_ends_is_not_swallowed() -> None:
    journal: Any = Flaky(MemoryJournal())
    frame = client(journal).frame("job", key="job")

    def work() -> None:
        with frame:
            journal.error = KeyboardInterrupt()
            raise ValueError("no")

    with pytest.raises(KeyboardInterrupt):
        work()
    journal.error = None
    assert frame.status == "active"


def test_a_block_that_cannot_be_completed_says_so_and_can_be_run_again() -> None:
    journal: Any = Flaky(MemoryJournal())
    hf = client(journal)
    frame = hf.frame("job", key="job")

    def work() -> None:
        with frame:
            frame.run(lambda: 1, key="a")
            journal.error = StorageFull()

    with pytest.raises(StorageFull):
        work()
    journal.error = None
    assert frame.status == "active"
    with hf.frame("job", key="job") as frame:
        frame.run(never, key="a")
    assert frame.status == "completed"


def test_an_interrupt_while_entering_leaves_no_lease_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = client()
    with monkeypatch.context() as patch:
        patch.setattr(rules, "is_resumable", lambda question, now: torn())
        hf.index.suspend_frame(hf.index.push_frame("job", scope=SCOPE, key="job"), "Well?")
        with pytest.raises(KeyboardInterrupt), hf.frame("job", key="job"):
            pass
    assert (holder(hf), hf.env.leases.count_users()) == (None, 0)
