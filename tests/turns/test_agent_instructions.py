"""What an agent's requests hold: its own instructions and tools, what the application gave, and no other agent's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast, Settings
from holdfast.core.journal import fold, project
from holdfast.flow.sessions import sessions
from holdfast.model.scripted import Scripted
from holdfast.runtime.tools.tool import tool
from tests.turns.agent_world import SESSION
from tests.turns.loops import check_whole

Told = tuple[str | None, list[str]]


@tool
def refund(order: int) -> str:
    """Pay an order back."""
    return "paid"


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture(params=["memory", "sqlite", "remembers nothing"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    settings = Settings(cached_streams=0) if request.param == "remembers nothing" else Settings()
    with holdfast.open(url, durability="fast", settings=settings) as client:
        yield client
        check_whole(client)


def told(hf: Holdfast, name: str = "a", *, session: str = SESSION, **made: Any) -> Told:
    """The system prompt and the tools' names in the request that an agent makes."""
    model = Scripted(["Hi."])
    agent: Any = hf.agent(name, model=model, **{"history": False, **made})
    agent.send(session, "Hello")
    pack = model.requests[-1].pack
    return pack.system, [one.name for one in pack.tools]


def test_an_agent_is_told_nothing_of_another_one_in_the_same_conversation(hf: Holdfast) -> None:
    assert told(hf, "a", system="You are A.", tools=[refund]) == ("You are A.", ["refund"])
    assert told(hf, "b") == (None, [])
    assert told(hf, "b", tools=[look]) == (None, ["look"])
    assert told(hf, "c", system="You are C.") == ("You are C.", [])
    assert told(hf, "a", system="You are A.", tools=[refund]) == ("You are A.", ["refund"])
    assert told(hf, "b") == (None, [])


def test_what_is_taken_out_of_an_agent_is_out_of_its_requests(hf: Holdfast) -> None:
    told(hf, system="Be terse.", tools=[refund, look])
    assert told(hf, system="Be terse.", tools=[look]) == ("Be terse.", ["look"])
    assert told(hf, tools=[look]) == (None, ["look"])
    assert told(hf) == (None, [])
    assert told(hf, history=True)[1], "these are its own"
    assert told(hf) == (None, [])


def test_what_the_application_gave_holds_for_agents_that_say_nothing_themselves(hf: Holdfast) -> None:
    hf.session(SESSION, system="Be kind.", title="Talk")
    assert told(hf, "a") == ("Be kind.", [])
    assert told(hf, "b", system="You are B.") == ("You are B.", [])
    assert hf.session(SESSION).details.system == "You are B."
    assert told(hf, "c", system="You are C.") == ("You are C.", [])
    assert told(hf, "a") == ("Be kind.", [])
    assert hf.session(SESSION).details.system == "Be kind."
    assert hf.session(SESSION).title == "Talk"


def test_what_the_application_gives_later_holds_as_well(hf: Holdfast) -> None:
    told(hf, "b", system="You are B.")
    hf.session(SESSION, system="Be kind.")
    assert told(hf, "a") == ("Be kind.", [])
    told(hf, "b", system="You are B.")
    hf.session(SESSION, system="You are B.")  # Word for word what an agent says: now it is the application's.
    assert told(hf, "a") == ("You are B.", [])


def test_tools_are_an_agents_own_whoever_gave_others(hf: Holdfast) -> None:
    hf.session(SESSION, tools=[refund.definition])
    hf.index.set_brief("global", "main", tools=[look.definition], invariants=["Stay polite."])
    assert told(hf) == ("What must always hold:\n- Stay polite.", [])
    assert told(hf, tools=[look])[1] == ["look"]


def test_what_the_application_gave_and_erased_does_not_come_back(hf: Holdfast) -> None:
    hf.as_user("bob").session(SESSION, system="Ask for Bob.")
    told(hf, "b", system="You are B.")
    hf.journal.erase("bob")
    assert told(hf, "a") == (None, [])
    hf.session(SESSION, system="Be kind.")
    assert told(hf, "a") == ("Be kind.", [])


def test_nothing_is_written_for_an_agent_that_is_told_the_same_again(hf: Holdfast) -> None:
    hf.session(SESSION, system="Be kind.")
    for made in ({}, {"system": "You are B.", "tools": [look]}):
        told(hf, **made)  # type: ignore[arg-type]
        before = len(list(hf.journal.events(f"session/{SESSION}")))
        told(hf, **made)  # type: ignore[arg-type]
        assert len(list(hf.journal.events(f"session/{SESSION}"))) == before


def test_rows_made_anew_say_the_same(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        hf.session(SESSION, system="Be kind.")
        told(hf, "b", system="You are B.")
        told(hf, "a")
        told(hf, "b", session="other", system="You are B.")
        told(hf, "a", session="other")
        hf.journal.rebuild()
        assert hf.session(SESSION).details.system == "Be kind."
        assert hf.session("other").details.system is None
        check_whole(hf)


# bugs that are planted


def leaves_it(*given: Any) -> dict[str, Any]:
    """None is taken for: as it was."""
    wanted = given[-1].system
    return {} if wanted is None else {"system": wanted}


def takes_all_for_agents(*given: Any) -> dict[str, Any]:
    """Nobody remembers what the application gave."""
    wanted = given[-1]
    return {"system": wanted.system or ""} if wanted.agent else {"system": wanted.system} if wanted.system else {}


def all_hold() -> None:
    """What is promised about prompts, in one conversation each."""
    with holdfast.open("memory:") as hf:
        test_an_agent_is_told_nothing_of_another_one_in_the_same_conversation(hf)
        check_whole(hf)
    with holdfast.open("memory:") as hf:
        test_what_the_application_gave_holds_for_agents_that_say_nothing_themselves(hf)
        check_whole(hf)


@pytest.mark.parametrize("bug", [leaves_it, takes_all_for_agents])
def test_a_prompt_that_is_left_or_lost_is_noticed(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_diff_prompt", bug)
    with pytest.raises(AssertionError):
        all_hold()


@pytest.mark.parametrize(("where", "name"), [(fold, "_settings_changes"), (project, "_setting_columns")])
def test_settings_that_are_not_given_back_are_noticed(where: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = getattr(where, name)

    def keeps(facts: Any, version: int) -> Any:
        return settings(replace(facts, own=None), version)

    monkeypatch.setattr(where, name, keeps)
    with pytest.raises(AssertionError):
        all_hold()
