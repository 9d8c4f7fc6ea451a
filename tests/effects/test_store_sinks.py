"""A store of another technology as a sink: it is written in order, and a second delivery changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Custom, DeleteState, LinkState, UnlinkState, WriteState
from holdfast.flow import outbox
from tests.effects.sinks import Noting, declare


@pytest.fixture(params=["memory:", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store beside the journal."""
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path / 'beside.db'}"
    with holdfast.open_store(url) as opened:
        yield opened


def test_state_effects_go_to_the_store_that_they_name(hf: holdfast.Holdfast, store: holdfast.StateStore) -> None:
    hf.effects.add_sink("beside", store)
    declare(
        hf,
        WriteState("user/1", "n", 1, store="beside"),
        WriteState("user/1", "n", 2, reducer="sum", store="beside"),
        WriteState("user/1", "gone", 1, store="beside"),
        DeleteState("user/1", "gone", store="beside"),
        LinkState("user/1", "n", "next", "m", weight=1.5, store="beside"),
        LinkState("user/1", "n", "next", "o", store="beside"),
        UnlinkState("user/1", "n", "next", "o", store="beside"),
    )
    assert hf.effects.dispatch().applied == 7
    assert hf.state("user/1").list() == []
    there = store("user/1")
    assert (there.read("n"), there.list()) == (3, ["n"])
    assert [(edge.target, edge.weight) for edge in there.neighbours("n")] == [("m", 1.5)]


def test_a_second_delivery_changes_nothing(
    hf: holdfast.Holdfast, store: holdfast.StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.effects.add_sink("beside", store)
    there = store("user/1")
    there.write("gone", 1)
    version = there.entry("gone").version  # type: ignore[union-attr]
    effects = [
        WriteState("user/1", "n", 5, reducer="sum", store="beside"),
        WriteState("user/1", "list", "a", reducer="append", store="beside"),
        WriteState("user/1", "new", 1, expected_version=0, store="beside"),
        DeleteState("user/1", "gone", expected_version=version, store="beside"),
    ]

    def lost(*given: Any, **named: Any) -> None:
        raise holdfast.Busy("the outcome is not noted")

    for effect in effects:
        declare(hf, effect)
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "settle", lost)
            for _ in range(3):
                with pytest.raises(holdfast.Busy):
                    hf.effects.dispatch()
        assert hf.effects.dispatch().applied == 1
    assert (there.read("n"), there.read("list"), there.read("new"), there.read("gone")) == (5, ["a"], 1, None)


def test_what_a_store_will_never_take_is_dead_at_once(hf: holdfast.Holdfast, store: holdfast.StateStore) -> None:
    hf.effects.add_sink("beside", store, when_dead="go_on")
    store("user/1").write("n", "text")
    declare(
        hf,
        WriteState("user/1", "n", 1, reducer="sum", store="beside"),
        WriteState("user/1", "n", 1, expected_version=0, store="beside"),
        Custom("note", 1, sink="beside"),
        WriteState("user/1", "m", 1, store="beside"),
    )
    assert hf.effects.dispatch() == holdfast.Dispatched(applied=1, dead=3)
    assert store("user/1").read("n") == "text"


def test_a_function_may_stand_where_a_store_would(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    hf.effects.add_sink("beside", sink)
    declare(hf, WriteState("user/1", "n", {"a": 1}, ttl=60, store="beside"))
    hf.effects.dispatch()
    (effect,) = sink.taken
    assert effect.kind == "write"
    assert effect.payload == {"scope": "user/1", "key": "n", "value": {"a": 1}, "ttl": 60.0, "store": "beside"}


def test_a_store_takes_effects_of_one_tenant_alone(hf: holdfast.Holdfast, store: holdfast.StateStore) -> None:
    hf.effects.add_sink("beside", store)
    other = hf.tenant("other")
    declare(hf, WriteState("user/1", "n", "ours", store="beside"))
    declare(other, WriteState("user/1", "n", "theirs", store="beside"))
    assert hf.effects.dispatch().applied == 1
    assert other.effects.dispatch() == holdfast.Dispatched(deferred=1)
    assert store("user/1").read("n") == "ours"
