"""Steps run once; a torn one is repeated, asked about or failed, as it said beforehand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.errors import ActorBusy, EffectFailed, InvalidValue, TooLarge, Waiting
from holdfast.journal.memory.journal import MemoryJournal
from tests.frames.blocks import SCOPE, client, kinds, never, torn


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
