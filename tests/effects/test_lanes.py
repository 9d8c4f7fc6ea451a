"""Random schedules of failures: order is kept, each id is taken once, and a dead sink delays nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.journal import project
from holdfast.effects import Custom
from holdfast.flow.effects import outbox
from holdfast.journal.sqlite import SqliteJournal
from holdfast.records.batches import RowQuery
from holdfast.testing.clock import FrozenClock
from tests.effects import lanes
from tests.effects.sinks import Noting, declare, notes
from tests.scale import seeded, volume


def test_random_schedules_keep_order_and_lose_nothing(tmp_path: Path) -> None:
    random = seeded("lanes")
    taken = 0
    for number in range(volume(12, 200)):
        url = "memory:" if number % 4 else str(tmp_path / f"{number}.db")
        world = lanes.run(random.randrange(2**32), url, steps=40)
        taken += sum(map(len, world.taken.values()))
    print(f"{taken} effects taken")
    assert taken


def test_a_dead_sink_is_asked_last_and_delays_no_other_lane() -> None:
    clock = FrozenClock()
    with holdfast.open("memory:", clock=clock) as hf:
        asked: list[str] = []

        def sink(name: str) -> Any:
            def deliver(effect: Any) -> None:
                asked.append(name)
                if name == "a-broken":
                    clock.advance(10_000)
                    raise TimeoutError

            return deliver

        for name in ("a-broken", "b", "c"):
            hf.effects.add_sink(name, sink(name))
        for _ in range(3):
            declare(hf, *(Custom("n", 1, name) for name in ("a-broken", "b", "c")))
            asked.clear()
            hf.effects.dispatch()
            clock.advance(400_000)
        assert asked == ["b", "c", "a-broken"]


def test_a_sink_that_takes_long_to_fail_is_asked_once_for_each_lane() -> None:
    clock = FrozenClock()
    with holdfast.open("memory:", clock=clock) as hf:
        asked: list[str] = []

        def slow(effect: Any) -> None:
            asked.append(effect.scope)
            clock.advance(10_000)
            raise TimeoutError

        hf.effects.add_sink("crm", slow)
        streams = [f"operator/{number}" for number in range(4)]
        for stream in streams:
            declare(hf, Custom("n", 1, "crm"), scope=stream)
        assert hf.effects.dispatch().failed == 4
        assert asked == streams


def test_rebuilt_equals_live_after_a_schedule(tmp_path: Path) -> None:
    clock = FrozenClock()
    with holdfast.open(tmp_path / "a.db", clock=clock) as hf:
        world = lanes.World(hf, clock, seeded("rebuild"))
        for _ in range(60):
            world.step()
        before = [list(hf.effects.pending()), list(hf.effects.dead())]
        rows = list(hf.env.journal.rows("effects"))
        hf.journal.rebuild()
        assert list(hf.env.journal.rows("effects")) == rows
        assert [list(hf.effects.pending()), list(hf.effects.dead())] == before
        assert hf.journal.verify().findings == ()


# planted bugs


def _some_schedules() -> None:
    for seed in range(20):
        lanes.run(seed, "memory:", steps=40)


def _last_first(env: Any, lane: Any) -> Any:
    query = RowQuery(table="effects", stream=lane.stream, column="sink", value=lane.sink, limit=100, backwards=True)
    rows = env.journal.select(env.tenant, query)
    return next((row for _, row in rows if row["status"] in ("pending", "failed")), None)


def test_planted_a_lane_out_of_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_find_next_row", _last_first)
    with pytest.raises(AssertionError, match="out of order"):
        _some_schedules()


def test_planted_an_effect_that_is_settled_before_it_is_sent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = outbox._attempt_effect

    def settled_first(env: Any, lane: Any, row: Any) -> Any:
        outcome = outbox.settle_effect(env, lane.stream, row, "applied", attempts=1)
        real(env, lane, row)
        return outcome

    monkeypatch.setattr(outbox, "_attempt_effect", settled_first)
    with pytest.raises(AssertionError, match=r"out of order|did not arrive"):
        _some_schedules()


def test_planted_a_failure_that_stops_every_lane_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = outbox._group_lanes_by_sink

    def all_or_none(env: Any, only: Any) -> Any:
        failed = [row for _, _, row in env.journal.rows("effects") if row["status"] in ("failed", "dead")]
        return [] if failed else real(env, only)

    monkeypatch.setattr(outbox, "_group_lanes_by_sink", all_or_none)
    with pytest.raises(AssertionError, match="did not arrive"):
        _some_schedules()


def test_planted_an_effect_without_its_row_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(project.STATE_ROW_RULES, "effect.declared", lambda facts, version, at: [])
    with pytest.raises(AssertionError, match="did not arrive"):
        lanes.run(1, "memory:", steps=40)


def test_planted_an_id_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = outbox._build_declared_effect

    def renamed(env: Any, lane: Any, row: Any, event: Any) -> Any:
        effect = real(env, lane, row, event)
        return holdfast.effects.DeclaredEffect(**{**_fields(effect), "id": f"{effect.id[:-1]}{effect.attempt}"})

    monkeypatch.setattr(outbox, "_build_declared_effect", renamed)
    with pytest.raises(AssertionError, match="out of order"):
        _some_schedules()


def _fields(effect: Any) -> dict[str, Any]:
    return {name: getattr(effect, name) for name in effect.__struct_fields__}


def test_stopped_lanes_cost_a_dispatch_one_question(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch, clock: FrozenClock
) -> None:
    def refuses(effect: holdfast.effects.DeclaredEffect) -> None:
        raise holdfast.errors.EffectRefused("no") if effect.payload % 2 else holdfast.errors.RetryLater("later")

    hf.effects.add_sink("bad", refuses)
    good = Noting()
    hf.effects.add_sink("good", good)
    for number in range(20):
        notes(hf, number, sink="bad", scope=f"user/{number}")
    notes(hf, 1, sink="good")
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=1, failed=10, dead=10)
    asked: list[str] = []
    journal = hf.env.journal

    def noting(name: str, real: Any) -> Any:
        def ask(*given: Any, **named: Any) -> Any:
            asked.append(name)
            return real(*given, **named)

        return ask

    for name in ("select", "lanes", "head"):
        monkeypatch.setattr(journal, name, noting(name, getattr(journal, name)))
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport()
    assert asked == ["lanes"]
    monkeypatch.undo()
    clock.advance(1_300)
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(failed=10)


def test_the_lanes_of_one_sink_are_found_without_those_of_others(tmp_path: Any) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        journal = hf.env.journal
        assert isinstance(journal, SqliteJournal)
        notes(hf, 1, 2, sink="b")
        notes(hf, 3, sink="a", scope="user/1")
        notes(hf, 4, sink="\U0010fffd", scope="user/2")
        assert [(stream, row["sink"]) for stream, row in journal.lanes("default")] == [
            ("user/1", "a"),
            ("operator/test", "b"),
            ("user/2", "\U0010fffd"),
        ]
        assert [stream for stream, _ in journal.lanes("default", "b")] == ["operator/test"]
