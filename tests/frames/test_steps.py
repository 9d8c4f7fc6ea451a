"""Steps run once; a torn one is repeated, asked about or failed, as it said beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.errors import ActorBusy, EffectFailed, InvalidValue, TooLarge, Waiting
from holdfast.flow.frames import steps
from holdfast.journal.memory.journal import MemoryJournal
from tests.frames.blocks import SCOPE, client, kinds, never, torn
from tests.frames.conftest import ACTOR


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


def test_a_torn_step_beside_a_child_elsewhere_is_asked_about(hf: holdfast.Holdfast) -> None:
    def work(fn: Callable[[], Any]) -> Any:
        with hf.frame("root", key="r", tokens=1000) as root:
            helper = hf.index.push_frame("helper", parent=root.id, scope="actor/helper", tokens=100, key="h")
            given = root.run(fn, key="pay")
            hf.index.pop_frame(helper)
            return given

    with pytest.raises(KeyboardInterrupt):
        work(torn)
    with pytest.raises(Waiting) as waiting:
        work(torn)
    assert [frame.status for frame in hf.index.stack("actor/helper")] == ["active"]
    hf.answer(waiting.value.question, approve=False, payload="paid")
    assert work(torn) == "paid"


def test_an_erased_value_says_so(hf: holdfast.Holdfast) -> None:
    user = hf.as_user("u-1")
    ran = []

    def work() -> Any:
        with user.frame("job", key="k") as frame:
            value = frame.run(lambda: ran.append(1) or {"paid": 17}, key="pay")  # type: ignore[func-returns-value]
            frame.result("done")
            return value

    assert work() == {"paid": 17}
    hf.journal.erase("u-1")
    assert work() is holdfast.types.ERASED
    assert ran == [1]


def test_a_step_that_ended_meanwhile_does_not_run_again(hf: holdfast.Holdfast, monkeypatch: Any) -> None:
    ran: list[str] = []
    enter = steps.RUNNING_STEPS.enter
    with hf.frame("f") as frame:

        def late(owner: str, key: str) -> None:
            monkeypatch.setattr(steps.RUNNING_STEPS, "enter", enter)
            frame.run(lambda: ran.append("first"), key="s")
            enter(owner, key)

        monkeypatch.setattr(steps.RUNNING_STEPS, "enter", late)
        frame.run(lambda: ran.append("late"), key="s")
    assert ran == ["first"]


class Mute(Exception):
    """Cannot say what happened."""

    def __str__(self) -> str:
        raise RuntimeError("mute")


@pytest.mark.parametrize("error", [ValueError("no file \udcff"), ValueError("x" * 2_000_000), ValueError("\0"), Mute()])
def test_an_error_of_any_words_is_journaled(hf: holdfast.Holdfast, error: Exception) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(type(error)), hf.frame("f") as frame:
        frame.run(fails, key="s")
    found = hf.index.get_frame(frame.id)
    assert (found.status, found.calls) == ("failed", ())
    assert str(found.error).startswith(type(error).__name__)


def test_a_step_gives_what_it_will_give_again(hf: holdfast.Holdfast) -> None:
    for _ in range(2):
        with hf.frame("f", key="k") as frame:
            assert frame.run(lambda: {"a": (1, 2)}, key="s") == {"a": [1, 2]}


@dataclasses.dataclass
class Order:
    """Something of the caller's own."""

    number: int


def test_records_are_taken_apart_wherever_they_are(hf: holdfast.Holdfast) -> None:
    for _ in range(2):
        with hf.frame("f", key="k", inputs=[Order(1), (2,)]) as frame:
            assert frame.info().inputs == [{"number": 1}, [2]]
            assert frame.run(lambda: {"orders": [Order(3)]}, key="s") == {"orders": [{"number": 3}]}
    pushed = hf.index.push_frame("g", scope=ACTOR, inputs={"o": (Order(4), {"t": (5,)})})
    assert hf.index.pop_frame(pushed) == hf.index.get_frame(pushed)


def test_an_async_function_is_refused_before_its_intent(hf: holdfast.Holdfast) -> None:
    async def later() -> int:
        return 1

    with hf.frame("f") as frame:
        with pytest.raises(InvalidValue, match="open_async"):
            frame.run(later, key="s")
        assert frame.info().calls == ()


def test_a_step_that_runs_is_not_run_beside_itself(hf: holdfast.Holdfast) -> None:
    with hf.frame("f") as frame:

        def nested() -> None:
            with pytest.raises(ActorBusy):
                frame.run(lambda: None, key="s")

        frame.run(nested, key="s")
    assert hf.index.get_frame(frame.id).status == "completed"
