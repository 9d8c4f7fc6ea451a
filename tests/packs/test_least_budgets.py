"""The least that a pack takes is said to the token, and what may be taken is the least of what several say."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import holdfast
from holdfast import ContextPack, Frame, Holdfast, Limits, Message, ToolCallRequest
from holdfast.errors import BudgetExhausted, BudgetTooSmall
from tests.packs.pack_rules import MARKER
from tests.packs.worlds import PLENTY, TOOLS, WIDE
from tests.sessions.generated import text


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as client:
        yield client


def required(frame: Frame | holdfast.Session, budget: int, **asked: object) -> int:
    """What is said to be needed."""
    with pytest.raises(BudgetTooSmall) as raised:
        frame.pack(budget, **asked)  # type: ignore[arg-type]  # anything may be asked
    assert str(raised.value.required) in str(raised.value)
    return raised.value.required


# the least


def test_at_exactly_the_minimum_it_succeeds_and_one_token_less_says_the_number(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o", system="Be terse.", tools=TOOLS)
    chat.append(["a long story " * 200, "pinned words " * 100, "the newest words " * 100])
    chat.pin(chat.messages()[1])
    least = required(chat, 1)
    pack = chat.pack(least)
    assert pack.tokens == pack.budget == least
    assert [len(MARKER.findall(message.text)) for message in pack.messages] == [1, 1]
    for budget in (least - 1, least // 2, 2):
        assert required(chat, budget) == least


@pytest.mark.parametrize("length", range(39, 46))
def test_a_goal_that_is_hardly_too_long_costs_no_more_cut_than_whole(hf: Holdfast, length: int) -> None:
    hf.session("s", model="gpt-4o")
    for seed in range(8):
        with hf.frame(text(random.Random(seed), 30)[:length].strip() or "goal", session="s", limits=WIDE) as frame:
            least = required(frame, 1)
            assert frame.pack(least).tokens <= least
            assert required(frame, least - 1) == least


def test_a_brief_that_is_larger_than_the_budget_is_refused_with_what_it_takes(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o", system="Many words. " * 500)
    assert required(chat, 900) == required(chat, 1) > 1_000
    assert chat.pack(required(chat, 900)).system == "Many words. " * 500


def test_nothing_at_all_takes_what_a_provider_puts_around_it(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    assert required(chat, 1) == 3
    assert chat.pack(3).messages == []


def test_a_number_of_messages_that_is_too_small_is_refused_with_what_it_takes(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    chat.append({"role": "system", "content": "First."})
    chat.append(["one", "two"], policy="pinned")
    calls = chat.append(Message(role="assistant", tool_calls=(ToolCallRequest(name="f"), ToolCallRequest(name="f"))))
    for call in calls.tool_calls:
        chat.append_result(call, "found")
    least = required(chat, PLENTY, max_messages=1)
    assert least == 5
    assert required(chat, PLENTY, max_messages=4) == 5
    pack = chat.pack(PLENTY, max_messages=5)
    assert [message.role for message in pack.messages] == ["system", "user", "user", "assistant", "tool"]
    assert [one.outcome for one in pack.decisions][-2:] == ["shortened", "omitted"]
    assert chat.pack(PLENTY, max_messages=6).shortened == 0
    chat.pin(chat.messages()[-2])
    assert required(chat, PLENTY, max_messages=5) == 6, "a result that is pinned may not go with its call"


def test_more_room_never_loses_what_was_asked_for(hf: Holdfast) -> None:
    """Also where one that is large and comes first could take the place of two that are small."""
    with hf.frame("work", limits=WIDE) as frame:
        frame.append("hello")
        for id, priority, size in (("large", "high", 90), ("one", "medium", 12), ("two", "low", 12)):
            frame.attach("document", handle=id, body="some words " * size, priority=priority)
        had: set[str] = set()
        for budget in range(required(frame, 1), 400):
            shown = {one.handle_id for one in frame.pack(budget, include=["one", "two", "large"]).evidence}
            assert had <= shown
            had = shown
        assert had == {"large", "one", "two"}


# the least at the door of the index


@pytest.mark.parametrize("budget", [499, 1])
def test_the_index_takes_no_budget_below_its_least(hf: Holdfast, budget: int) -> None:
    frame = hf.index.push_frame("work", scope="actor/a")
    with pytest.raises(BudgetTooSmall) as raised:
        hf.index.assemble_context_pack(frame=frame, budget_tokens=budget)
    assert raised.value.required == 500
    assert hf.index.assemble_context_pack(frame=frame, budget_tokens=500).budget == 500


def test_the_index_says_what_is_really_needed_if_that_is_more(hf: Holdfast) -> None:
    hf.index.set_brief("actor/a", system_prompt="Many words. " * 300)
    frame = hf.index.push_frame("work", scope="actor/a")
    with pytest.raises(BudgetTooSmall) as raised:
        hf.index.assemble_context_pack(frame=frame, budget_tokens=500)
    least = raised.value.required
    assert least > 500
    assert hf.index.assemble_context_pack(frame=frame, budget_tokens=least).tokens <= least


def test_the_least_of_the_index_is_a_setting() -> None:
    with holdfast.open("memory:", settings=holdfast.Settings(min_pack_tokens=100)) as hf:
        frame = hf.index.push_frame("work", scope="actor/a")
        assert hf.index.assemble_context_pack(frame=frame, budget_tokens=100).budget == 100


# what may be taken


def limits(context_tokens: int) -> Limits:
    return Limits(context_tokens=context_tokens, depth=8)


def bound(pack: ContextPack) -> tuple[int, str | None]:
    return pack.budget, pack.limited_by


def test_the_tightest_limit_of_the_ancestry_holds(hf: Holdfast) -> None:
    with ExitStack() as blocks:
        a = blocks.enter_context(hf.frame("a", limits=limits(3_000)))
        b = blocks.enter_context(a.frame("b", limits=limits(900)))
        c = blocks.enter_context(b.frame("c", limits=limits(2_000)))
        tight = [bound(frame.pack(5_000)) for frame in (a, b, c)]
        assert tight == [(3_000, "context_tokens"), (900, "context_tokens"), (900, "context_tokens")]
        assert [bound(frame.pack(800)) for frame in (a, b, c)] == [(800, None)] * 3
        assert [bound(frame.pack()) for frame in (a, b, c)] == [(3_000, None), (900, None), (900, None)]


def test_a_limit_holds_across_actors(hf: Holdfast) -> None:
    above = hf.index.push_frame("above", scope="actor/a", limits=limits(700))
    below = hf.index.push_frame("below", scope="actor/b", parent=above, limits=limits(5_000))
    assert bound(hf.index.assemble_context_pack(frame=below, budget_tokens=3_000)) == (700, "context_tokens")


def test_no_more_is_packed_than_is_left_to_spend(hf: Holdfast) -> None:
    with hf.frame("work", tokens=1_000, limits=limits(4_000)) as frame:
        frame.append("hello " * 900)
        assert bound(frame.pack(2_000)) == (1_000, "available")
        frame.reserve("later", 400)
        assert bound(frame.pack(2_000)) == (600, "available")
        assert bound(frame.pack(600)) == (600, None)
        frame.spend(570)
        with pytest.raises(BudgetExhausted, match="30 tokens are left") as raised:
            frame.pack(2_000)
        assert raised.value.left == 30
        assert required(frame, 20) > 30
        frame.spend(30)
        with pytest.raises(BudgetExhausted, match="nothing left"):
            frame.pack(2_000)
        with pytest.raises(BudgetExhausted):
            frame.pack()


def test_too_few_messages_are_not_taken_for_too_few_tokens(hf: Holdfast) -> None:
    with hf.frame("work", tokens=1_000, limits=limits(4_000)) as frame:
        frame.append([{"role": "system", "content": "First."}, "hello"])
        assert required(frame, 2_000, max_messages=1) == 2


def test_the_default_is_what_the_model_or_the_frame_takes(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    info = holdfast.models.model_info("gpt-4o")
    assert chat.pack().budget == info.input_budget
    with hf.frame("work", session="s") as frame:
        assert bound(frame.pack()) == (info.input_budget, None)
        assert bound(frame.pack(10**12)) == (info.input_budget, "context_tokens")
    assert bound(chat.pack(10**12)) == (10**12, None)
