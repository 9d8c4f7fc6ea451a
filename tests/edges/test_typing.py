"""Options are typed: mypy accepts right calls and refuses a wrong name or type; Python refuses an unknown name."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_overloads, get_type_hints

import pytest

import holdfast
from holdfast.records.entries import Direction, Lifetime, Reducer, Tier

ROOT = Path(__file__).parent.parent.parent

CALLS = """
import holdfast
from holdfast import Limits, Settings
from holdfast.effects import EffectInfo
from holdfast.types import OperatorId, SessionId, WorkflowId


def sync(hf: holdfast.Holdfast) -> None:
    holdfast.open("a.db", durability="fast", settings=Settings(), redact=str.strip, prices={"m": {"input": 1}})
    holdfast.open("a.db", durable="fast")  # wrong
    holdfast.open("a.db", redact=3)  # wrong
    holdfast.open_store("memory:", most=3).close()
    holdfast.open_store("memory:", mots=3)  # wrong
    chat: holdfast.Session = hf.session("a", system="Be terse.", thread="side", create=False)
    hf.session("a", sytem="Be terse.")  # wrong
    hf.new_session(title=3)  # wrong
    chat.pack(4_000, max_messages=5, include=["h"]).to_openai()
    chat.pack(4_000, max_message=5)  # wrong
    chat.pack(4_000, layout=1)  # wrong
    chat.turn("Hi", key="k", if_busy="reject", loops=3, limits=Limits())
    chat.turn("Hi", if_buzy="reject")  # wrong
    chat.turn("Hi", tokens="many")  # wrong
    agent: holdfast.Agent[int] = hf.agent("a", model="openai:gpt-5-mini", output=int, loops=3)
    agent.name.upper()
    hf.agent("a", model="openai:gpt-5-mini", loop=3)  # wrong
    with hf.frame("goal") as frame:
        frame.pack(role="planner")
        frame.pack(rolle="planner")  # wrong
        frame.ask("Pay?", key="k", options=["yes", "no"]).approved
        frame.ask("Pay?", key="k", choices=["yes", "no"])  # wrong
        frame.suspend("Pay?", expires_ms="soon")  # wrong
    hf.index.assemble_context_pack("actor/main", budget_tokens=900, include_handles=["h"], query="x")
    hf.index.assemble_context_pack("actor/main", include=["h"])  # wrong


def tell_ids_apart(hf: holdfast.Holdfast, scope: holdfast.Scope, done: holdfast.Reply[str], effect: EffectInfo) -> None:
    session: SessionId | None = hf.session("plain text").id
    session = next(hf.sessions()).id
    session = done.session
    session = scope.get("session")
    operator: OperatorId | None = effect.operator
    operator = scope.get("operator")
    workflow: WorkflowId | None = scope.get("workflow")
    session = operator  # wrong
    operator = workflow  # wrong
    workflow = session  # wrong
    session = "plain text"  # wrong
    for id in (session, operator, workflow):
        if id is not None:
            hf.state(holdfast.Scope.session(id)).list(prefix=id.upper())


async def awaited(hf: holdfast.AsyncHoldfast) -> None:
    async with holdfast.open_async("a.db", durability="fast") as opened:
        await opened.usage()
    holdfast.open_async("a.db", durable="fast")  # wrong
    chat: holdfast.AsyncSession = await hf.session("a", model="gpt-5-mini")
    session: SessionId = chat.id
    await hf.session(session)
    await hf.session("a", modell="gpt-5-mini")  # wrong
    (await chat.pack(4_000, max_messages=5)).to_anthropic()
    await chat.pack(4_000, max_messages="five")  # wrong
    (await chat.append("Hi", policy="pinned")).text.upper()
    (await chat.append(["Hi"], key="k"))[0].text.upper()
    await chat.append("Hi", polisy="pinned")  # wrong
    await chat.append_result("call", 1, is_error="yes")  # wrong
    (await hf.index.push_frame("goal", scope="actor/main", tokens=5)).upper()
    await hf.index.push_frame("goal", scop="actor/main")  # wrong
    await hf.index.pop_frame(3)  # wrong
    (await hf.index.pop_frame("f")).text  # wrong
    async for one in hf.sessions(user="u"):
        one.id.upper()
    hf.sessions(usr="u")  # wrong
    await chat.packs.list(3)
    await chat.compaction.rules()
    await chat.details.status()
    chat.turn("Hi", if_buzy="reject")  # wrong
    async with hf.frame("goal") as frame:
        await frame.suspend("Pay?", kind="approval", token=True)
        await frame.suspend("Pay?", tokens=True)  # wrong
