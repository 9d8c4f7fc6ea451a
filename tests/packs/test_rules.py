"""Rules of a session: they make it shorter when it is due, refuse the next call, record, and never cost an append."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast, Session
from holdfast.compaction import (
    Always,
    BudgetGuard,
    CompactionConfig,
    MessagesOver,
    Occasion,
    PackOverBudget,
    Rule,
    TelemetryRecorder,
    TokensOver,
)
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.errors import BudgetExhausted, InvalidValue, SessionClosed
from holdfast.flow.compaction import rules, threads
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.compaction import PRESETS
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.faults import FaultPoints
from tests.scale import volume

CALL = {"id": "p", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def count(text: str) -> int:
    return len(text) // 4 + 1


def short(messages: Any) -> str:
    return f"{len(messages)} messages, in short"


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", clock=FrozenClock(), tokenizer=count, summarizer=short) as client:
        yield client
        assert client.journal.verify().findings == ()


def uncovered(chat: Session) -> int:
    return len(chat) - sum(one.messages for one in chat.compaction.summaries())


def packed(chat: Session, budget: int = 4_000) -> Any:
    return chat.pack(budget)._packed


# when


def test_over_a_threshold_older_rounds_are_summarised(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(CompactionConfig(threshold=8, keep=3))
    sizes = []
    for number in range(30):
        chat.append(f"message {number}")
        sizes.append(uncovered(chat))
    assert max(sizes) == 8, "nine were too many"
    assert min(sizes[8:]) == 3
    assert len(chat) == 30
    assert len(chat.compaction.summaries()) == 4, "one for six messages, and not one for each"


def test_tokens_over_a_limit_are_folded_until_they_fit(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(CompactionConfig(max_tokens=300))
    for _ in range(60):
        message = chat.append("word " * 20)
        assert message.tokens is not None
        left = chat.messages()[-uncovered(chat) :]
        assert sum(one.tokens or 0 for one in left) <= 300
    made = len(list(hf.journal.events("session/a/thread/main", types=["summary.made"])))
    assert 3 <= made <= 20, "the next message must not pass the limit again"


def test_the_models_window_is_a_limit_too(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-4")
    chat.compaction.add_rule("default")
    assert chat.compaction.rules[0].triggers == (TokensOver(None),)
    for _ in range(volume(12, 60)):
        chat.append("word " * 900)
    assert chat.compaction.summaries()


def test_a_pack_that_left_messages_out_calls_for_a_summary(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(CompactionConfig(keep=2, when_packed=True))
    chat.append(["word " * 30] * 12)
    assert chat.compaction.summaries() == []
    whole = packed(chat, 100_000)
    assert rules.fire_rules(hf.env, chat._thread_stream, packed=whole) == ()
    small = packed(chat, 200)
    assert small.conversation.truncated_count > 0
    (fired,) = rules.fire_rules(hf.env, chat._thread_stream, packed=small)
    assert fired.made == tuple(chat.compaction.summaries())
    assert uncovered(chat) == 2


def test_eko_keeps_what_the_user_came_for_and_its_numbers(hf: Holdfast) -> None:
    config = PRESETS["eko"]
    assert (config.threshold, config.max_messages, config.max_tokens, config.max_length) == (10, 15, 64_000, 6_000)
    chat = hf.session("a", system="Be kind.")
    chat.compaction.add_rule("eko")
    goal = chat.append("Plan a trip to Rome for four people.")
    for number in range(40):
        chat.append([{"role": "assistant", "content": f"step {number} " + "so " * 900}, f"go on with {number}"])
        assert uncovered(chat) <= 12, "a list of two may come on top of ten"
    assert all(len(one.text) <= 6_000 for one in chat.compaction.summaries())
    assert next(one for one in chat.messages() if one.id == goal.id).pinned
    assert any(goal.text == one["content"] for one in chat.pack(4_000).to_openai()["messages"])
    chat.unpin(goal)
    for number in range(20):
        chat.append(f"more {number}")
    assert not chat.messages()[0].pinned, "what somebody unpinned stays so"


def test_the_goal_of_a_branch_is_told_where_it_cannot_be_pinned(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append(["Find me a flight to Oslo.", {"role": "assistant", "content": "There is one."}])
    branch = chat.fork(thread="other")
    branch.compaction.add_rule("eko")
    for number in range(12):
        branch.append(f"message {number}")
    assert branch.compaction.summaries()[0].text.startswith("What the user asked for first: Find me a flight to Oslo.")


def test_over_the_limit_something_is_done_whatever_it_takes(hf: Holdfast) -> None:
    chat = hf.session("a")

    def broken(messages: Any) -> str:
        raise RuntimeError("no model today")

    chat.compaction.add_rule(replace(PRESETS["eko"], summarizer=broken))
    chat.append(["hello"] * 10)
    for _ in range(5):
        with pytest.warns(RuntimeWarning, match="no model today"):
            chat.append("hello")
    assert chat.compaction.summaries() == [], "up to the limit it waits for the model"
    with pytest.warns(RuntimeWarning, match="no model today"):
        chat.append("and again")
    assert [one.method for one in chat.compaction.summaries()] == ["extract_state"]
    assert uncovered(chat) <= 15


# what they cost, and what they must not do


def test_a_failing_rule_loses_nothing_and_is_tried_again(hf: Holdfast) -> None:
    chat = hf.session("a")
    answers = iter(["raise", "", "raise", "at last"])

    def moody(messages: Any) -> str:
        said = next(answers)
        if said == "raise":
            raise RuntimeError("not now")
        return said

    chat.compaction.add_rule(CompactionConfig(threshold=4, keep=1, summarizer=moody))
    chat.append(["a", "b", "c", "d"])
    for number in range(3):
        with pytest.warns(RuntimeWarning, match="The rule compaction of session/a/thread/main failed"):
            assert chat.append(f"message {number}").text == f"message {number}"
        assert chat.compaction.summaries() == []
    chat.append("message 3")
    assert [one.text for one in chat.compaction.summaries()] == ["at last"]
    assert len(chat) == 8


@pytest.mark.filterwarnings("error")
def test_a_failing_rule_fails_no_append_where_warnings_are_errors(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(Rule("broken", Always(), lambda occasion: 1 // 0))
    assert chat.append("hello").text == "hello"


def test_a_function_may_be_what_a_rule_does_and_may_fail(hf: Holdfast) -> None:
    chat = hf.session("a")
    seen: list[Occasion] = []

    def notice(occasion: Occasion) -> None:
        seen.append(occasion)
        if len(seen) == 2:
            raise ValueError("oh no")

    undo = chat.compaction.add_rule(Rule("notice", MessagesOver(2), notice))
    chat.append(["a", "b"])
    chat.append("c")
    with pytest.warns(RuntimeWarning, match="oh no"):
        chat.append("d")
    chat.append("e")
    assert [[one.text for one in occasion.new] for occasion in seen] == [["c"], ["d"], ["e"]]
    undo()
    chat.append("f")
    assert len(seen) == 3
    undo()


def counting_calls(settings: Settings | None = None) -> tuple[Holdfast, Any]:
    points: Any = FaultPoints(MemoryJournal())
    beside = ClientExtensions(tokenizer=count, summarizer=short)
    return Holdfast(assemble_env(points, settings or Settings(), FrozenClock(), None, beside)), points


def appended(chat: Session, points: Any) -> list[str]:
    before = len(points.passed)
    chat.append("hello")
    return [name for name in points.passed[before:] if name.startswith("before")]


def test_an_append_without_rules_asks_nothing_more_of_the_journal() -> None:
    hf, points = counting_calls()
    ruled, plain = hf.session("ruled"), hf.session("plain")
    alone = appended(plain, points)
    ruled.compaction.add_rule(CompactionConfig(threshold=1_000))
    assert appended(plain, points) == alone
    undo = ruled.compaction.add_rule(Rule("none", Always(), lambda occasion: None))
    undo()
    ruled.compaction.add_rule("none")
    assert appended(ruled, points) == alone
    assert hf.env.rules == {}


@pytest.mark.parametrize("config", [CompactionConfig(threshold=10**6), CompactionConfig(max_tokens=10**9)])
def test_with_rules_an_append_costs_the_same_however_long_the_line_is(config: CompactionConfig) -> None:
    hf, points = counting_calls()
    chat = hf.session("a")
    chat.append(["x"] * 50)
    chat.compaction.add_rule(config)
    chat.append("the first look counts what is there")
    short_line = appended(chat, points)
    chat.append(["x"] * volume(500, 20_000))
    appended(chat, points)
    assert appended(chat, points) == short_line
    assert len(short_line) == 1, "one append, and nothing is read"


def test_a_line_that_cannot_be_shorter_is_not_looked_at_again_and_again() -> None:
    hf, points = counting_calls()
    chat = hf.session("a")
    chat.append({"role": "assistant", "content": "look", "tool_calls": [CALL]})
    chat.compaction.add_rule(CompactionConfig(threshold=5, keep=1))
    tried = []
    for _ in range(40):
        tried.append(len(appended(chat, points)) > 1)
    assert chat.compaction.summaries() == [], "the first call waits, so nothing may be covered"
    assert 3 <= sum(tried) <= 10
    chat.append_result("p", "there")
    for _ in range(8):
        chat.append("on we go")
    assert uncovered(chat) < 10, "now it may"


def test_what_others_wrote_is_counted_as_well(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(CompactionConfig(max_tokens=200, keep=1))
    chat.append("hello")
    other = Holdfast(replace(hf.env, rules={}))
    other.session("a").append(["word " * 40] * 10)
    chat.append("hello again")
    left = chat.messages()[-uncovered(chat) :]
    assert sum(one.tokens or 0 for one in left) <= 200
    chat.rewind(to=chat.messages()[3])
    chat.append("after going back")
    chat.reset()
    chat.append("anew")
    assert uncovered(chat) == 1


def test_two_threads_do_not_compact_the_same_line_at_once(hf: Holdfast) -> None:
    chat = hf.session("a")
    inside, go_on, at_once = threading.Event(), threading.Event(), []

    def slow(messages: Any) -> str:
        at_once.append(1)
        inside.set()
        go_on.wait(10)
        return "slow"

    chat.compaction.add_rule(CompactionConfig(threshold=3, keep=1, summarizer=slow))
    chat.append(["a", "b", "c"])
    first = threading.Thread(target=lambda: chat.append("d"))
    first.start()
    assert inside.wait(10)
    chat.append("e")
    assert at_once == [1], "the second one goes on at once"
    go_on.set()
    first.join()
    assert len(chat.compaction.summaries()) == 1


def test_rules_are_named_replaced_and_seen(hf: Holdfast) -> None:
    chat = hf.session("a")
    assert chat.compaction.rules == ()
    chat.compaction.add_rule("eko")
    chat.compaction.add_rule(BudgetGuard(tokens=5))
    chat.compaction.add_rule(CompactionConfig(threshold=3))
    assert [rule.name for rule in chat.compaction.rules] == ["budget_guard", "compaction"]
    assert [rule.name for rule in hf.session("a", thread="other").compaction.rules] == ["budget_guard", "compaction"]
    assert hf.session("b").compaction.rules == ()
    assert hf.tenant("t").session("a").compaction.rules == ()
    chat.compaction.add_rule("none")
    assert [rule.name for rule in chat.compaction.rules] == ["budget_guard"]
    chat.close()
    assert hf.env.rules == {}
    with pytest.raises(SessionClosed):
        chat.append("x")


@pytest.mark.parametrize(
    "wrong",
    [
        "ekko",
        3,
        None,
        Rule("x", (), print),
        Rule("x", "often", print),  # type: ignore[arg-type]
        Rule("", Always(), print),
        Rule("x", Always(), "print"),
        Rule("x", MessagesOver(-1), print),
        Rule("x", TokensOver(1.5), print),  # type: ignore[arg-type]
        BudgetGuard(tokens=-1),
        BudgetGuard(pack="much"),  # type: ignore[arg-type]
        TelemetryRecorder("a file"),  # type: ignore[arg-type]
        CompactionConfig(strategy="by magic"),
        CompactionConfig(keep=-1),
        CompactionConfig(max_tokens="much"),  # type: ignore[arg-type]
        CompactionConfig(timeout=-1),
        CompactionConfig(store="no/scope/at all"),
    ],
)
def test_what_is_no_rule_is_refused(hf: Holdfast, wrong: Any) -> None:
    with pytest.raises(InvalidValue):
        hf.session("a").compaction.add_rule(wrong)
    assert hf.env.rules == {}


# guards and recorders


def test_a_guard_refuses_the_next_call_and_nothing_else(hf: Holdfast) -> None:
    chat = hf.session("a", model="gpt-5-mini")
    reply = {
        "object": "chat.completion",
        "model": "gpt-5-mini",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
        "usage": {"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 100},
    }
    chat.compaction.add_rule(BudgetGuard(tokens=150, pack=2_000))
    chat.append("hello")
    ask = packed(chat)
    assert rules.fire_rules(hf.env, chat._thread_stream, packed=ask) == ()
    chat.append(reply)
    rules.fire_rules(hf.env, chat._thread_stream, packed=ask)
    chat.append(reply)
    with pytest.raises(BudgetExhausted, match="200 tokens, and the rule budget_guard allows 150"):
        rules.fire_rules(hf.env, chat._thread_stream, packed=ask)
    assert chat.append("people may go on").text == "people may go on"
    chat.compaction.add_rule(BudgetGuard(pack=10))
    used = packed(chat).token_summary.used
    with pytest.raises(
        BudgetExhausted, match=f"{used} tokens, and the rule budget_guard allows 10 for a call"
    ) as raised:
        rules.fire_rules(hf.env, chat._thread_stream, packed=packed(chat))
    assert (raised.value.requested, raised.value.available) == (used, 10)


def test_a_recorder_is_told_numbers_and_never_what_was_said(hf: Holdfast) -> None:
    chat = hf.session("a")
    told: list[dict[str, Any]] = []
    chat.compaction.add_rule(TelemetryRecorder(told.append))
    chat.compaction.add_rule(CompactionConfig(threshold=2, keep=1))
    chat.append("my secret is 12345")
    chat.append(["b", "c"])
    rules.fire_rules(hf.env, chat._thread_stream, packed=packed(chat))
    assert [(one["kind"], one["messages"], one["summaries"]) for one in told] == [
        ("appended", 1, 0),
        ("appended", 2, 1),
        ("packed", 1, 0),
    ]
    assert told[2]["budget"] == 4_000
    assert "12345" not in str(told)

    def broken(data: dict[str, Any]) -> None:
        raise OSError("the disk of the recorder is full")

    chat.compaction.add_rule(TelemetryRecorder(broken))
    with pytest.warns(RuntimeWarning, match="recorder is full"):
        chat.append("d")
    assert len(chat) == 4


class Spans:
    """A telemetry that keeps what it was given."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, dict[str, Any]]] = []

    @contextmanager
    def span(self, name: str, attributes: Any) -> Iterator[Any]:
        self.kept.append((name, dict(attributes)))
        yield lambda key, value: None

    def begin_call(self, call: str, attributes: Any) -> None:
        """No model is called here."""

    end_call: Any = begin_call


