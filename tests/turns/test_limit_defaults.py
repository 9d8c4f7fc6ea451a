"""Limits that were not given: each is the default of where it is used, and what is journaled is whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

import holdfast
from holdfast import Holdfast, Limits, Scripted
from holdfast.core.journal.codec import decode, encode
from holdfast.effects import PushFrame
from holdfast.errors import InvalidValue, KeyReused
from holdfast.types import FrameLimits
from tests.backends import IN_MEMORY
from tests.turns.loops import SESSION, asks, replies, take

WINDOW = FrameLimits(context_tokens=128_000, tool_calls=50, depth=3, timeout_ms=None)
BARE = FrameLimits()
SOME: list[Any] = [
    ({}, {}),
    ({"timeout_ms": 60_000}, {"timeout_ms": 60_000}),
    ({"tool_calls": 20}, {"tool_calls": 20}),
    ({"context_tokens": 1_900, "depth": 1}, {"context_tokens": 1_900, "depth": 1}),
    ({"timeout_ms": None}, {"timeout_ms": None}),
]


def changed(limits: FrameLimits, **changes: Any) -> FrameLimits:
    """The same limits, but for some."""
    names = limits.__struct_fields__
    return FrameLimits(**{name: changes.get(name, getattr(limits, name)) for name in names})


def pushed(hf: Holdfast) -> list[FrameLimits]:
    """What the journal says that turns may do."""
    found = [event.facts for event in hf.journal.events() if event.type == "frame.pushed"]
    return [facts.limits for facts in found if facts.conversation]


def turn_limits(hf: Holdfast, limits: Limits | None) -> FrameLimits:
    take(hf, "Hi", replies("Hello."), limits=limits)
    return pushed(hf)[-1]


def agent_limits(hf: Holdfast, limits: Limits | None) -> FrameLimits:
    hf.agent("a", model=Scripted(["Hello."]), limits=limits).send(SESSION, "Hi")
    return pushed(hf)[-1]


def block_limits(hf: Holdfast, limits: Limits | None) -> FrameLimits:
    with hf.frame("work", limits=limits) as frame:
        return frame.limits


def bare_limits(hf: Holdfast, limits: Limits | None) -> FrameLimits:
    return hf.index.get_frame(hf.index.push_frame("work", scope="actor/a", limits=limits)).limits


@IN_MEMORY
@pytest.mark.parametrize(("asked", "got"), SOME)
@pytest.mark.parametrize("used", [turn_limits, agent_limits, block_limits, bare_limits])
def test_only_what_is_given_changes(hf: Holdfast, used: Any, asked: dict[str, Any], got: dict[str, Any]) -> None:
    default = used(hf, None)
    assert used(hf, Limits(**asked)) == changed(default, **got)


@IN_MEMORY
def test_each_place_has_its_own_defaults(hf: Holdfast) -> None:
    assert turn_limits(hf, Limits(timeout_ms=60_000)) == changed(WINDOW, timeout_ms=60_000)
    assert block_limits(hf, Limits(tool_calls=1)) == changed(WINDOW, tool_calls=1)
    assert bare_limits(hf, Limits()) == BARE == FrameLimits(4_000, 10, 3, 120_000)
    hf.session("t", model="gpt-5-mini")
    take(hf, "Hi", replies("Hello."), session="t", limits=Limits(tool_calls=20))
    window = holdfast.models.model_info("gpt-5-mini").input_budget
    assert pushed(hf)[-1] == FrameLimits(context_tokens=window, tool_calls=20, depth=3, timeout_ms=None)


@IN_MEMORY
def test_a_deadline_does_not_take_tool_calls_away(hf: Holdfast) -> None:
    calls = [asks(("look", {"n": n})) for n in range(14)]
    done = take(hf, "Go.", replies(*calls, "Done."), limits=Limits(timeout_ms=60_000))
    assert (done.status, done.text) == ("done", "Done.")


def test_a_bare_frame_takes_its_context_from_the_settings() -> None:
    with holdfast.open("memory:", settings=holdfast.Settings(default_context_tokens=777)) as hf:
        assert bare_limits(hf, Limits(depth=1)) == changed(BARE, context_tokens=777, depth=1)


def test_a_child_has_what_its_ancestors_allow_but_for_what_it_was_given(hf: Holdfast) -> None:
    root = hf.index.push_frame("root", scope="actor/a", limits=Limits(tool_calls=7, timeout_ms=None))
    child = hf.index.push_frame("child", parent=root, limits=Limits(depth=2))
    assert hf.index.get_frame(child).limits == changed(BARE, tool_calls=7, timeout_ms=None, depth=2)
    timed = hf.index.push_frame("timed", parent=root, limits=Limits(timeout_ms=5_000, tool_calls=99))
    assert hf.index.get_frame(timed).limits == changed(BARE, tool_calls=7, timeout_ms=5_000)


def test_a_change_of_one_limit_leaves_the_others(hf: Holdfast) -> None:
    frame = hf.index.push_frame("work", scope="actor/a", limits=Limits(context_tokens=9_000, timeout_ms=50_000))
    before = hf.index.get_frame(frame)
    hf.index.update_frame(frame, limits=Limits(tool_calls=2), key="once")
    hf.index.update_frame(frame, limits=Limits(tool_calls=2), key="once")
    after = hf.index.get_frame(frame)
    assert after.limits == changed(before.limits, tool_calls=2)
    assert after.deadline == before.deadline
    with pytest.raises(KeyReused):
        hf.index.update_frame(frame, limits=Limits(tool_calls=3), key="once")


def test_one_limit_of_a_child_can_be_lowered_after_its_root_s_were(hf: Holdfast) -> None:
    root = hf.index.push_frame("root", scope="actor/a")
    child = hf.index.push_frame("child", parent=root)
    hf.index.update_frame(root, limits=Limits(depth=1))
    hf.index.update_frame(child, limits=Limits(tool_calls=2))
    assert hf.index.get_frame(child).limits == changed(BARE, depth=1, tool_calls=2)


def test_a_key_stands_for_the_limits_that_were_given(hf: Holdfast) -> None:
    how: Any = {"scope": "actor/a", "key": "once"}
    first = hf.index.push_frame("work", limits=Limits(depth=1), **how)
    assert hf.index.push_frame("work", limits=Limits(depth=1), **how) == first
    with pytest.raises(KeyReused):
        hf.index.push_frame("work", limits=Limits(depth=2), **how)


@pytest.mark.parametrize("bad", [{"context_tokens": 0}, {"timeout_ms": 0}, {"depth": -1}, {"tool_calls": None}])
@IN_MEMORY
def test_limits_that_cannot_be_meant_are_refused_everywhere(hf: Holdfast, bad: dict[str, Any]) -> None:
    for used in (turn_limits, agent_limits, block_limits, bare_limits):
        with pytest.raises(InvalidValue, match=next(iter(bad))):
            used(hf, Limits(**bad))


# what is stored

limits = st.fixed_dictionaries(
    {},
    optional={
        "context_tokens": st.integers(1, 2**40),
        "tool_calls": st.integers(0, 2**40),
        "depth": st.integers(0, 99),
        "timeout_ms": st.none() | st.integers(1, 2**40),
    },
)


@given(limits, limits)
def test_over_a_default_everything_given_stands_and_the_rest_is_the_default(
    asked: dict[str, Any], default: dict[str, Any]
) -> None:
    below = FrameLimits(**default)
    filled = Limits(**asked).apply_to(below)
    assert type(filled) is FrameLimits
    for name in filled.__struct_fields__:
        assert getattr(filled, name) == asked.get(name, getattr(below, name))
    assert filled.apply_to(BARE) == filled


@given(limits)
def test_limits_in_an_effect_are_stored_as_they_were_asked_for(asked: dict[str, Any]) -> None:
    effect = PushFrame("main", "look", limits=Limits(**asked))
    again = decode(encode(effect), PushFrame)
    assert again == effect
    assert [name for name in asked if getattr(again.limits, name) is UNSET] == []


def test_the_stored_form_of_a_frame_s_limits_is_what_it_was() -> None:
    assert encode(BARE) == b"{}"
    assert encode(changed(BARE, timeout_ms=None, depth=2)) == b'{"depth":2,"timeout_ms":null}'


# the budget of each pack


@IN_MEMORY
def test_an_agent_s_packs_stay_within_its_budget(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    chat.append([{"role": "user", "content": f"hello {n} " * 20} for n in range(60)])
    hf.agent("a", model=Scripted(["Hi."]), budget=700, history=False).send(SESSION, "Hello")
    (narrow,) = [event.facts for event in hf.journal.events() if event.type == "context.packed"]
    assert (narrow.asked, narrow.budget) == (700, 700)
    assert narrow.used <= 700
    hf.agent("b", model=Scripted(["Hi."]), history=False).send(SESSION, "Hello")
    wide = [event.facts for event in hf.journal.events() if event.type == "context.packed"][-1]
    assert wide.used > 700


def test_an_agent_s_packs_stay_within_its_budget_with_asyncio() -> None:
    async def asked() -> list[int]:
        async with holdfast.open_async("memory:") as hf:
            agent: Any = hf.agent("a", model=Scripted(["Hi."]), budget=700, history=False)
            await agent.send(SESSION, "Hello")
            return [event.facts.asked async for event in hf.journal.events() if event.type == "context.packed"]

    assert asyncio.run(asked()) == [700]


@pytest.mark.parametrize("budget", [0, -1, 1.5, True, "many"])
@IN_MEMORY
def test_a_budget_that_is_no_number_of_tokens_is_refused_at_once(hf: Holdfast, budget: Any) -> None:
    with pytest.raises(InvalidValue, match="budget"):
        hf.agent("a", model=Scripted(["Hi."]), budget=budget)


def test_a_turn_that_takes_limits_whole_is_found_out(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "apply_to", lambda asked, default: BARE)
    with pytest.raises(AssertionError):
        assert turn_limits(hf, Limits(timeout_ms=60_000)) == changed(WINDOW, timeout_ms=60_000)


@IN_MEMORY
def test_limits_of_a_frame_can_be_given_to_another(hf: Holdfast) -> None:
    given = block_limits(hf, Limits(tool_calls=3))
    assert bare_limits(hf, given) == given == changed(WINDOW, tool_calls=3)
