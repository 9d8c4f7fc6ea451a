"""Every operation on conversations gives the same through asyncio, and crosses into a thread once."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncSession, ContextPack, Session
from holdfast.aio.session_views import AsyncSessionCompaction, AsyncSessionDetails, AsyncSessionPacks
from holdfast.client.holdfast import Holdfast
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.sessions.looped import count, counted

Op = tuple[Any, str, tuple[Any, ...], dict[str, Any]]

REPLY = {
    "object": "chat.completion",
    "model": "gpt-5-mini",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"order": 17}'}},
                    {"id": "c2", "type": "function", "function": {"name": "find", "arguments": '{"order": 18}'}},
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
WIRE = [{"role": "user", "content": "from elsewhere"}, {"role": "tool", "tool_call_id": "nobody", "content": "torn"}]


class Taking:
    """A memory that notes what it took."""

    def __init__(self) -> None:
        self.took: list[Any] = []

    def take(self, ended: holdfast.types.EndedConversation) -> None:
        self.took.append((ended.session, ended.cause, [one.text for one in ended.messages()]))


def _story(hf: Any) -> Generator[Op, Any, None]:
    """Every operation on conversations at least once, each with what the ones before gave."""

    def op(target: Any, name: str, *args: Any, **kwargs: Any) -> Op:
        return target, name, args, kwargs

    chat = yield op(hf, "session", "alice", system="Be terse.", tools=[TOOL], title="Refund", metadata={"n": 1})
    yield op(hf, "session", "nobody", create=False)
    yield op(chat, "append", "Refund order 17", key="k")
    yield op(chat, "append", "Refund order 17", key="k")
    said = yield op(chat, "append", REPLY)
    yield op(chat, "append_result", said.tool_calls[0], {"found": True})
    yield op(chat.details, "open_calls")
    yield op(chat, "append_result", "c2", "no such order", is_error=True)
    yield op(chat, "append_result", "never", "called")
    sent = yield op(chat, "append", "see", files=[("a.png", b"\x89PNG"), ("a.txt", b"text")])
    several = yield op(chat, "append", ["one", {"role": "assistant", "content": "two"}, "three"])
    for name in ("model", "title", "usage", "length", "id", "packs", "compaction", "details"):
        yield op(chat, name)
    for name in ("status", "system", "metadata", "tools", "threads"):
        yield op(chat.details, name)
    yield op(chat, "messages", 3, before=several[-1])
    yield op(chat, "__iter__")
    yield op(chat, "search", "refund of an order", limit=3)
    yield op(chat, "search", "refund", limit=0)
    yield op(chat, "pin", sent)
    yield op(chat, "pack")
    yield op(chat, "pack", 6000, max_messages=4)
    yield op(chat, "pack", 1)
    yield op(chat.packs, "set_brief", "planner", system_prompt="Plan only.", key="b")
    yield op(chat.packs, "brief", "planner")
    packed = yield op(chat, "pack", 6000)
    call = yield op(chat.packs, "begin_model_call", packed, key="c")
    yield op(chat, "pack_at", call)
    yield op(chat, "pack_at", "nothing")
    yield op(chat.packs, "list")
    yield op(chat.packs, "list", -1)
    yield op(chat, "why", "order 17")
    yield op(chat, "why", "never said")
    yield op(chat, "why", "")
    yield op(chat.packs, "history_tools", max_tokens=300)
    yield op(chat, "compact", 0, max_tokens=0)
    summary = yield op(chat, "compact", 2)
    yield op(chat, "compact", 2)
    yield op(chat, "compact", -1)
    yield op(chat, "compact", summarizer=3)
    yield op(chat, "compact", 1, strategy="sliding_window", store=True)
    yield op(chat, "compact", strategy="sliding_window", summarizer=3)
    yield op(chat, "compact", strategy="by magic")
    yield op(chat.compaction, "add_rule", "by magic")
    yield op(chat.compaction, "rules")
    yield op(chat.compaction, "summaries")
    yield op(chat.compaction, "expand", summary)
    yield op(chat, "unpin", sent)
    branch = yield op(chat, "fork", several[0], thread="other")
    yield op(branch, "thread")
    yield op(branch, "append", "elsewhere")
    yield op(branch, "__iter__")
    yield op(chat, "rewind", to=several[0], reason="again")
    yield op(chat, "rewind")
    yield op(chat, "import_messages", WIRE, strict=True)
    yield op(chat, "import_messages", WIRE)
    for form in ("openai", "responses", "anthropic", "jsonl", "carrier pigeon"):
        yield op(chat, "export", form)
    fresh = yield op(hf, "new_session", model="gpt-5-mini")
    yield op(fresh, "append", "hello")
    for order in ("activity", "title", "cost", "mood"):
        yield op(hf, "sessions", order=order, limit=5)
    yield op(fresh, "stop")
    turn = yield op(fresh, "turn", "go on", key="t")
    yield op(fresh, "turn", "go on", if_busy="sometimes")
    yield op(turn, "__enter__")
    (step,) = yield op(turn, "steps")
    yield op(step, "done", REPLY)
    first, second = yield op(turn, "steps")
    yield op(first, "done", {"found": True})
    yield op(second, "ask", "May it?")
    yield op(turn, "steps")
    yield op(fresh, "stop", "enough")
    yield op(turn, "steps")
    yield op(turn, "__exit__", None, None, None)
    yield op(fresh, "__iter__")
    yield op(chat, "reset")
    yield op(chat, "__iter__")
    yield op(chat, "append", "anew")
    yield op(chat, "close")
    yield op(chat, "close")
    yield op(chat, "append", "too late")
    yield op(hf, "sweep_sessions")


async def _tell(target: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What a member of either side gives, or the error that it raises."""
    try:
        if name in ("__iter__", "length") and isinstance(target, Session):
            return list(target) if name == "__iter__" else len(target)
        if not hasattr(target, name):
            name = name.replace("__", "__a", 1)
        member = getattr(target, name)
        made = member(*args, **kwargs) if callable(member) else member
        if isinstance(made, AsyncIterator):
            return [item async for item in made]
        return await made if inspect.isawaitable(made) else list(made) if isinstance(made, Iterator) else made
    except holdfast.HoldfastError as error:
        return error


