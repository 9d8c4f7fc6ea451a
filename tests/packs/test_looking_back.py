"""Searching one's own past finds what was said, not that it was looked for; and whatever is found shows some words."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Message, Scripted, Session
from holdfast.flow.packs.expand import LookupFilter
from tests.packs.history_kit import by_fours, name_of, tools_of
from tests.scale import seeded, volume

LINE = re.compile(r"^(m\d+) \(([a-z ]+), [^)]*\): ?(.*)$", re.MULTILINE)
NOTHING = "Nothing in this conversation matches"


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, durability="fast", tokenizer=by_fours) as client:
        yield client


def asks(chat: Session, *calls: tuple[str, Any], text: str | None = None) -> Message:
    """An assistant's message that calls tools."""
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    made = [{"id": f"c{n}", "type": "function", "function": one} for n, one in enumerate(functions)]
    return chat.append({"role": "assistant", "content": text, "tool_calls": made})


def looks(chat: Session, name: str = "search_history", **arguments: Any) -> str:
    """A use of one of the tools, as a loop writes it into the conversation."""
    said = asks(chat, (name, arguments))
    answer = tools_of(chat).run(name, arguments)
    chat.append_result(said.tool_calls[0], answer)
    return answer


def found(chat: Session, query: str, limit: int = 20) -> dict[str, str]:
    """The excerpts of a search by the names of their messages."""
    answer = tools_of(chat).run("search_history", {"query": query, "limit": limit})
    return {name: words for name, _, words in LINE.findall(answer)}


def test_an_agent_does_not_find_that_it_searched_before(hf: Holdfast) -> None:
    hf.session("s").append("Hello there.")
    search = {"name": "search_history", "arguments": {"query": "zebra passport"}}
    agent: Any = hf.agent("a", model=Scripted([search, search, search, "No idea."]))
    assert agent.send("s", "What is on my list?").text == "No idea."
    results = [one.result for message in hf.session("s").messages() for one in message.tool_results]
    assert len(results) == 3
    assert all(NOTHING in result for result in results)


def test_the_call_that_is_being_answered_is_not_found(hf: Holdfast) -> None:
    chat = hf.session("s")
    said = chat.append("The ferry leaves at nine.")
    asks(chat, ("search_history", {"query": "ferry"}), ("expand", {"handle": name_of(said)}))
    assert found(chat, "ferry") == {name_of(said): "The ferry leaves at nine."}


def test_what_an_assistant_says_beside_its_search_is_found(hf: Holdfast) -> None:
    chat = hf.session("s")
    said = asks(chat, ("search_history", {"query": "locker"}), text="I look for the amber locker.")
    asks(chat, ("search_history", {"query": "locker"}), text="  ")
    assert found(chat, "amber") == {name_of(said): "I look for the amber locker."}


def test_calls_of_other_tools_are_told_in_words(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append("Is there a ferry to Lewis?")
    said = asks(chat, ("timetable", {"port": "Ullapool"}), ("search_history", {"query": "ports"}))
    for call, result in zip(said.tool_calls, ("At nine.", "Nothing."), strict=True):
        chat.append_result(call, result)
    assert found(chat, "ferry")[name_of(said)] == 'timetable({"port": "Ullapool"})'
    (told,) = [one.snippet for one in chat.search("ferry") if one.key == said.id]
    assert told.startswith('timetable({"port": "Ullapool"})')


def test_images_and_messages_without_words_have_an_excerpt(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append("Here is the amber plan.")
    plan = chat.append("", files=[("plan.png", b"\x89PNG")])
    blank = chat.append("   ")
    excerpts = found(chat, "amber plan")
    assert excerpts[name_of(plan)].startswith("[")
    assert excerpts[name_of(blank)] == "(no words)"


def test_many_searches_do_not_stand_in_the_way_of_what_was_said(hf: Holdfast) -> None:
    chat = hf.session("s")
    said = chat.append("The locker has the number 7719.")
    for _ in range(12):
        looks(chat, query="locker number")
        looks(chat, "expand", handle=name_of(said))
    assert list(found(chat, "locker number", limit=1)) == [name_of(said)]
    assert list(found(chat, "locker number")) == [name_of(said)]


def test_in_a_frame_it_is_the_same(hf: Holdfast) -> None:
    with hf.frame("plan") as frame:
        said = frame.append("The ferry leaves at nine.")
        call = {"name": "search_history", "arguments": '{"query": "ferry"}'}
        frame.append({"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]})
        answer = frame.history_tools().run("search_history", {"query": "ferry"})
        assert [name for name, _, _ in LINE.findall(answer)] == [name_of(said)]


# Looking changes nothing


def says(chat: Session, chance: random.Random) -> None:
    """Something of any kind."""
    words = " ".join(chance.choices(["amber", "birch", "cedar", "delta", "ember", "fjord"], k=chance.randrange(1, 12)))
    if chance.random() < 0.3:
        call = asks(chat, ("look", {"at": words}), text=chance.choice([None, words])).tool_calls[0]
        chat.append_result(call, chance.choice([words, {"seen": words}, ""]))
    elif chance.random() < 0.3:
        looks(chat, query=words)
    else:
        chat.append({"role": chance.choice(["user", "assistant"]), "content": words})


def check_looking_changes_nothing(hf: Holdfast, chance: random.Random, times: int) -> None:
    for number in range(times):
        chat = hf.session(f"s{number}")
        for _ in range(chance.randrange(1, 5)):
            says(chat, chance)
        known = found(chat, "amber fjord")
        assert all(known.values()), known
        for _ in range(chance.randrange(1, 4)):
            looks(chat, query=chance.choice(["amber fjord", "cedar", "nothing of this"]))
        assert found(chat, "amber fjord") == known


def test_looking_changes_nothing_that_is_found(hf: Holdfast) -> None:
    check_looking_changes_nothing(hf, seeded("looking"), volume(15, 1_000))


@pytest.mark.parametrize("part", ["is_only_lookup", "_has_only_calls", "_round_calls"])
def test_searches_that_are_found_would_be_seen(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = frozenset() if part == "_round_calls" else False
    monkeypatch.setattr(LookupFilter, part, lambda *given: nothing)
    with holdfast.open("memory:", tokenizer=by_fours) as hf, pytest.raises(AssertionError):
        check_looking_changes_nothing(hf, random.Random(1), 60)