"""


def test_mypy_knows_every_option_and_its_type(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CALLS, encoding="utf-8")
    wrong = {number for number, line in enumerate(CALLS.splitlines(), 1) if line.endswith("# wrong")}
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {int(number) for number in re.findall(r"program\.py:(\d+): error", done.stdout)}
    assert found == wrong, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("open", lambda hf: holdfast.open("memory:", nonsense=1)),  # type: ignore[call-arg]
        ("open_async", lambda hf: holdfast.open_async("memory:", nonsense=1)),  # type: ignore[call-arg]
        ("open_store", lambda hf: holdfast.open_store("memory:", nonsense=1)),  # type: ignore[call-arg]
        ("open_store_async", lambda hf: holdfast.open_store_async("memory:", nonsense=1)),  # type: ignore[call-arg]
        ("session", lambda hf: hf.session("a", nonsense=1)),
        ("session", lambda hf: hf.new_session(nonsense=1)),
        ("pack", lambda hf: hf.session("a").pack(nonsense=1)),
        ("turn", lambda hf: hf.session("a").turn("Hi", nonsense=1)),
        ("agent", lambda hf: hf.agent("a", model="openai:gpt-5-mini", nonsense=1)),
        ("suspend_frame", lambda hf: hf.index.suspend_frame(hf.index.push_frame("x", scope="actor/main"), nonsense=1)),
        ("assemble_context_pack", lambda hf: in_a_frame(hf, lambda frame: assemble(hf, frame))),
        ("pack", lambda hf: in_a_frame(hf, lambda frame: frame.pack(nonsense=1))),
        ("suspend", lambda hf: in_a_frame(hf, lambda frame: frame.suspend("?", nonsense=1))),
        ("suspend", lambda hf: in_a_frame(hf, lambda frame: frame.ask("?", key="k", nonsense=1))),
    ],
)
def test_an_unknown_option_is_refused_by_name_with_those_there_are(name: str, make: Callable[[Any], Any]) -> None:
    with holdfast.open("memory:") as hf:
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'nonsense'. Its options"):
            make(hf)
        assert [event.type for event in hf.journal.events() if event.type == "frame.suspended"] == []


def test_the_asyncio_client_refuses_it_as_well() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            wrong: Any = {"nonsense": 1}
            with pytest.raises(TypeError, match="nonsense"):
                await hf.session("a", **wrong)
            chat = await hf.session("a")
            with pytest.raises(TypeError, match="nonsense"):
                await chat.pack(**wrong)
            with pytest.raises(TypeError, match="nonsense"):
                chat.turn("Hi", **wrong)

    asyncio.run(main())


def assemble(hf: Any, frame: Any) -> Any:
    """A pack at the low level, with an option that there is not."""
    return hf.index.assemble_context_pack(frame=frame.id, nonsense=1)


def in_a_frame(hf: Any, work: Callable[[Any], Any]) -> Any:
    """Something done in the block of a frame."""
    with hf.frame("goal") as frame:
        return work(frame)


@pytest.mark.parametrize("kind", [holdfast.State, holdfast.AsyncState])
def test_what_may_be_said_is_said_in_the_types(kind: Any) -> None:
    written, walked = get_type_hints(kind.write), get_type_hints(kind.traverse)
    assert (written["reducer"], written["tier"], written["lifetime"]) == (Reducer, Tier | None, Lifetime | None)
    assert walked["direction"] == get_type_hints(kind.neighbours)["direction"] == Direction
    read = [str(get_type_hints(one)["return"]) for one in get_overloads(kind.read)]
    assert read == ["typing.Optional[~T]", "typing.Union[~T, ~D]", "typing.Any"]
