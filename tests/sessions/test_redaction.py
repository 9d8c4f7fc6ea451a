"""The redaction hook: what it takes out is in no event, no artifact, no count; and everything still works."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import holdfast
from holdfast import Message, ToolCallRequest

EMAIL = re.compile(r"[\w.]+@[\w.]+\.\w+")


def hide(text: str) -> str:
    return EMAIL.sub("[email]", text)


def everything(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_nothing_that_is_redacted_reaches_the_disk(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", redact=hide) as hf:
        chat = hf.session("alice", system="Ask ann@x.org", title="Of bob@x.org", metadata={"of": "cat@x.org"})
        chat.append("I am dan@x.org")
        chat.append(Message(role="user", content=[{"type": "text", "text": "or eve@x.org"}], name="fay@x.org"))
        call = ToolCallRequest(name="send", arguments='{"to": "gus@x.org", "n": 1}', provider_id="c1")
        asked = chat.append(Message(role="assistant", content="Sending to gus@x.org", tool_calls=(call,)))
        chat.append_result(asked.tool_calls[0], {"sent": ["hal@x.org", 5]})
        chat.append("see", files=[("list.csv", b"ida@x.org,1")])
        chat.append("jon@x.org " * 30_000)
        chat.compact(keep=1, summarizer=lambda messages: "Said kim@x.org")
        with hf.frame("Write to lea@x.org", key="k", inputs={"to": "max@x.org"}) as frame:
            frame.run(lambda: "ned@x.org", key="step")
        chat.rewind(to=asked, reason="pam@x.org asked")
        assert asked.tool_calls[0].args == {"to": "[email]", "n": 1}
        assert asked.tool_calls[0].id
    raw = everything(tmp_path)
    assert b"@x.org" not in raw
    assert b"[email]" in raw


def test_pairing_keys_and_repeats_work_with_placeholders(tmp_path: Path) -> None:
    for _ in range(2):
        with holdfast.open(tmp_path / "a.db", redact=hide) as hf:
            chat = hf.session("alice", system="Ask ann@x.org")
            call = ToolCallRequest(name="send", arguments='{"to":"gus@x.org"}', provider_id="c1")
            asked = chat.append(Message(role="assistant", tool_calls=(call,)), key="call")
            chat.append_result(asked.tool_calls[0], "to gus@x.org", key="result")
            with hf.frame("Write to lea@x.org", key="k", inputs={"to": "max@x.org"}) as frame:
                frame.run(lambda: "ned@x.org", key="step")
            assert len(chat) == 2
            assert chat.pack().to_openai()["messages"][2]["content"] == "to [email]"
            assert hf.journal.version("session/alice") == 2, "the same settings are the same when redacted"


def test_tokens_are_those_of_what_is_stored(tmp_path: Path) -> None:
    with holdfast.open("memory:", redact=hide) as hidden, holdfast.open("memory:") as plain:
        one = hidden.session("a").append("mail somebody.with.a.long.name@example.org")
        two = plain.session("a").append("mail [email]")
        assert one.tokens == two.tokens


def test_reasoning_that_cannot_be_changed_is_dropped_if_it_says_too_much() -> None:
    def item(text: str) -> dict:
        return {"type": "reasoning", "provider": "anthropic", "item": {"type": "thinking", "thinking": text}}

    with holdfast.open("memory:", redact=hide) as hf:
        message = Message(role="assistant", content=[item("of ann@x.org"), item("fine"), {"type": "text", "text": "x"}])
        kept = hf.session("a").append(message).content
        assert [part["type"] for part in kept] == ["reasoning", "text"]
        assert kept[0] == item("fine")


@pytest.mark.parametrize("hook", [lambda text: None, lambda text: 1 / 0])
def test_a_hook_that_fails_is_named_and_nothing_is_written(hook: object) -> None:
    with holdfast.open("memory:", redact=hook) as hf:
        with pytest.raises(holdfast.errors.RedactionFailed, match="hook"):
            hf.session("alice", system="x")
        chat = hf.session("alice")
        before = hf.journal.position()
        with pytest.raises(holdfast.errors.RedactionFailed, match="hook"):
            chat.append("hello")
        assert hf.journal.position() == before


def test_something_that_is_no_hook_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(holdfast.errors.InvalidValue, match="redact must be"):
        holdfast.open(tmp_path / "a.db", redact="yes")
    assert not (tmp_path / "a.db").exists()


def test_arguments_stay_json_and_names_stay_names() -> None:
    def cards(text: str) -> str:
        return re.sub(r"\d{16}", "[card]", text).replace("find", "[verb]")

    with holdfast.open("memory:", redact=cards) as hf:
        chat = hf.session("alice")
        call = ToolCallRequest(name="find", arguments='{"card": 4111111111111111, "to": "4111111111111111"}')
        given = chat.append(Message(role="assistant", tool_calls=(call,)))
        assert chat.messages() == [given]
        assert given.tool_calls[0].name == "find"
        assert given.tool_calls[0].args == {"card": "[card]", "to": "[card]"}


def test_numbers_and_names_of_fields_are_redacted_and_fields_stay_apart() -> None:
    with holdfast.open("memory:", redact=lambda text: re.sub(r"\d{16}|[ab]@x", "[hidden]", text)) as hf:
        chat = hf.session("alice")
        call = chat.append(Message(role="assistant", tool_calls=(ToolCallRequest(name="find"),))).tool_calls[0]
        chat.append_result(call, {"a@x": 4111111111111111, "b@x": 5, "n": 1.5, "ok": True})
        result = chat.messages()[-1].tool_results[0].result
        assert result == {"[hidden]": "[hidden]", "[hidden] 2": 5, "n": 1.5, "ok": True}


@dataclasses.dataclass
class Person:
    card: str


def test_results_of_own_types_and_repeated_arguments_are_redacted() -> None:
    with holdfast.open("memory:", redact=lambda text: text.replace("4111", "[card]")) as hf:
        chat = hf.session("a")
        one = ToolCallRequest(name="find", arguments='{"n":"4111","n":"ok"}')
        made = chat.append(Message(role="assistant", tool_calls=(one,))).tool_calls[0]
        chat.append_result(made, {"found": [Person(card="4111")]})
        chat.append("see", files=[("dump.sql", b"insert 4111"), ("photo.bin", b"\xff\xfe4111")])
        events = [event.content for event in hf.journal.events("session/a/thread/main")]
        assert "4111" not in str(events)
        bodies = [hf.journal.artifact(part["artifact"]) for part in chat.messages(1)[0].content[1:]]
        assert bodies == [b"insert [card]", b"\xff\xfe4111"], "what is no text is not looked at"
