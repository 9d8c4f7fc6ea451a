"""Bugs that are planted in blocks are caught by the tests of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.client import frame as client_frame
from holdfast.core.frames import questions as rules
from holdfast.flow.frames import questions
from tests.frames.test_block_questions import answer_twice
from tests.frames.test_leaving import leave_root


def lease_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_frame.Frame, "_release_block", lambda self, error=None: None)


def answered_twice(patch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    original = rules.answer

    def careless(state: Any, frame_id: str, question_id: str, **how: Any) -> Any:
        frame = state.frames[frame_id]
        fresh = msgspec.structs.replace(frame, question=msgspec.structs.replace(frame.question, answer=None))
        return original(msgspec.structs.replace(state, frames={frame_id: fresh}), frame_id, question_id, **how)

    patch.setattr(rules, "answer", careless)
    patch.setattr(questions, "answer_key", lambda question: f"{question}/answer/{next(numbers)}")


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
