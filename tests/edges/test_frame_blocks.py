"""`with hf.frame(…)`: how a block is left decides what becomes of its frame, and the same code goes on with it.

Everything here runs on clocks that are moved by hand: nothing waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import client_frame
from holdfast.connect import assemble
from holdfast.core.decide import questions as rules
from holdfast.errors import (
    ActorBusy,
    AlreadyAnswered,
    Draining,
    EffectFailed,
    FrameEnded,
    FrameSuspended,
    HasLiveChildren,
    HoldfastError,
    InvalidValue,
    KeyReused,
    ParentNotActive,
    Refused,
    StaleEpoch,
    StorageFull,
    TokenNotFound,
    TooLarge,
    Unavailable,
    Waiting,
)
from holdfast.flow import asking, owning
from holdfast.flow.leases import Leases
from holdfast.journal.memory import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.records.batches import Appended, Batch
from holdfast.records.events.envelope import Event
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from tests.forked import in_child

SCOPE = "actor/main"
Holdfast = holdfast.Holdfast


class Flaky:
    """A journal whose disk can be full."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal
        self.error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append(self, batch: Batch) -> Appended:
        if self.error is not None:
            raise self.error
        appended: Appended = self._journal.append(batch)
        return appended


def client(journal: Any = None, clock: FrozenClock | None = None) -> Holdfast:
    return Holdfast(assemble(journal or MemoryJournal(), Settings(), clock or FrozenClock()))


def holder(hf: Holdfast) -> str | None:
    return hf.index.resume_actor(SCOPE).holder


def name(hf: Holdfast) -> str:
    return hf._ports.leases.name


def kinds(hf: Holdfast) -> list[str]:
    return [event.type for event in hf.journal.events(SCOPE)]


def never() -> None:
    raise AssertionError("this step is remembered and must not run")


def torn() -> None:
    raise KeyboardInterrupt


# leaving

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
    assert not hf._ports.leases.users()
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
    assert not hf._ports.leases.users(), "no sign of life for a block that is over"
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
        patch.setattr(rules, "due", lambda question, now: torn())
        hf.index.suspend_frame(hf.index.push_frame("job", scope=SCOPE, key="job"), "Well?")
        with pytest.raises(KeyboardInterrupt), hf.frame("job", key="job"):
            pass
    assert (holder(hf), hf._ports.leases.users()) == (None, 0)


# keys


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
    assert (holder(hf), hf._ports.leases.users()) == (None, 0)


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


# steps


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Record(msgspec.Struct):
    name: str


def a_point() -> Point:
    return Point(1, 2)


def a_record() -> Record:
    return Record("n")


def test_a_step_is_remembered_as_the_type_it_names() -> None:
    journal = MemoryJournal()
    wrong: Any = never
    wrong_point: Any = lambda: never()  # noqa: E731
    for number in range(2):
        with client(journal).frame("job", key="job", on_error="leave") as frame:
            assert frame.run(a_point, key="point") == Point(1, 2)
            assert frame.run(a_record, key="record") == Record("n")
            step = (lambda: {"x": 3, "y": 4}) if not number else wrong_point
            assert frame.run(step, key="plain", as_=Point) == Point(3, 4)
            pair: Any = frame.run(lambda: (1, "a"), key="pair")
            assert pair == [1, "a"]
            if not number:
                assert frame.run(lambda: None, key="nothing") is None
            else:
                assert frame.run(wrong, key="nothing") is None
            with pytest.raises(InvalidValue, match="not a Record"):
                frame.run(never, key="point", as_=Record)


def test_a_step_that_gives_nothing_storable_failed_and_can_be_run_again() -> None:
    hf = client()
    with hf.frame("job") as frame:
        with pytest.raises(InvalidValue):
            frame.run(object, key="a")
        with pytest.raises(TooLarge):
            frame.run(lambda: "x" * 2_000_000, key="a")
        assert [work.kind for work in hf.index.resume_actor(SCOPE).pending] == ["unhandled_error"]
        assert frame.run(lambda: 1, key="a") == 1
    assert frame.status == "completed"


