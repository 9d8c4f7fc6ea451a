"""Tools for an agent in use: whatever a model writes gets an answer, and a fact that was cut is found."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Holdfast
from holdfast.aio.frame import AsyncHistoryTools
from holdfast.client.history_tools import MIN_TOKENS, HistoryTools
from holdfast.core.packs.history_tools import HISTORY_TOOLS
from holdfast.errors import Closed, InvalidValue, NotFound, SessionNotFound
from tests.model_server import ModelServer, model_server
from tests.packs.history_kit import by_fours, name_of, texts, tools_of
from tests.scale import volume


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, durability="fast", tokenizer=by_fours) as client:
        yield client


GARBAGE = (
    "",
    " ",
    "{",
    "null",
    "[]",
    "57",
    '"m57"',
    "{}",
    '{"handle": null}',
    '{"handle": ""}',
    '{"handle": "m99999999999999999999999999"}',
    '{"handle": "m2", "offset": "many"}',
    '{"handle": "m2", "offset": -5}',
    '{"handle": "m2", "offset": 1e400}',
    '{"handle": "m2", "offset": 99999999999999999999}',
    '{"query": ""}',
    '{"query": "   "}',
    '{"query": ["a"]}',
    '{"query": "x", "limit": 0}',
    '{"query": "x", "limit": 1000000}',
    '{"query": "\\ud800\\u0000 OR \\" NEAR( *"}',
    '{"handle": "../../etc/passwd"}',
    '{"handle": "\\ud800\\u0000"}',
    "[" * 10_000,
    '{"handle": "' + "x" * 100_000 + '"}',
)


@pytest.mark.parametrize("name", ["expand", "search_history", "Expand", "", "rm -rf", "x" * 500])
def test_whatever_a_model_writes_it_gets_a_short_answer(hf: Holdfast, name: str) -> None:
    chat = hf.session("s")
    chat.append("hello")
    with hf.frame("work") as frame:
        for tools in (tools_of(chat), HistoryTools(hf.env, f"frame/{frame.id}", frame=frame.id)):
            for arguments in GARBAGE:
                answer = tools.run(name, arguments)
                assert 10 < len(answer) < 600, (arguments[:60], answer)
            for odd in ({"handle": 1.5, "query": object()}, {"handle": 10**5_000}, {"handle": True}):
                assert tools.run(name, odd)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=volume(100, 3_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(["expand", "search_history"]), JSON, JSON, st.text(max_size=30))
def test_no_arguments_make_a_tool_raise(name: str, first: Any, second: Any, text: str) -> None:
    with holdfast.open("memory:", tokenizer=len) as client:
        chat = client.session("s")
        chat.append("hello")
        tools = tools_of(chat)
        keys = ("handle", "offset") if name == "expand" else ("query", "limit")
        for arguments in (dict(zip(keys, (first, second), strict=True)), first, text, dict.fromkeys(keys, text)):
            assert tools.run(name, arguments)


def test_an_answer_says_what_to_do_instead(hf: Holdfast) -> None:
    chat = hf.session("s")
    said = chat.append("hello")
    tools = tools_of(chat)
    for arguments, words in {
        '{"handle": "m99"}': "search_history",
        "nonsense": "Write an object such as",
        '{"query": "m1"}': "expand needs handle",
        f'{{"handle": "{name_of(said)}", "offset": 900}}': "has 5 characters",
    }.items():
        assert words in tools.run("expand", arguments)
    assert "Give a few words" in tools.run("search_history", '{"query": ""}')
    assert "Try other words" in tools.run("search_history", '{"query": "zebra"}')
    assert "expand and search_history" in tools.run("recall", "{}")


def test_what_the_application_did_wrong_is_raised(tmp_path: Path) -> None:
    client = holdfast.open(str(tmp_path / "a.db"))
    chat = client.session("s")
    said = chat.append("hello")
    frame = client.index.push_frame("work", scope="actor/main")
    inside = HistoryTools(client.env, f"frame/{frame}", frame=frame)
    with pytest.raises(SessionNotFound):
        HistoryTools(client.env, "session/none/thread/main").run("expand", {"handle": "m1"})
    with pytest.raises(NotFound):
        HistoryTools(client.env, "frame/x", frame="0" * 26).run("expand", {"handle": "m1"})
    for wrong in (0, MIN_TOKENS - 1, True, "2000", None):
        with pytest.raises(InvalidValue, match="max_tokens"):
            tools_of(chat, max_tokens=wrong)
    client.close()
    for tools in (tools_of(chat), inside):
        with pytest.raises(Closed):
            tools.run("expand", {"handle": name_of(said)})
        with pytest.raises(Closed):
            tools.run("search_history", {"query": "hello"})


def test_the_same_for_asyncio(tmp_path: Path) -> None:
    async def main() -> tuple[str, str]:
        async with await holdfast.open_async(str(tmp_path / "a.db")) as client:
            chat = await client.session("s")
            said = await chat.append("the ferry leaves at nine")
            tools = AsyncHistoryTools(tools_of(chat._sync), chat._threads)
            assert [tool.name for tool in tools.definitions] == sorted(tools.names)
            found = await asyncio.gather(
                tools.run("expand", {"handle": name_of(said)}), tools.run("search_history", '{"query": "ferry"}')
            )
        return found[0], found[1]

    read, found = asyncio.run(main())
    assert texts(read) == ["the ferry leaves at nine"]
    assert "the ferry leaves at nine" in found


class Thinking(list[Any]):
    """A script that decides what to say from what it was really sent."""

    def __init__(self, model: ModelServer) -> None:
        super().__init__()
        self._model = model

    def __bool__(self) -> bool:
        return True

    def pop(self, _: Any = 0) -> Any:
        request = self._model.requests[-1]
        offered = {tool["function"]["name"] for tool in request["tools"]}
        assert offered >= {"expand", "search_history"}
        last = request["messages"][-1]
        if last["role"] == "user":
            seen = re.search(r"PIN (\d{4})", str(request["messages"]))
            arguments = {"query": "locker at the station", "limit": None}
            return f"It is {seen[1]}." if seen else [{"name": "search_history", "arguments": arguments}]
        handle = re.search(r"(?m)^(m\d+) \(user.*locker", last["content"])
        if handle is not None:
            return [{"name": "expand", "arguments": {"handle": handle[1], "offset": None}}]
        seen = re.search(r"PIN (\d{4})", last["content"])
        return f"It is {seen[1]}." if seen else "I do not know."


def test_an_agent_finds_a_fact_that_its_pack_no_longer_shows(tmp_path: Path) -> None:
    fact = "I left my bag in a locker at the station." + " It was a long day with many trains." * 12 + " PIN 7719."
    talk = "Some small talk, number {n}, about the weather and about nothing that matters to anybody else today."
    with holdfast.open(str(tmp_path / "a.db")) as client, model_server() as server:
        server.script = Thinking(server)
        model = openai.OpenAI(base_url=server.url, api_key="none")
        chat = client.session("s", model="gpt-4o-mini", tools=HISTORY_TOOLS)
        chat.append(fact)
        for n in range(60):
            chat.append({"role": "assistant" if n % 2 else "user", "content": talk.format(n=n)})
        tools = tools_of(chat)
        chat.append("What is the number for my bag?")
        assert "7719" not in json.dumps(chat.pack(budget=1_500).to_openai())
        asked = []
        for _ in range(5):
            said = chat.append(model.chat.completions.create(model=chat.model, **chat.pack(budget=1_500).to_openai()))
            if not said.tool_calls:
                break
            for call in said.tool_calls:
                assert call.name in tools.names
                asked.append(call.name)
                chat.append_result(call, tools.run(call.name, call.arguments))
        model.close()
        assert asked == ["search_history", "expand"]
        assert said.text == "It is 7719."
        assert server.problems == []
