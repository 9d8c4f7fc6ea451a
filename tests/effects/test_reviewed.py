"""What operators and the outbox refuse, keep and show where a caller, a sink or an input is not as one would wish."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

import holdfast
from holdfast.effects import Custom, OperatorOutput, UnlinkState, WriteState
from holdfast.errors import EffectNotFound, InvalidValue, KeyReused
from holdfast.flow.effects import operators, outbox
from holdfast.journal.sqlite import SqliteJournal
from holdfast.testing.clock import FrozenClock
from tests.effects.sinks import Noting, declare, notes

# keys


def op(given: Any, view: holdfast.types.StateReader) -> Any:
    """An operator with a name of its own."""
    return {"given": repr(given)}


@pytest.mark.parametrize("operator", [lambda given, view: 1, functools.partial(op)])
def test_a_key_needs_an_operator_with_a_name_of_its_own(hf: holdfast.Holdfast, operator: Any) -> None:
    with pytest.raises(InvalidValue, match="name="):
        hf.effects.operate(operator, key="k")
    assert hf.journal.position() == 0
    hf.effects.operate(operator, key="k", name="mine")
    hf.effects.operate(operator)


def test_a_key_needs_a_name_with_asyncio_too() -> None:
    async def test() -> None:
        async def operator(given: Any, view: Any) -> int:
            given["seen"] = True
            return 1

        async with holdfast.open_async("memory:") as hf:
            with pytest.raises(InvalidValue, match="name="):
                await hf.effects.operate(lambda given, view: operator(given, view), {}, key="k")
            with pytest.raises(InvalidValue, match="name="):
                await hf.effects.operate(functools.partial(operator), {}, key="k")
            # What it does to its input while it runs is not what it was asked with.
            await hf.effects.operate(operator, {"a": 1}, key="k")
            assert (await hf.effects.operate(operator, {"a": 1}, key="k")).repeated
            with pytest.raises(KeyReused):
                await hf.effects.operate(operator, {"a": 2}, key="k")

    asyncio.run(test())


def _key_with_another_input(hf: holdfast.Holdfast) -> None:
    first = hf.effects.operate(op, {"id": 17, "b": [1, 2]}, key="k")
    again = hf.effects.operate(op, {"b": [1, 2], "id": 17}, key="k")
    assert (again.output, again.repeated) == (first.output, True)
    for other in ({"id": 18, "b": [1, 2]}, None, "17", object()):
        with pytest.raises(KeyReused, match="input"):
            hf.effects.operate(op, other, key="k")


def test_a_key_with_another_input_is_another_call(hf: holdfast.Holdfast) -> None:
    _key_with_another_input(hf)
    (ran,) = hf.journal.events("operator/op")
    assert len(ran.facts.given) == 64
    assert hf.effects.operate(op, {"id": 17}).repeated is False  # Without a key nothing is compared, or kept.
    assert list(hf.journal.events("operator/op"))[-1].facts.given is None


def test_planted_inputs_that_are_not_compared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "digest_input", lambda *given: None)
    with holdfast.open("memory:") as hf, pytest.raises(pytest.fail.Exception):
        _key_with_another_input(hf)


def test_an_input_that_is_not_plain_data_is_not_compared(hf: holdfast.Holdfast) -> None:
    hf.effects.operate(op, object(), key="k")
    assert hf.effects.operate(op, object(), key="k").repeated


def test_a_digest_differs_by_tenant_and_by_journal(tmp_path: Any) -> None:
    found = set()
    for name in ("a.db", "b.db"):
        with holdfast.open(tmp_path / name) as hf:
            for client in (hf, hf.tenant("other")):
                found.add(operators.digest_input(client.env, {"id": 1}))
    assert len(found) == 4


# what an operator gives

WRITE = WriteState("user/1", "b", 2)


@pytest.mark.parametrize(
    "answer",
    [WRITE, [WRITE], ("out", [WRITE]), {"effects": (WRITE,)}, [OperatorOutput(1)], [[Custom("x", 1, sink="s")]]],
)
def test_effects_that_are_given_as_an_output_are_refused(hf: holdfast.Holdfast, answer: Any) -> None:
    with pytest.raises(InvalidValue, match=r"OperatorOutput\(effects="):
        hf.effects.operate(lambda given, view: answer, name="forgot")
    assert hf.journal.position() == 0


def test_an_output_that_holds_itself_is_refused_in_time(hf: holdfast.Holdfast) -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    with pytest.raises(InvalidValue, match="holds itself"):
        hf.effects.operate(lambda given, view: loop, name="x")


# answers


class Evil:
    """Nothing of it can be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("evil")


