"""Conversations in and out: equal up to the documented normalisation, repaired only where they were broken."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Message, ToolCallRequest, ToolCallResult
from holdfast.core.wire.jsonl import write_lines
from holdfast.errors import InvalidMessage
from tests.backends import IN_MEMORY
from tests.scale import volume
from tests.sessions.generated import airline, calls
from tests.sessions.provider_rules import anthropic_problems

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tau-bench" / "airline-even-tasks.json"
BROKEN = [
    {"role": "user", "content": "hi"},
    {"role": "tool", "tool_call_id": "nobody", "content": "orphan"},
    {"role": "wizard", "content": "what?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}},
            {"id": "c2", "type": "function", "function": {"name": "find", "arguments": "{}"}},
        ],
    },
    {"role": "user", "content": "a note in between"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "tool", "tool_call_id": "c2", "content": "two again"},
    {"role": "assistant", "content": "done"},
]


def conversations() -> list[list[dict[str, Any]]]:
    """Real ones where they are at hand, else such as they are."""
    if DATA.exists():
        return [task["traj"] for task in json.loads(DATA.read_text())]
    return [airline(Random(seed), turns=6) for seed in range(volume(20, 100))]


def test_real_conversations_come_back_equal_and_unrepaired(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        for number, given in enumerate(conversations()):
            chat = hf.session(f"s{number}")
            report = chat.import_messages(given)
            assert report.repairs == ()
            assert chat.export()["messages"] == given
        assert hf.journal.verify().findings == ()


def test_real_conversations_survive_the_other_forms(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        for number, given in enumerate(conversations()[:: volume(10, 1)]):
            chat = hf.session(f"s{number}")
            chat.import_messages(given)
            for form in ("jsonl", "responses", "anthropic"):
                again = hf.session(f"s{number}-{form}")
                report = again.import_messages(chat.export(form), form)
                assert report.repairs == ()
                assert [(m.role, m.text) for m in again] == [(m.role, m.text) for m in chat]
                assert again.details.system == chat.details.system
            assert anthropic_problems(chat.pack().to_anthropic()) == []


def test_a_broken_list_is_repaired_and_every_repair_is_reported(hf: Holdfast) -> None:
    chat = hf.session("alice")
    report = chat.import_messages(BROKEN)
    assert sorted({repair.problem for repair in report.repairs}) == [
        "duplicate_result",
        "misplaced_result",
        "missing_result",
        "orphan_result",
        "unknown_role",
    ]
    assert [message.role for message in chat] == ["user", "user", "assistant", "tool", "tool", "user", "assistant"]
    assert all(repair.done for repair in report.repairs)
    assert [repair.index for repair in report.repairs] == sorted(repair.index for repair in report.repairs)
    left_out = hf.session("bob").import_messages([{"role": "user"}, "nonsense", *BROKEN])
    orphan = next(repair for repair in left_out.repairs if repair.problem == "orphan_result")
    assert orphan.index == 3, "counted in the list that was given"


def test_strict_refuses_a_broken_list_and_writes_nothing(hf: Holdfast) -> None:
    chat = hf.session("alice")
    before = hf.journal.position()
    with pytest.raises(InvalidMessage, match="broken in"):
        chat.import_messages(BROKEN, strict=True)
    assert hf.journal.position() == before
    chat.import_messages(BROKEN[:1], strict=True)
    assert len(chat) == 1


def test_the_system_prompt_and_tools_of_a_request_become_the_sessions(hf: Holdfast) -> None:
    request = {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}],
    }
    chat = hf.session("alice")
    chat.import_messages(request)
    assert (chat.details.system, chat.model, [tool.name for tool in chat.details.tools]) == (
        "Be terse.",
        "gpt-4o",
        ["find"],
    )
    assert chat.export()["messages"] == request["messages"]
    kept = hf.session("bob", system="Mine.")
    kept.import_messages(request)
    assert kept.details.system == "Mine."
    assert len(kept) == 2, "a system prompt that cannot be the session's stays a message"


def test_an_import_is_one_commit_and_with_a_key_one_effect(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.import_messages(BROKEN, key="once")
    before = hf.journal.position()
    chat.import_messages(BROKEN, key="once")
    assert hf.journal.position() == before


@pytest.mark.parametrize("form", ["openai", "responses", "anthropic", "jsonl"])
@pytest.mark.parametrize("garbage", [None, 5, "nonsense", [5], [None], [[]], {"messages": 7}, {}])
@IN_MEMORY
def test_garbage_is_refused_or_reported_never_a_traceback(hf: Holdfast, form: str, garbage: Any) -> None:
    chat = hf.session("alice")
    with contextlib.suppress(holdfast.Refused):
        chat.import_messages(garbage, form)
    with pytest.raises(holdfast.errors.InvalidValue, match="is not a format"):
        chat.import_messages([], "xml")
    with pytest.raises(holdfast.errors.InvalidValue, match="is not a format"):
        chat.export("xml")


def test_files_and_everything_else_survive_json_lines(hf: Holdfast) -> None:
    chat = hf.session("alice", system="Be terse.", model="gpt-4o")
    chat.append("look", files=[("cat.png", b"\x89PNG"), ("notes.txt", b"milk")])
    chat.append("cut o", partial=True)
    again = hf.session("bob")
    again.import_messages(chat.export("jsonl"), "jsonl")
    assert [(m.role, m.content, m.partial) for m in again] == [(m.role, m.content, m.partial) for m in chat]
    assert again.model == "gpt-4o"


def pairs(chat: holdfast.Session) -> dict[str, Any]:
    made = {call.id: call.args["city"] for message in chat for call in message.tool_calls}
    return {made[one.tool_call_id]: one.result for message in chat for one in message.tool_results}


@pytest.mark.parametrize("form", ["jsonl", "openai", "responses", "anthropic"])
def test_results_of_calls_with_one_id_stay_with_their_calls_through_export_and_import(hf: Holdfast, form: str) -> None:
    chat, again = hf.session("a"), hf.session("b")
    made = chat.append(calls("Rome", "Oslo")).tool_calls
    chat.append_result(made[1].id, "snow in Oslo")
    chat.append_result(made[0], "sun in Rome")
    assert again.import_messages(chat.export(form), form).messages >= 2
    assert pairs(again) == pairs(chat) == {"Rome": "sun in Rome", "Oslo": "snow in Oslo"}


def test_an_erased_conversation_can_be_imported_again(hf: Holdfast) -> None:
    chat = hf.as_user("ann").session("a")
    chat.append_result(chat.append(calls("Rome")).tool_calls[0].id, "sun")
    hf.journal.erase("ann")
    assert hf.session("b").import_messages(chat.export("jsonl"), "jsonl").messages == 2


def test_parallel_calls_without_ids_are_paired_by_position(hf: Holdfast) -> None:
    made = tuple(ToolCallRequest(name="weather", arguments=f'{{"city": "{city}"}}') for city in ("Rome", "Oslo"))
    results = [Message(role="tool", tool_results=(ToolCallResult(result=text),)) for text in ("sun", "snow")]
    chat = hf.session("a")
    lines = [Message(role="assistant", tool_calls=made), *results]
    chat.import_messages(list(write_lines(lines)), "jsonl")
    assert pairs(chat) == {"Rome": "sun", "Oslo": "snow"}


def test_a_keyed_import_is_one_effect_whatever_the_session_is_told_meanwhile() -> None:
    given = [{"role": "system", "content": "Ask ann@x"}, {"role": "user", "content": "hi"}]
    with holdfast.open("memory:", redact=lambda text: text.replace("ann@x", "[mail]")) as hf:
        chat = hf.session("a")
        chat.import_messages(given, key="k")
        assert chat.import_messages(given, key="k").repeated
        hf.session("a", system="Other.")
        assert chat.import_messages(given, key="k").repeated
        assert len(chat) == 1


def test_what_a_provider_does_not_know_is_kept_for_export_and_not_sent(hf: Holdfast) -> None:
    chat = hf.session("a")
    given = {"role": "user", "content": "hi", "timestamp": 123, "id": "m1"}
    chat.append(given)
    assert chat.pack().to_openai()["messages"] == [{"role": "user", "content": "hi"}]
    assert chat.export()["messages"] == [given]
    blank = hf.session("b")
    blank.append("   ")
    assert anthropic_problems(blank.pack().to_anthropic()) == []
