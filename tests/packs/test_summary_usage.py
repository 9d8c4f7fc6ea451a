"""Tokens and cost of the models that write summaries are counted: in the session, in the frame, and by its guards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Holdfast, Message, Scripted, Session, Usage
from holdfast.compaction import BudgetGuard, CompactionConfig, ModelSummarizer
from holdfast.core.journal import fold, project
from holdfast.errors import BudgetExhausted, ModelFailed, SummaryFailed
from holdfast.flow.compaction import summaries, threads
from holdfast.model import summarizers
from holdfast.records.messages import ModelReply
from holdfast.testing.journal_contract import dump_projections

PRICES = {"writer": {"input": 1, "output": 4}}
PRICED = Usage(input=100, output=10, cost=140_000, model="writer-2")


def reply(text: str = "They talked.", finish: str | None = None) -> ModelReply:
    used = Usage(input=100, output=10, model="writer-2")
    return ModelReply(message=Message(role="assistant", content=text), usage=used, finish=finish)


def count(text: str) -> int:
    return len(text) // 4 + 1


def writer(given: Any = None) -> Scripted:
    return Scripted(otherwise=reply() if given is None else given, name="writer")


@pytest.fixture(params=["memory:", "a.db"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = request.param if request.param == "memory:" else tmp_path / request.param
    with holdfast.open(url, tokenizer=count, prices=PRICES) as client:
        yield client
        assert client.journal.verify().findings == ()
        live = dump_projections(client.env.journal)
        client.journal.rebuild()
        assert dump_projections(client.env.journal) == live


def talk(hf: Holdfast, id: str = "a") -> Session:
    chat = hf.session(id)
    chat.append([f"Message {number}: " + "and so on " * 30 for number in range(6)])
    return chat


def total(usage: Usage) -> tuple[int, int, int | None]:
    return usage.input, usage.output, usage.cost


def test_a_summary_of_a_model_is_counted_in_its_session(hf: Holdfast) -> None:
    chat = talk(hf)
    made = chat.compact(2, summarizer=writer())
    assert made is not None
    assert made.usage == PRICED
    assert chat.compaction.summaries() == [made]
    assert total(chat.usage) == (100, 10, 140_000)
    chat.append("More, and so on.")
    chat.compact(1, summarizer=lambda messages: reply("They went on."))
    assert total(chat.usage) == (200, 20, 280_000)
    chat.rewind(to=chat.messages()[0])
    assert total(chat.usage) == (200, 20, 280_000), "what was paid stays paid"
    assert total(hf.usage()) == (200, 20, 280_000)


def test_the_async_client_counts_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        async with holdfast.open_async(tmp_path / "a.db", tokenizer=count, prices=PRICES) as hf:
            chat = await hf.session("a")
            await chat.append([f"Message {number}: " + "and so on " * 30 for number in range(6)])

            async def answer(messages: Any) -> Any:
                return reply("They went on.")

            made = await chat.compact(4, summarizer=writer())
            assert made is not None
            assert made.usage == PRICED
            await chat.compact(2, summarizer=answer)
            assert total(await chat.usage()) == (200, 20, 280_000)
            undo = await chat.compaction.add_rule(CompactionConfig(threshold=1, keep=1, summarizer=answer))
            await chat.append("More, and so on.")
            assert total(await chat.usage()) == (300, 30, 420_000)
            undo()
            frame = await hf.index.push_frame("look", scope="actor/a/session/a/thread/main", tokens=1_000)
            await chat.append(["Again. " * 40] * 3)
            await hf.index.compact_context(frame, 60, "summarise_oldest", keep=1, summarizer=answer, max_tokens=20)
            assert total((await hf.index.get_frame(frame)).usage) == (100, 10, 140_000)

    asyncio.run(run())


def test_a_text_from_a_model_is_estimated_and_one_from_a_function_is_not_counted(hf: Holdfast) -> None:
    chat = talk(hf)
    asked: list[str] = []

    def call(prompt: str) -> str:
        asked.append(prompt)
        return "They talked."

    chat.compact(4, summarizer=ModelSummarizer(call))
    used = chat.usage
    assert (used.input, used.output) == (count(asked[0]), count("They talked."))
    assert (used.estimated, used.cost_known) == (used.spent, False)
    made = chat.compact(2, summarizer=lambda messages: "They talked again.")
    assert made is not None
    assert made.usage is None
    assert chat.usage == used
    chat.compact(1)
    assert chat.usage == used


def test_every_part_of_a_long_conversation_is_counted(hf: Holdfast) -> None:
    chat = talk(hf)
    asked: list[str] = []

    def call(prompt: str) -> ModelReply:
        asked.append(prompt)
        return reply()

    chat.compact(1, summarizer=ModelSummarizer(call, window=650, count=count), max_tokens=50)
    assert len(asked) > 1
    assert total(chat.usage) == (100 * len(asked), 10 * len(asked), 140_000 * len(asked))


@pytest.mark.parametrize(
    ("said", "input"),
    [
        (reply("No.", finish="refusal"), 100),
        (reply(" "), 100),
        (reply("long " * 2_000), 100),
        (ModelFailed("cut", kind="cut", usage=Usage(input=7)), 7),
        (ModelFailed("no"), None),
    ],
)
def test_an_error_tells_what_a_failed_summary_used_and_nothing_is_written(hf: Holdfast, said: Any, input: Any) -> None:
    chat, version = talk(hf), hf.journal.position()
    with pytest.raises(SummaryFailed) as failed:
        chat.compact(2, summarizer=writer(said), max_tokens=3_000)
    used: Any = failed.value.usage
    assert (None if used is None else used.input) == input
    assert hf.journal.position() == version


def test_attempts_that_came_to_nothing_are_counted_with_the_summary_that_was_written(hf: Holdfast) -> None:
    chat = talk(hf)

    def meddled(messages: Any) -> ModelReply:
        if len(chat) == 6:
            chat.rewind(to=chat.messages()[4])
        return reply()

    made = chat.compact(2, summarizer=meddled)
    assert made is not None
    assert total(chat.usage) == (200, 20, 280_000), "it was made twice"

    other, answers = talk(hf, "b"), [reply(" "), reply()]
    other.compaction.add_rule(CompactionConfig(threshold=3, keep=1, summarizer=lambda messages: answers.pop(0)))
    with pytest.warns(RuntimeWarning, match="returned nothing"):
        other.append("One more.")
    assert total(other.usage) == (0, 0, 0)
    other.append("Another one.")
    assert total(other.usage) == (200, 20, 280_000)


def test_a_fallback_counts_the_attempt_that_failed(hf: Holdfast) -> None:
    chat = talk(hf)
    chat.compaction.add_rule(CompactionConfig(max_messages=3, keep=1, summarizer=writer(reply(" "))))
    with pytest.warns(RuntimeWarning, match="returned nothing"):
        chat.append("One more.")
    (made,) = chat.compaction.summaries()
    assert made.method == "extract_state"
    assert made.usage == PRICED


def test_a_guard_counts_summaries(hf: Holdfast) -> None:
    chat = talk(hf)
    chat.compaction.add_rule(BudgetGuard(usd=0.0001))
    chat.packs.begin_model_call(chat.pack())
    chat.compact(2, summarizer=writer())
    with pytest.raises(BudgetExhausted, match="140000"):
        chat.packs.begin_model_call(chat.pack())


def test_a_frame_pays_for_its_summaries(hf: Holdfast) -> None:
    chat = talk(hf)
    frame = hf.index.push_frame("look", scope="actor/a/session/a/thread/main", tokens=150)
    ways: dict[str, Any] = {"keep": 1, "max_tokens": 20, "key": "once"}
    for _ in range(2):
        done = hf.index.compact_context(frame, 150, "summarise_oldest", summarizer=writer(), **ways)
        assert done.summary is not None
        found = hf.index.get_frame(frame)
        assert total(found.usage) == total(chat.usage) == (100, 10, 140_000)
        assert (found.tokens.used, found.tokens.available) == (110, 40)
    chat.append([f"Again {number}: " + "and so on " * 30 for number in range(6)])
    failed = hf.index.compact_context(frame, 150, "summarise_oldest", keep=1, summarizer=writer(reply(" ")))
    assert failed.summary is not None, "by the next strategy"
    assert hf.index.get_frame(frame).tokens.used == 220
    spent = [event.facts for event in hf.journal.events(types=["frame.spent"])]
    assert [one.overdraft for one in spent] == [0, 70]


def test_a_frame_pays_for_summaries_that_came_to_nothing(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(hf)
    frame = hf.index.push_frame("look", scope="actor/a/session/a/thread/main")
    monkeypatch.setitem(threads.FALLBACKS, "summarise_oldest", ())
    done = hf.index.compact_context(frame, 150, "summarise_oldest", keep=1, summarizer=writer(reply(" ")))
    assert done.summary is None
    assert total(hf.index.get_frame(frame).usage) == (100, 10, 140_000)


@pytest.mark.parametrize("given", [{"usage": None}, {"usage": 7}, {"message": "They talked."}])
def test_a_reply_without_a_usage_or_a_message_fails_its_summary(hf: Holdfast, given: dict[str, Any]) -> None:
    chat, odd = talk(hf), msgspec.structs.replace(reply(), **given)
    for summarizer in (lambda messages: odd, ModelSummarizer(lambda prompt: odd)):
        with pytest.raises(SummaryFailed, match="without a Message and a Usage"):
            chat.compact(2, summarizer=summarizer)
    assert chat.usage.spent == 0


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (summarizers, "note_call", lambda model, usage: None),
        (summaries, "add_cost", lambda env, usage, model: usage),
        (fold, "THREAD_RULES", {**fold.THREAD_RULES, "summary.made": lambda thread, facts, version, at: thread}),
        (project, "usage_amounts", lambda usage: {}),
    ],
)
def test_a_summary_that_is_not_counted_is_found(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bug: Any
) -> None:
    monkeypatch.setattr(module, name, bug)
    with holdfast.open("memory:", tokenizer=count, prices=PRICES) as hf:
        chat = talk(hf)
        chat.compact(2, summarizer=writer())
        live = total(chat.usage)
        hf.env.states.clear()
        assert {live, total(chat.usage)} != {(100, 10, 140_000)}