def test_without_a_function_the_clients_telemetry_is_told() -> None:
    spans = Spans()
    with holdfast.open("memory:", tokenizer=count, telemetry=spans) as hf:
        chat = hf.session("a")
        chat.compaction.add_rule(TelemetryRecorder())
        chat.append("hello")
        (told,) = [told for name, told in spans.kept if name == "holdfast.appended"]
        assert told == {
            "kind": "appended",
            "stream": chat._thread_stream,
            "messages": 1,
            "tokens": told["tokens"],
            "summaries": 0,
        }


# asyncio


def test_an_async_summarizer_of_a_rule_is_awaited_on_the_loop() -> None:
    async def main() -> None:
        home = asyncio.get_running_loop()

        async def slowly(messages: Any) -> str:
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is home
            return "awaited"

        async with holdfast.open_async("memory:", tokenizer=count) as hf:
            chat = await hf.session("a")
            undo = await chat.compaction.add_rule(CompactionConfig(threshold=3, keep=1, summarizer=slowly))
            await chat.append(["a", "b", "c", "d"])
            assert [one.text for one in await chat.compaction.summaries()] == ["awaited"]
            assert [rule.name for rule in await chat.compaction.rules()] == ["compaction"]
            undo()
            assert await chat.compaction.rules() == ()
            frame = await hf.index.push_frame("work", scope="actor/main/session/a/thread/main")
            await chat.append(["e"] * 12)
            done = await hf.index.compact_context(frame, 40, "summarise_oldest", summarizer=slowly, max_tokens=5)
            assert done.summary is not None
            assert done.summary.text == "awaited"
            made = await chat.compact(1, strategy="sliding_window")
            assert made is not None
            assert made.method == "sliding_window"

    asyncio.run(main())


