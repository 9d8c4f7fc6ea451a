"""Whatever a pack gives away is the caller's to change: no other pack, and no request, is changed by that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import ContextPack, Corrupt, Holdfast, ToolDef
from holdfast.core.packs import assemble
from holdfast.core.wire import parts, tools
from holdfast.records.frames import Limits

WIDE = Limits(context_tokens=50_000)
BROKEN = (AssertionError, AttributeError, TypeError, KeyError, Corrupt)
"""What becomes of packs and requests whose data was spoiled."""


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, durability="fast") as client:
        yield client


def talk(hf: Holdfast) -> None:
    """A session whose packs hold every kind of data that can be changed."""
    schema = {"type": "object", "properties": {"q": {"type": "string", "enum": ["a", "b"]}}}
    hosted = {"type": "web_search_20250305", "name": "web", "filters": {"allowed": ["a"]}}
    custom = {"type": "custom", "custom": {"name": "free", "format": {"type": "text"}}}
    given = [ToolDef(name="look", parameters=schema, strict=True), hosted, custom]
    chat = hf.session("s", system="You are terse.", tools=given, model="gpt-4o")
    chat.packs.set_brief(working_context={"trip": {"nights": [1, 2]}}, invariants=["Be kind."])
    chat.append(
        {"role": "user", "content": [{"type": "text", "text": "Look.", "openai": {"x": {"y": [1]}}}, *pictures()]}
    )
    asked = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"q": "a"}'}}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s", "more": [{"a": 1}]}
    said = chat.append(holdfast.Message(role="assistant", content=[own("anthropic", thinking)]))
    assert said is not None
    made = chat.append({"role": "assistant", "content": None, "tool_calls": [asked]}).tool_calls[0]
    chat.append_result(made, [{"type": "text", "text": "found"}, *pictures()])
    chat.append([{"role": "user", "content": "Again."}, {"role": "assistant", "content": None, "tool_calls": [asked]}])
    chat.append_result(chat.messages(1)[0].tool_calls[0], {"rows": [{"n": 1}]})
    chat.append("And now?")


def own(provider: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "reasoning", "provider": provider, "item": item}


def pictures() -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}]


def reachable(value: Any, found: list[Any]) -> list[Any]:
    """Every list and mapping that a caller gets at."""
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict | list):
        found.append(value)
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            reachable(inner, found)
    return found


GIVEN = ("messages", "tools", "segments", "brief_context", "summaries", "conversation", "evidence", "metadata",
         "decisions", "breadcrumbs", "token_summary")  # fmt: skip


def spoil(pack: ContextPack, other: ContextPack) -> int:
    """Everything that can be changed of what a pack gives away is changed; gives how much that was."""
    requests = [pack.to_openai(), pack.to_responses(), pack.to_anthropic(), pack.to_anthropic(cache=False)]
    found: list[Any] = reachable([*requests, *(getattr(pack, name) for name in GIVEN), pack.diff(other)], [])
    for one in found:
        if isinstance(one, list):
            one[:] = ["spoiled"]
        else:
            one.clear()
            one["spoiled"] = True
    return len(found)


def check_nothing_is_spoiled(hf: Holdfast) -> None:
    talk(hf)
    chat = hf.session("s")
    with hf.frame("Work", session="s", limits=WIDE) as frame:
        frame.attach("document", handle="h", body="evidence")
        frame.attach("url", handle="bad", target="nowhere")
        first, small = frame.pack(20_000), frame.pack(20_000, min_compaction="critical")
        named, sent = first.digest, [first.to_openai(), first.to_responses(), first.to_anthropic()]
        made = hf.index.begin_model_call(frame.id, pack=frame.pack(20_000))
        shown = chat.pack(20_000)
        alone = shown.digest
        for pack, other in (
            (first, small),
            (shown, shown),
            (hf.index.pack_at(made), small),
            (first.load_files(), small),
        ):
            assert spoil(pack, other) > 100
        assert [first.to_openai(), first.to_responses(), first.to_anthropic()] == sent
        again = frame.pack(20_000)
        assert again.digest == named
        assert [again.to_openai(), again.to_responses(), again.to_anthropic()] == sent
        assert (chat.pack(20_000).digest, hf.index.pack_at(made).digest) == (alone, named)
        hf.index.end_model_call(frame.id, made, response="ok")


def test_whoever_changes_what_a_pack_gave_changes_no_pack(hf: Holdfast) -> None:
    check_nothing_is_spoiled(hf)


SHARED = {"parts": (parts, "copy_data"), "schemas": (tools, "copy_data"), "messages": (assemble, "copy_messages"),
          "data": (assemble, "copy_data")}  # fmt: skip


@pytest.mark.parametrize("what", SHARED)
def test_something_that_is_shared_is_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(*SHARED[what], lambda value: value)
    with holdfast.open("memory:") as hf, pytest.raises(BROKEN):
        check_nothing_is_spoiled(hf)


def test_what_holds_only_texts_is_given_as_it_is(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append(["One.", {"role": "assistant", "content": "Two."}, "Three."])
    pack = chat.pack()
    assert all(one is other for one, other in zip(pack.messages, pack.messages, strict=True))
    assert pack.to_openai()["messages"][-1] == {"role": "user", "content": "Three."}


def test_the_tools_for_an_agent_s_past_are_everybody_s_own(hf: Holdfast) -> None:
    chat = hf.session("s")
    mine = chat.packs.history_tools().definitions
    mine[0].parameters.clear()
    assert chat.packs.history_tools().definitions[0].parameters["type"] == "object"
