"""What a client remembers of the brief of a turn or frame: wherever another one says more, the next pack has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import CallModel, Holdfast
from holdfast.flow.packs import pack
from holdfast.system import Lru
from tests.packs.test_remembered_windows import Clients, clients

__all__ = ["clients"]

ACTOR = "actor/main/session/s/thread/main"
SCOPES = (ACTOR, "actor/main", "session/s", "global")


def told(hf: Holdfast, said: str = "Hello.") -> str | None:
    """What the model of a turn is told first."""
    with hf.session("s").turn(said) as turn:
        (step,) = turn.steps()
        assert isinstance(step, CallModel)
        step.done("Hi.")
    return step.pack.system


@pytest.mark.parametrize("scope", SCOPES)
def test_a_brief_that_another_client_sets_is_in_the_next_turn(clients: Clients, scope: str) -> None:
    assert [told(clients.one) for _ in range(3)] == ["Be terse."] * 3
    clients.two.index.set_brief(scope, "main", invariants=["Stay polite."])
    assert "Stay polite." in str(told(clients.one))
    clients.two.index.set_brief(scope, "main")
    assert told(clients.one) == "Be terse."


def test_settings_that_another_client_changes_are_in_the_next_turn(clients: Clients) -> None:
    assert [told(clients.one) for _ in range(2)] == ["Be terse."] * 2
    clients.two.session("s", system="Be kind.")
    assert told(clients.one) == "Be kind."


def test_a_prompt_that_another_client_erased_is_in_no_turn(clients: Clients) -> None:
    clients.one.as_user("bob").session("s", system="Ask for Bob.")
    assert [told(clients.one) for _ in range(2)] == ["Ask for Bob."] * 2
    clients.two.journal.erase("bob")
    assert told(clients.one) is None


def test_what_one_frame_was_given_is_told_no_other(clients: Clients) -> None:
    index = clients.one.index
    plain = index.push_frame("work", scope=ACTOR)
    given = index.push_frame("work", scope=ACTOR, parent=plain, inputs={"order": 4711})
    other = index.push_frame("work", scope=ACTOR, parent=plain)
    for _ in range(2):
        shown = ["4711" in str(index.assemble_context_pack(frame=one).messages) for one in (plain, given, other, plain)]
        assert shown == [False, True, False, False]


class Anything:
    """Equal to everything."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def own_words_are_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pack._PackBuilder, "_has_own_brief", lambda self: False)


def versions_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    get = Lru.get

    def whatever_was_written(self: Lru, place: Any) -> Any:
        known = get(self, place)
        return (Anything(), *known[1:]) if isinstance(known, tuple) else known

    patch.setattr(Lru, "get", whatever_was_written)


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: list[tuple[Plant, Callable[[Clients], None]]] = [
    (
        own_words_are_not_looked_for,
        lambda found: test_a_brief_that_another_client_sets_is_in_the_next_turn(found, ACTOR),
    ),
    (own_words_are_not_looked_for, test_what_one_frame_was_given_is_told_no_other),
    *(
        (
            versions_are_not_compared,
            lambda found, at=at: test_a_brief_that_another_client_sets_is_in_the_next_turn(found, at),
        )
        for at in SCOPES[1:]
    ),
    (versions_are_not_compared, test_settings_that_another_client_changes_are_in_the_next_turn),
    (versions_are_not_compared, test_a_prompt_that_another_client_erased_is_in_no_turn),
]


@pytest.mark.parametrize(("plant", "test"), PLANTED)
def test_a_brief_that_is_no_longer_true_is_caught(
    plant: Plant, test: Callable[[Clients], None], clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test(clients)
