"""A key of something else and usage that cannot be are refused."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    InvalidValue,
    KeyReused,
)
from holdfast.records.usage import Usage
from tests.model.frame_world import A, World


@pytest.fixture
def world() -> World:
    return World()


def test_a_key_of_something_else_is_refused_by_removing_handles_too(world: World) -> None:
    frame = world.index.push_frame("root", scope=A)
    world.index.add_handle(frame, "url", handle="h")
    world.index.reserve(frame, "reply", 5, key="k")
    with pytest.raises(KeyReused):
        world.index.remove_handle(frame, "h", key="k")


def test_doubtful_usage_is_not_negative(world: World) -> None:
    frame = world.index.push_frame("root", scope=A, tokens=100)
    call = world.index.begin_model_call(frame)
    with pytest.raises(InvalidValue):
        world.index.end_model_call(frame, call, usage=0, doubtful=Usage(output=-40))
