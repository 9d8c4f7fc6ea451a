"""Who begins a turn owns all that it causes, whichever process finishes it, and is erased with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, Holdfast, Scripted, tool
from holdfast.flow.turns import turns
from holdfast.records.reports import EventQuery
from tests.turns.agent_world import call, until_async
from tests.turns.test_recovering import left, looked, two_clients

WORDS = [f"canary{number};" for number in range(8)]


@tool
def look(order: str) -> str:
    return f"{order} belongs to {WORDS[3]}"


def on_disk(folder: Path) -> set[str]:
    data = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    return {word for word in WORDS if word.encode() in data}


def owners(hf: Holdfast, session: str = "s") -> list[str | None]:
    """The owner of each message, by name."""
    journal, tenant = hf.env.journal, hf.env.tenant
    names = {one.id: one.name for one in journal.subjects(tenant)}
    stream = f"session/{session}/thread/main"
    events = journal.read(EventQuery(tenant=tenant, stream=stream, types=("message.appended",), limit=100))
    return [None if event.subject is None else names[event.subject] for event in events]


def replies() -> Scripted:
    return Scripted([call("look", order=WORDS[1]), f"It is {WORDS[2]}"])


async def _recovered(path: Path) -> None:
    async with two_clients(path / "a.db") as (one, other):
        await left(one.as_user("ann"), text=f"Hello {WORDS[0]}")
        one._sync.env.leases.close()  # No more signs of life, as if its machine had gone.
        async with other.agent("a", model=replies(), tools=[look]).recovering(every=0.02) as recovering:
            await until_async(lambda: recovering.taken_up == 1)
        assert on_disk(path) == set(WORDS[:4])
        await other.journal.erase("ann")


def test_a_turn_that_another_client_recovered_is_erased_with_whoever_began_it(tmp_path: Path) -> None:
    asyncio.run(_recovered(tmp_path))
    assert on_disk(tmp_path) == set()


@pytest.fixture(params=["memory:", "a.db"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param if request.param == "memory:" else tmp_path / request.param


def test_a_turn_that_is_resumed_belongs_to_whoever_began_it(url: Any) -> None:
    async def test() -> None:
        async with holdfast.open_async(url) as hf:
            for number, finisher in enumerate((hf, hf.as_user("ben"))):
                name = f"s{number}"
                await left(hf.as_user("ann"), name)
                agent = finisher.agent("a", model=replies(), tools=[look])
                assert await looked(agent, agent.recovering()) == 1
                assert owners(hf._sync, name) == ["ann"] * 4

    asyncio.run(test())


def test_a_session_opened_by_a_user_owns_what_its_agents_say(url: Any) -> None:
    with holdfast.open(url) as hf:
        hf.as_user("ann").session("s")
        agent = hf.agent("a", model=replies(), tools=[look])
        agent.send("s", "Hello")
        assert owners(hf) == ["ann"] * 4
        with hf.session("s").turn("And now?") as turn:
            for step in turn:
                if isinstance(step, CallModel):
                    step.done({"role": "assistant", "content": "Nothing."})
        assert owners(hf)[4:] == ["ann"] * 2
        hf.journal.erase("ann")
        hf.agent("a", model=Scripted(["Yes."])).send("s", "Are you there?")
        assert owners(hf)[-2:] == [None] * 2, "an erased name does not come back"


def test_who_speaks_owns_their_turn_in_a_session_that_somebody_else_opened(url: Any) -> None:
    with holdfast.open(url) as hf:
        hf.as_user("ann").session("s")
        agent = hf.agent("a", model=Scripted(["Hello, Ben.", "Hello, Cleo."]))
        agent.as_user("ben").send("s", "Hello")
        assert owners(hf) == ["ben"] * 2
        hf.tenant("acme").agent("a", model=Scripted(["Hi."])).as_user("dan").send("s", "Hello")
        assert owners(hf.tenant("acme")) == ["dan"] * 2


def test_an_agent_acts_for_a_user(url: Any) -> None:
    async def test() -> None:
        async with holdfast.open_async(url) as hf:
            agent = hf.agent("a", model=Scripted(["Hello.", "Good day."]))
            await agent.as_user("ann").send("s", "Hi")
            await agent.send("t", "Good day")
            assert (owners(hf._sync), owners(hf._sync, "t")) == (["ann"] * 2, [None] * 2)

    asyncio.run(test())


def test_a_turn_that_forgets_who_began_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(turns, "act_for_turn", lambda env, place: env)
    asyncio.run(_recovered(tmp_path))
    assert on_disk(tmp_path) == set(WORDS[1:4])


def test_a_turn_that_forgets_whose_session_it_is_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "act_for_session", lambda env, thread: env)
    with pytest.raises(AssertionError):
        test_a_session_opened_by_a_user_owns_what_its_agents_say("memory:")
