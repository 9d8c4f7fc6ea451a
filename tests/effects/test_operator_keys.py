"""A key of an operator stands for one call of it, by its name, with one input."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidValue, KeyReused
from holdfast.flow.effects import operators


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