def test_a_step_that_fails_is_not_remembered() -> None:
    hf = client()
    with hf.frame("job") as frame:
        with pytest.raises(ZeroDivisionError):
            frame.run(lambda: 1 // 0, key="a")
        assert frame.run(lambda: 2, key="a") == 2
    returned: list[Any] = [event.facts for event in hf.journal.events(SCOPE, types=["run.returned"])]
    assert [facts.failed for facts in returned] == [True, False]


def test_a_step_whose_annotations_nobody_can_read_runs() -> None:
    def step() -> int:
        return 1

    step.__annotations__ = {"return": "int |"}
    with client().frame("job") as frame:
        for _ in range(2):
            try:
                frame.run(step, key="a")
            except SyntaxError:
                pass
        assert frame.run(lambda: 1, key="a") == 1, "nothing is left running"


def test_a_step_inside_itself_is_refused() -> None:
    with client().frame("job") as frame:
        with pytest.raises(ActorBusy, match="is running"):
            frame.run(lambda: frame.run(lambda: 1, key="a"), key="a")
        assert frame.run(lambda: 1, key="a") == 1


def tear(journal: MemoryJournal, policy: str) -> None:
    with pytest.raises(KeyboardInterrupt), client(journal).frame("job", key="job") as frame:
        frame.run(torn, key="pay", if_interrupted=policy)


def again(journal: MemoryJournal, step: Callable[[], Any], on_error: str = "fail") -> Any:
    # What was said when the step was begun counts, not what is said now.
    with client(journal).frame("job", key="job", on_error=on_error) as frame:
        return frame.run(step, key="pay", if_interrupted="ask")


def test_a_torn_step_that_may_be_repeated_runs_again_under_its_call() -> None:
    journal = MemoryJournal()
    tear(journal, "retry")
    assert again(journal, lambda: "paid") == "paid"
    assert again(journal, never) == "paid"
    assert kinds(client(journal)).count("run.requested") == 1


def test_a_torn_step_that_counts_as_failed_says_so_and_can_be_run_again() -> None:
    journal = MemoryJournal()
    tear(journal, "fail")
    with pytest.raises(EffectFailed, match="interrupted"):
        again(journal, never, on_error="leave")
    assert again(journal, lambda: "paid") == "paid"


def test_a_torn_step_is_asked_about_and_not_run_again_unless_approved() -> None:
    journal = MemoryJournal()
    tear(journal, "ask")
    for _ in range(2):
        with pytest.raises(Waiting) as waiting:
            again(journal, never)
    info = client(journal).index.question(waiting.value.question)
    assert (info.options, info.recommended) == (["run again", "do not"], "do not")
    client(journal).answer(waiting.value.question, approve=False, payload="paid before")
    assert again(journal, never) == "paid before"
    assert again(journal, never) == "paid before"


def test_one_approval_is_for_one_run() -> None:
    journal = MemoryJournal()
    tear(journal, "ask")
    asked = []
    for step in (torn, torn, lambda: "paid"):
        with pytest.raises(Waiting) as waiting:
            again(journal, never)
        asked.append(waiting.value.question)
        client(journal).answer(waiting.value.question, approve=True)
        if step is torn:
            with pytest.raises(KeyboardInterrupt):
                again(journal, step)
        else:
            assert again(journal, step) == "paid"
    assert len(set(asked)) == 3


def test_a_torn_step_of_a_parent_is_asked_about_while_its_child_lives() -> None:
    journal = MemoryJournal()

    def work(step: Callable[[], Any]) -> Any:
        with client(journal).frame("job", key="job", tokens=100) as root, root.frame("child", key="c", tokens=40):
            return root.run(step, key="pay")

    with pytest.raises(KeyboardInterrupt):
        work(torn)
    with pytest.raises(Waiting) as waiting:
        work(never)
    client(journal).answer(waiting.value.question, approve=True)
    assert work(lambda: "paid") == "paid"
    assert list(client(journal).index.stack(SCOPE)) == []


# questions


def publish(journal: Any, clock: FrozenClock | None = None, **how: Any) -> Any:
    with client(journal, clock).frame("job", key="job") as frame:
        return frame.ask("Publish?", key="ok", **how)


def test_a_question_is_asked_once_answered_elsewhere_and_found_on_the_next_run() -> None:
    journal = MemoryJournal()
    for _ in range(3):
        with pytest.raises(Waiting) as waiting:
            publish(journal)
    question = waiting.value.question
    other = client(journal)
    assert [info.id for info in other.questions()] == [question]
    other.answer(question, approve=True, payload={"a": 1}, args=[2], note="go", by="bob")
    answer = publish(journal)
    assert (answer.approved, answer.payload, answer.arguments, answer.note) == (True, {"a": 1}, [2], "go")
    before = journal.position()
    assert publish(journal) == answer, "a completed frame remembers its answers"
    assert journal.position() == before


def answer_twice() -> None:
    journal = MemoryJournal()
    with pytest.raises(Waiting) as waiting:
        publish(journal)
    question = waiting.value.question
    first, second = client(journal), client(journal)
    assert first.answer(question, approve=True) == question
    assert second.answer(question, approve=True) == question, "the same again is no other answer"
    with pytest.raises(AlreadyAnswered):
        second.answer(question, approve=False)
    assert kinds(first).count("question.answered") == 1
    assert publish(journal).approved is True


def test_a_question_is_answered_once() -> None:
    answer_twice()


def test_the_answer_may_come_while_the_block_runs() -> None:
    hf, other = (client(journal) for journal in [MemoryJournal()] * 2)
    with hf.frame("job") as frame:
        asked = frame.suspend("Well?", key="q")
        assert (asked.answer, asked.over) == (None, False)
        other.answer(asked.question, approve=False)
        found = frame.suspend("Well?", key="q")
        assert found.answer is not None
        assert (found.question, found.over, found.answer.approved) == (asked.question, True, False)
        frame.run(lambda: 1, key="a")
    assert frame.status == "completed"


def test_a_token_is_new_on_each_run_and_the_last_one_counts() -> None:
    journal = MemoryJournal()
    tokens = []
    for _ in range(2):
        with client(journal).frame("job", key="job") as frame:
            tokens.append(str(frame.suspend("Well?", key="q", token=True).token))
    with pytest.raises(TokenNotFound):
        client(journal).answer(token=tokens[0], approve=True)
    client(journal).answer(token=tokens[1], approve=True)
    with pytest.raises(TokenNotFound):
        client(journal).answer(token=tokens[1], approve=True)


def test_a_timer_rings() -> None:
    journal, clock = MemoryJournal(), FrozenClock()
    until = clock.now_ms() + 1000
    for _ in range(2):
        with pytest.raises(Waiting):
            publish(journal, clock, kind="timer", until=until)
        clock.advance(999)
    clock.advance(1)
    assert publish(journal, clock, kind="timer", until=until).via == "timer"


# one owner


def test_threads_share_the_lease_and_the_last_one_gives_it_back() -> None:
    hf = client()
    inside, done = threading.Barrier(3), threading.Event()

    def work() -> None:
        with hf.frame("job") as frame:
            inside.wait(10)
            done.wait(10)
            frame.run(lambda: 1, key="a")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(10)
    assert (hf._ports.leases.users(), holder(hf)) == (2, name(hf))
    done.set()
    for thread in threads:
        thread.join(10)
    assert (kinds(hf).count("lease.taken"), kinds(hf).count("lease.released")) == (1, 1)
    assert (holder(hf), list(hf.index.stack(SCOPE))) == (None, [])


def test_a_thread_that_enters_while_another_leaves_gets_a_lease_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = client()
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            with hf.frame("second") as frame:
                assert holder(hf) == name(hf)
                frame.run(lambda: 1, key="a")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    original = Leases.left

    def left(self: Leases, tenant: str, stream: str, epoch: int) -> None:
        if not thread.ident:
            thread.start()
            thread.join(0.2)  # It must not get in between giving the lease back and noting that.
        original(self, tenant, stream, epoch)

    monkeypatch.setattr(Leases, "left", left)
    with hf.frame("first"):
        pass
    thread.join(10)
    assert errors == []
    assert (holder(hf), hf._ports.leases.users()) == (None, 0)


def test_two_threads_that_leave_at_once_leave_no_lease_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = client()
    together, inside = threading.Barrier(2), threading.Barrier(2)
    original = Leases.left

    def left(self: Leases, tenant: str, stream: str, epoch: int) -> None:
        try:
            together.wait(0.2)
        except threading.BrokenBarrierError:
            pass
        original(self, tenant, stream, epoch)

    def work() -> None:
        try:
            with hf.frame("job"):
                inside.wait(10)
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass

    monkeypatch.setattr(Leases, "left", left)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert holder(hf) is None


class Watched(FrozenClock):
    """While somebody waits by this clock, something happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens

    def sleep(self, seconds: float) -> None:
        self._happens()
        super().sleep(seconds)


def test_the_second_client_of_a_file_waits_for_signs_of_life(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    journals = [SqliteJournal(path) for _ in range(3)]
    first = client(journals[0])
    block = first.frame("job", key="job")
    block.open()
    alive = client(journals[1], Watched(lambda: journals[0].renew("default", SCOPE, 1)))
    busy = client(journals[1], Watched(lambda: block.run(lambda: 1, key="a")))
    for watcher in (alive, busy):
        with pytest.raises(ActorBusy):
            watcher.frame("job", key="job").open()
        assert holder(first) == name(first)
    clock = FrozenClock()
    second = client(journals[2], clock)
    with second.frame("job", key="job") as mine:
        assert clock.monotonic() >= 10, "it watched for as long as a lease lasts"
        with pytest.raises(StaleEpoch):
            block.run(never, key="b")
        assert mine.run(never, key="a") == 1
    block.leave(StaleEpoch(SCOPE, 1, 2))
    assert mine.status == "completed"
    for hf in (first, alive, busy, second):
        hf.close()


def test_whoever_was_quicker_is_not_robbed(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal()
    quick, slow = client(journal), client(journal)
    block = quick.frame("job")
    original = owning.await_free

    def overtaken(ports: Any, acting: Any, stream: str) -> None:
        original(ports, acting, stream)
        if ports is slow._ports:
            block.open()  # Both saw that nobody was there; this one came first.

    monkeypatch.setattr(owning, "await_free", overtaken)
    with pytest.raises(ActorBusy):
        slow.frame("job").open()
    block.run(lambda: 1, key="a")
    block.leave()
    assert block.status == "completed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_dead_process_is_followed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holdfast.open(path).close()

    def die() -> str:
        block = holdfast.open(path).frame("job", key="job")
        block.open()
        return block.id

    frame = in_child(die)
    clock = FrozenClock()
    with holdfast.open(path, clock=clock) as hf:
        assert holder(hf) is not None
        with hf.frame("job", key="job") as taken:
            assert taken.id == frame
        assert clock.monotonic() == 0, "nobody waits for the dead"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_owns_nothing_of_its_parent_s(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        with hf.frame("job") as frame:
            _check_child(hf, frame)
        assert (frame.status, kinds(hf).count("lease.taken")) == ("completed", 1)


def _check_child(hf: Holdfast, frame: holdfast.Frame) -> None:
    assert in_child(lambda: hf._ports.leases.users()) == "0"
    assert in_child(lambda: frame.run(never, key="a")).startswith("NotOwner")
    assert in_child(lambda: frame.leave()).startswith("NotOwner")
    assert frame.run(lambda: 1, key="a") == 1


# callbacks


def test_callbacks_hear_of_commits_in_order_and_after_them() -> None:
    journal = MemoryJournal()
    hf, other = client(journal), client(journal)
    heard: list[Event] = []

    def hear(event: Event) -> None:
        assert other.journal.version(event.stream) >= event.version, "it is committed already"
        heard.append(event)

    undo = hf.on("*", hear)
    with hf.frame("job", tokens=10) as frame:
        frame.spend(1, key="k")
        frame.spend(1, key="k")
        with pytest.raises(HoldfastError):
            frame.reserve("x", 100)
    stored = list(other.journal.events(SCOPE))
    assert [(e.seq, e.version, e.id, e.type, e.facts) for e in heard] == [
        (e.seq, e.version, e.id, e.type, e.facts) for e in stored
    ]
    undo()
    undo()
    hf.journal.append(SCOPE, "app.noted")
    assert len(heard) == len(stored)


def test_a_callback_that_fails_only_warns() -> None:
    hf = client()
    heard = []

    def broken(event: Event) -> None:
        raise ZeroDivisionError

    hf.on("frame.pushed", broken)
    hf.on("frame.*", lambda event: heard.append(event.type))
    with pytest.warns(RuntimeWarning, match=r"frame\.pushed failed: ZeroDivisionError"), hf.frame("job") as frame:
        pass
    assert frame.status == "completed"
    assert heard == ["frame.pushed", "frame.popped"]


def test_callbacks_may_write_and_stay_within_their_tenant() -> None:
    hf = client()
    heard: list[str] = []
    acme = hf.tenant("acme")
    acme.on("app.*", lambda event: heard.append(event.tenant))
    hf.on("app.asked", lambda event: hf.journal.append("s", "app.heard"))
    hf.journal.append("s", "app.asked")
    acme.journal.append("s", "app.asked")
    assert heard == ["acme"]
    assert [event.type for event in hf.journal.events("s")] == ["app.asked", "app.heard"]
    for pattern in ("nothing.such", "zzz*", 1):
        with pytest.raises(InvalidValue):
            hf.on(pattern, print)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        hf.on("*", None)  # type: ignore[arg-type]


# shutting down


def test_draining_takes_no_new_frames_and_waits_for_those_at_work() -> None:
    clock = FrozenClock()
    hf = client(clock=clock)
    block = hf.frame("job", key="job")
    block.open()
    assert hf.drain(grace=2) == 1
    assert 2 <= clock.monotonic() < 3
    with pytest.raises(Draining):
        hf.frame("new").open()
    assert issubclass(Draining, Unavailable)
    block.run(lambda: 1, key="a")
    block.leave()
    assert (block.status, hf.drain(grace=2), holder(hf)) == ("completed", 0, None)


def test_draining_ends_as_soon_as_the_last_block_does() -> None:
    hf = client(clock=Watched(lambda: block.leave()))
    block = hf.frame("job")
    block.open()
    assert hf.drain() == 0
    assert hf._ports.clock.monotonic() < 1


def test_work_that_is_stopped_by_draining_stays_live_for_the_next_process() -> None:
    journal = MemoryJournal()
    hf = client(journal)
    root = hf.frame("job", key="job")

    def work() -> None:
        with root:
            hf.drain(0)
            root.frame("child", key="c").open()

    with pytest.raises(Draining):
        work()
    assert (root.status, holder(hf)) == ("active", None)
    with client(journal).frame("job", key="job") as root, root.frame("child", key="c"):
        pass
    assert root.status == "completed"


# tests that can fail


def lease_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_frame.Frame, "_let_go", lambda self, error=None: None)


def answered_twice(patch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    original = rules.answer

    def careless(state: Any, frame_id: str, question_id: str, **how: Any) -> Any:
        frame = state.frames[frame_id]
        fresh = msgspec.structs.replace(frame, question=msgspec.structs.replace(frame.question, answer=None))
        return original(msgspec.structs.replace(state, frames={frame_id: fresh}), frame_id, question_id, **how)

    patch.setattr(rules, "answer", careless)
    patch.setattr(asking, "answer_key", lambda question: f"{question}/answer/{next(numbers)}")


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = [
    (lease_kept, lambda: leave_root(KeyboardInterrupt(), "fail", "active")),
    (answered_twice, answer_twice),
]


@pytest.mark.parametrize(("plant", "check"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check()
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check()
