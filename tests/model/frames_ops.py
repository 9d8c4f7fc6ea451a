"""The operations of the walk, each chosen at random: mostly what can be done, often what cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.model import frames_ops_life as life
from tests.model import frames_ops_questions as questions
from tests.model import frames_ops_work as work
from tests.model import frames_ops_world as world
from tests.model import frames_ops_wrong as wrong
from tests.model.frames_walk import Op, Walk

Chooser = Callable[[Walk], Any]

WEIGHTS: dict[Chooser, int] = {
    life.push: 24,
    life.push_again: 2,
    life.update: 6,
    life.at_a_version: 1,
    life.pop: 12,
    life.reserve: 6,
    life.release: 4,
    life.record: 10,
    work.add_handle: 6,
    work.remove_handles: 3,
    work.restore_handles: 2,
    work.add_result: 2,
    work.begin_model: 5,
    work.begin_tool: 6,
    work.end_call: 9,
    questions.suspend: 10,
    questions.answer: 9,
    questions.reissue: 2,
    questions.resume: 12,
    wrong.mistyped: 3,
    world.take: 2,
    world.let_go: 3,
    world.sweep: 3,
    world.jump: 3,
    world.crash: 1,
    world.rebuild: 1,
    world.note_from_outside: 1,
}


def choose(walk: Walk) -> Op | None:
    """The next operation; those that are no single call are done at once."""
    chosen = walk.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0](walk)
    return chosen if isinstance(chosen, Op) else None