class EvilModel:
    """It looks like a model, and is none."""

    @property
    def model_dump(self) -> Any:
        raise RuntimeError("evil")


@pytest.mark.parametrize("kind", [Evil, EvilModel])
def test_an_answer_that_cannot_be_looked_at_was_an_answer(hf: holdfast.Holdfast, kind: Any) -> None:
    asked = []

    def sink(effect: holdfast.effects.DeclaredEffect) -> Any:
        asked.append(effect.payload)
        return kind()

    hf.effects.add_sink("crm", sink)
    ids = notes(hf, 1, 2)
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=2)
    assert asked == [1, 2]
    info = hf.effects.get(ids[0])
    assert (info.status, info.answer) == ("applied", None)
    assert "not kept" in info.reason
    with pytest.raises(InvalidValue, match="cannot be stored"):
        hf.state("user/1").write("a", EvilModel())


def test_the_asyncio_client_keeps_to_that_too() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            hf.effects.add_sink("crm", lambda effect: Evil())
            await hf.effects.operate(lambda given, view: OperatorOutput(None, [Custom("n", 1, "crm")]), name="x")
            assert await hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=1)

    asyncio.run(test())


# what became of an effect


def test_a_settled_effect_is_shown_with_what_came_of_it(hf: holdfast.Holdfast) -> None:
    hf.effects.add_sink("crm", Noting())
    first, second = notes(hf, {"n": 1}, {"n": 2})
    hf.effects.discard(second, reason="too late")
    before = hf.effects.get(first)
    assert (before.status, before.attempts) == ("pending", 0)
    hf.effects.dispatch()
    info = hf.effects.get(first)
    assert (info.status, info.attempts, info.answer) == ("applied", 1, {"taken": 1})
    assert (info.payload, info.sink, info.kind, info.operator) == ({"n": 1}, "crm", "note", "test")
    assert (info.scope, info.declared_at) == (before.scope, before.declared_at)
    info = hf.effects.get(second)
    assert (info.status, info.reason, info.answer) == ("skipped", "too late", None)
    hf.journal.rebuild()
    assert hf.effects.get(first).answer == {"taken": 1}
    with pytest.raises(EffectNotFound):
        hf.tenant("other").effects.get(first)


def test_an_id_of_something_else_is_no_effect(hf: holdfast.Holdfast) -> None:
    (at_once,) = declare(hf, WriteState("user/1", "a", 1))
    ran = next(iter(hf.journal.events("operator/test")))
    for id in (at_once, ran.id):
        with pytest.raises(EffectNotFound, match=r"outcomes.*holdfast log"):
            hf.effects.get(id)


# the outbox


def test_a_sink_that_is_taken_away_during_a_dispatch_defers_what_is_left(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = hf.effects.add_sink("crm", Noting())
    ids = notes(hf, 1)
    real = outbox._check_owner

    def checked(*given: Any) -> None:
        undo()
        real(*given)

    monkeypatch.setattr(outbox, "_check_owner", checked)
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(deferred=1)
    assert hf.effects.get(ids[0]).status == "deferred"


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


def test_an_edge_is_taken_away_however_many_its_key_has(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hf.state("custom/crm/id/p")
    for number in range(4):
        graph.link("hub", "knows", f"n{number}")
    # As if there were more edges than one question gives.
    journal = hf.env.journal
    real = journal.edges
    monkeypatch.setattr(journal, "edges", lambda tenant, query: real(tenant, query)[:2])
    declare(hf, UnlinkState("custom/crm/id/p", "hub", "knows", "n3"))
    monkeypatch.undo()
    assert [edge.target for edge in graph.neighbours("hub")] == ["n0", "n1", "n2"]
