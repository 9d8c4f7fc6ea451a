"""Questions in a block: asked once, answered elsewhere, found on the next run."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import AlreadyAnswered, TokenNotFound, Waiting
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.testing.clock import FrozenClock
from tests.frames.blocks import client, kinds


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
