"""A store of another technology as a sink: it is written in order, and a second delivery changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.effects import Custom, DeleteState, LinkState, UnlinkState, WriteState
from holdfast.flow.effects import outbox, sinks
from tests.effects.sinks import Noting, declare


@pytest.fixture(params=["memory:", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store beside the journal."""
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path / 'beside.db'}"
    with holdfast.open_store(url) as opened:
        yield opened


def test_state_effects_go_to_the_store_that_they_name(hf: holdfast.Holdfast, store: holdfast.types.StateStore) -> None:
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
    hf: holdfast.Holdfast, store: holdfast.types.StateStore, monkeypatch: pytest.MonkeyPatch
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
        raise holdfast.errors.Busy("the outcome is not noted")

    for effect in effects:
        declare(hf, effect)
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "settle_effect", lost)
            for _ in range(3):
                with pytest.raises(holdfast.errors.Busy):
                    hf.effects.dispatch()
        assert hf.effects.dispatch().applied == 1
    assert (there.read("n"), there.read("list"), there.read("new"), there.read("gone")) == (5, ["a"], 1, None)


def test_what_a_store_will_never_take_is_dead_at_once(hf: holdfast.Holdfast, store: holdfast.types.StateStore) -> None:
    hf.effects.add_sink("beside", store, when_dead="go_on")
    store("user/1").write("n", "text")
    declare(
        hf,
        WriteState("user/1", "n", 1, reducer="sum", store="beside"),
        WriteState("user/1", "n", 1, expected_version=0, store="beside"),
        Custom("note", 1, sink="beside"),
        WriteState("user/1", "m", 1, store="beside"),
    )
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=1, dead=3)
    assert store("user/1").read("n") == "text"


def test_a_function_may_stand_where_a_store_would(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    hf.effects.add_sink("beside", sink)
    declare(hf, WriteState("user/1", "n", {"a": 1}, ttl=60, store="beside"))
    hf.effects.dispatch()
    (effect,) = sink.taken
    assert effect.kind == "write"
    assert effect.payload == {"scope": "user/1", "key": "n", "value": {"a": 1}, "ttl": 60.0, "store": "beside"}


def test_a_store_takes_effects_of_one_tenant_alone(hf: holdfast.Holdfast, store: holdfast.types.StateStore) -> None:
    hf.effects.add_sink("beside", store)
    other = hf.tenant("other")
    declare(hf, WriteState("user/1", "n", "ours", store="beside"))
    declare(other, WriteState("user/1", "n", "theirs", store="beside"))
    assert hf.effects.dispatch().applied == 1
    assert other.effects.dispatch() == holdfast.effects.DispatchReport(deferred=1)
    assert store("user/1").read("n") == "ours"


# crashes


class Crash(BaseException):
    """The process is gone."""


def _crashing(*given: Any, **named: Any) -> None:
    raise Crash


BEFORE, BETWEEN, AFTER = (sinks, "apply_effect"), (sinks, "_record_taken"), (outbox, "settle_effect")
"""Before the store is changed, before the store notes the id, and before the journal notes what came of it."""

CHANGES: dict[str, tuple[Any, Any]] = {
    "sum": (WriteState("user/1", "n", 5, reducer="sum", store="beside"), 15),
    "append": (WriteState("user/1", "list", "b", reducer="append", store="beside"), ["a", "b"]),
    "overwrite": (WriteState("user/1", "n", 7, store="beside"), 7),
    "delete": (DeleteState("user/1", "n", store="beside"), None),
    "link": (LinkState("user/1", "n", "next", "m", store="beside"), [("m", None), ("o", 1.0)]),
    "unlink": (UnlinkState("user/1", "n", "next", "o", store="beside"), []),
}
"""What is declared, and what is there once it happened."""


def _seen(there: holdfast.State, name: str) -> Any:
    if name in ("link", "unlink"):
        return sorted((edge.target, edge.weight) for edge in there.neighbours("n"))
    return there.read("list" if name == "append" else "n")


def _begin(hf: holdfast.Holdfast, store: holdfast.types.StateStore) -> holdfast.State:
    hf.effects.add_sink("beside", store)
    there = store("user/1")
    there.write("n", 10)
    there.write("list", ["a"])
    there.link("n", "next", "o", weight=1.0)
    return there


def _crash_at(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch, point: tuple[Any, str]) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*point, _crashing)
        with pytest.raises(Crash):
            hf.effects.dispatch()


@pytest.mark.parametrize("name", CHANGES)
def test_a_crash_at_any_step_leaves_one_change(
    hf: holdfast.Holdfast, store: holdfast.types.StateStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = _begin(hf, store)
    wanted, after = CHANGES[name]
    (id,) = declare(hf, wanted)
    for point in (BEFORE, BETWEEN, BETWEEN, AFTER, AFTER):
        _crash_at(hf, monkeypatch, point)
    assert hf.effects.dispatch().applied == 1
    assert _seen(there, name) == after
    assert hf.effects.get(id).attempts == 1


def _others_write(there: holdfast.State, name: str) -> Any:
    """Somebody undoes what an effect did, or goes on from there; gives what is there then."""
    if name == "link":
        there.unlink("n", "next", "m")
    elif name == "unlink":
        there.link("n", "next", "o", weight=2.0)
    elif name == "append":
        there.write("list", ["c"])
    else:
        there.write("n", 100)
    return _seen(there, name)


@pytest.mark.parametrize("name", CHANGES)
def test_what_others_wrote_after_a_delivery_stays_however_often_it_is_delivered(
    hf: holdfast.Holdfast, store: holdfast.types.StateStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _crash_after_delivery(hf, store, name, monkeypatch)


def _crash_after_delivery(
    hf: holdfast.Holdfast, store: holdfast.types.StateStore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = _begin(hf, store)
    (id,) = declare(hf, CHANGES[name][0])
    _crash_at(hf, monkeypatch, AFTER)
    answer = store(sinks.TAKEN_SCOPE).read(id)
    now = _others_write(there, name)
    _crash_at(hf, monkeypatch, AFTER)
    assert hf.effects.dispatch().applied == 1
    assert _seen(there, name) == now
    assert answer is not None
    assert hf.effects.get(id).answer == answer


@pytest.mark.parametrize("name", CHANGES)
def test_planted_a_store_that_notes_nothing_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_record_taken", lambda *given: None)
    with holdfast.open("memory:") as hf, holdfast.open_store("memory:") as store, pytest.raises(AssertionError):
        _crash_after_delivery(hf, store, name, monkeypatch)


def test_what_a_store_noted_has_an_end_and_is_found_by_nobody(
    hf: holdfast.Holdfast, store: holdfast.types.StateStore
) -> None:
    hf.effects.add_sink("beside", store)
    ids = declare(hf, WriteState("user/1", "n", 1, store="beside"), WriteState("user/1", "n", 2, store="beside"))
    hf.effects.dispatch()
    noted = store(sinks.TAKEN_SCOPE).entries()
    assert [entry.key for entry in noted] == ids
    assert {entry.expires_at - entry.written_at for entry in noted} == {sinks.TAKEN_RETENTION_MS}  # type: ignore[operator]
    assert store(sinks.TAKEN_SCOPE).search("version") == []