def test_a_rule_that_were_to_cover_everything_at_once_is_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were what is left after a limit the limit itself, every further message would be summarised alone."""
    monkeypatch.setattr("holdfast.flow.compaction.rules.TARGET_SHARE", 1.0)
    with pytest.raises(AssertionError):
        test_tokens_over_a_limit_are_folded_until_they_fit(hf)


def test_a_compaction_that_loses_the_race_is_made_anew(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = hf.session("a")
    again = hf.session("a")
    calls = []

    def meanwhile(messages: Any) -> str:
        calls.append(len(messages))
        if len(calls) == 1:
            again.rewind(to=again.messages()[4])
        return f"covers {len(messages)}"

    chat.compaction.add_rule(CompactionConfig(threshold=6, keep=1, summarizer=meanwhile))
    chat.append([str(number) for number in range(7)])
    assert calls == [6, 4]
    assert [one.text for one in chat.compaction.summaries()] == ["covers 4"]
    assert threads.last_covered_position(hf.env, chat._thread_stream) == 4


def test_a_trigger_of_ones_own_decides_when(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(Rule("now and then", (MessagesOver(4), PackOverBudget()), CompactionConfig(keep=2)))
    chat.append(["a", "b", "c", "d"])
    assert chat.compaction.summaries() == []
    chat.append("e")
    assert uncovered(chat) == 2
