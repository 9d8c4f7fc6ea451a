"""An append and an import that are repeated under their key give what they gave first."""

from __future__ import annotations

import pytest

from tests.model.session_world import World, texts


@pytest.fixture
def world() -> World:
    return World()


def test_a_pinned_message_that_is_repeated_is_still_pinned(world: World) -> None:
    chat = world.hf.session("a")
    assert [chat.append("one", policy="pinned", key="k").pinned for _ in range(2)] == [True, True]


def test_an_import_with_a_system_prompt_can_be_repeated(world: World) -> None:
    chat = world.hf.session("a")
    given = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "one"}]
    for _ in range(2):
        chat.import_messages(given, key="k")
    assert (chat.details.system, texts(chat)) == ("Be terse.", ["one"])