def _comparable(value: Any) -> str:
    if isinstance(value, ContextPack):
        value = value, value.messages, value.to_openai(), value.to_responses(), value.to_anthropic()
    # Artifacts and fences are named with a secret that every journal has of its own.
    plain = re.sub("[0-9a-f]{64}", "artifact", re.sub("data [0-9]{9}", "data", repr(value)))
    return re.sub(r"Async(Session\w*|HistoryTools|Turn)\(", r"\1(", plain)


async def _told(hf: Any, crossings: Callable[[], int]) -> list[Any]:
    story, told, sent = _story(hf), [], None
    while True:
        try:
            target, name, args, kwargs = story.send(sent)
        except StopIteration:
            return told
        before = crossings()
        sent = await _tell(target, name, args, kwargs)
        told.append((name, crossings() - before, _comparable(sent)))


@pytest.mark.parametrize("url", ["memory:", "a.db"])
@pytest.mark.filterwarnings("ignore:Holdfast waits for the disk")
def test_every_operation_gives_the_same_and_crosses_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ambient(name: str) -> tuple[Any, dict[str, Any]]:
        clock = FrozenClock()
        (tmp_path / name).mkdir()
        beside = {"clock": clock, "ids": SeededIds(clock), "tokenizer": count, "memory": Taking()}
        return url if url == "memory:" else tmp_path / name / url, beside

    async def main() -> None:
        place, beside = ambient("sync")
        with holdfast.open(place, **beside) as hf:
            expected = await _told(hf, lambda: 1)
        place, same = ambient("async")
        async with holdfast.open_async(place, **same) as other:
            told = await _told(other, counted(other._threads, monkeypatch))
            assert (await other.journal.verify()).ok
        for (name, _, one), (_, _, async_one) in zip(expected, told, strict=True):
            assert one == async_one, name
        assert same["memory"].took == beside["memory"].took
        assert len(same["memory"].took) == 2
        once = {"id", "thread", "turn", "packs", "compaction", "details"}
        # A list that is refused is refused before anything is read.
        seldom = {"compact", "sessions", "__exit__", *once}
        assert {crossed for name, crossed, _ in told if name not in seldom} == {1}
        assert {crossed for name, crossed, _ in told if name == "sessions"} == {0, 1}
        # A turn that has ended is left without writing anything.
        assert {crossed for name, crossed, _ in told if name in {"__exit__", *once}} == {0}
        kinds = (AsyncSession, AsyncSessionPacks, AsyncSessionCompaction, AsyncSessionDetails)
        everything = {name for kind in kinds for name in dir(kind) if not name.startswith("_")}
        everything |= {name for name in dir(Holdfast) if "session" in name}
        of_turns = {"__enter__", "steps", "done", "ask", "__exit__"}
        assert {name for name, _, _ in told} - {"__iter__"} - of_turns == everything

    asyncio.run(main())
