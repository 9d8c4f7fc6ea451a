"""Small stories of what once went wrong, one for each."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Message, ToolCallRequest, ToolCallResult, Usage
from holdfast.core.wire.jsonl import write_lines
from holdfast.errors import InvalidMessage, InvalidValue
from tests.sessions.provider_rules import anthropic_problems


def calls(*cities: str) -> dict[str, Any]:
    made = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}
        for city in cities
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


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


def test_a_large_note_in_the_middle_does_not_crowd_out_the_newest_message(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append([f"hello {number}" for number in range(30)])
    chat.append([{"role": "system", "content": "note " * 3_000}, "What now?"])
    assert [message.text for message in chat.pack(1_000).conversation.messages] == ["What now?"]
    with pytest.raises(holdfast.errors.BudgetTooSmall) as small:
        chat.pack(5)
    assert chat.pack(small.value.required).messages[-1].text


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


def test_what_pins_and_first_instructions_cost_does_not_follow_the_history(tmp_path: Path) -> None:
    read: list[int] = []
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        journal = hf.env.journal
        real = journal.read
        for count in (500, 4_000):
            chat = hf.session(f"s{count}")
            chat.append([{"role": "system", "content": "Be terse."}, "keep this"])
            chat.pin(chat.messages()[1])
            chat.append([f"message {number}" for number in range(count)])
            seen = 0

            def counting(query: Any, real: Any = real) -> Any:
                nonlocal seen
                found = real(query)
                seen += len(found)
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(journal, "read", counting)
                shown = chat.pack(500).messages
            assert [message.text for message in shown[:2]] == ["Be terse.", "keep this"]
            read.append(seen)
    assert abs(read[0] - read[1]) <= 5


@pytest.mark.parametrize(
    "wrong",
    [
        Message(role="user", content=[{"type": "text", "text": "hello", "artifact": "nope"}]),
        Message(role="user", content=[{"type": "text", "text": "hello", "whole": True}]),
        Message(role="user", content="x", usage={"input": 1}),  # type: ignore[arg-type]
        Message(role="user", content="x", usage=Usage(input=-5)),
        Message(role="user", content="x", usage=Usage(input=2**60)),
        Message(role=[], content="x"),  # type: ignore[arg-type]
        Message(role="user", content="x", metadata=5),  # type: ignore[arg-type]
        Message(role="assistant", tool_calls=(ToolCallRequest(name="f", provider_id=5),)),  # type: ignore[arg-type]
        Message(role="tool", tool_results=(ToolCallResult(provider_id=5),)),  # type: ignore[arg-type]
        Message(role="user", content=[{"type": "other", "provider": "openai", "item": 5}]),
        Message(role="user", content=[{"type": "image", "url": "http://x/y.png", "openai": {"image_url": 5}}]),
    ],
    ids=repr,
)
def test_a_message_of_ones_own_making_is_checked_before_it_is_stored(hf: Holdfast, wrong: Message) -> None:
    chat = hf.session("a")
    with contextlib.suppress(InvalidMessage):
        chat.append(wrong)
    chat.append("fine")
    for shown in (chat.pack().to_openai, chat.pack().to_responses, chat.pack().to_anthropic, chat.export):
        shown()
    assert chat.usage.spent >= 0


def test_exact_means_counted_by_the_models_own_tokenizer(hf: Holdfast) -> None:
    for number, (model, tokenizer) in enumerate([("claude-opus-4-7", "o200k_base"), ("gpt-5-mini", "cl100k_base")]):
        chat = hf.session(f"s{number}", model=model, tokenizer=tokenizer)
        chat.append("hello")
        assert not chat.pack().exact
    pictured = hf.session("p", model="gpt-4o")
    assert pictured.pack().exact
    pictured.append("look", files=[("cat.png", b"PNG")])
    assert not pictured.pack().exact


def test_a_tokenizer_that_was_given_stays_and_one_that_follows_from_the_client_binds_nobody(tmp_path: Path) -> None:
    def letters(text: str) -> int:
        return len(text)

    with holdfast.open(tmp_path / "a.db", tokenizer=letters) as hf:
        hf.session("own", model="gpt-4o").append("hello")
    with holdfast.open(tmp_path / "a.db") as hf:
        assert hf.session("own").append("again").tokenizer == "o200k_base"
        hf.session("given", model="gpt-4o", tokenizer="estimate:3")
        assert hf.session("given", model="gpt-4o").append("hello").tokenizer == "estimate:3"


def test_a_list_can_be_kept_while_the_file_cannot_be_opened(tmp_path: Path) -> None:
    opened: list[int] = []

    def later() -> Holdfast:
        opened.append(1)
        return holdfast.open(tmp_path / "missing" / "a.db")

    log = holdfast.DualWrite([], later, "alice", on_missing="fallback")
    log.append({"role": "user", "content": "kept"})
    assert (len(log), log.behind) == (1, 1)
    (tmp_path / "missing").mkdir()
    log.append({"role": "user", "content": "too"})
    before = len(opened)
    log.append({"role": "user", "content": "again"})
    assert log.behind == 0
    assert len(opened) == before, "a client is opened once"


def test_a_list_that_was_changed_between_two_processes_is_noticed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        holdfast.DualWrite([{"role": "user", "content": "one"}], hf, "alice")
        with pytest.raises(holdfast.errors.KeyReused):
            holdfast.DualWrite([{"role": "user", "content": "two"}], hf, "alice")
        for wrong in (None, 5):
            log = holdfast.DualWrite([], hf, f"s{wrong}")
            with pytest.raises(InvalidMessage):
                log.append(wrong)  # type: ignore[arg-type]
            assert len(log) == 0
    with pytest.raises(InvalidValue, match="hf must be"):
        holdfast.DualWrite([], 5, "s")  # type: ignore[arg-type]


def test_an_unknown_outcome_keeps_the_message_in_the_list(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    log = holdfast.DualWrite([], hf, "alice")
    real = holdfast.Session.append

    def torn(self: Any, *args: Any, **options: Any) -> Any:
        real(self, *args, **options)
        raise holdfast.OutcomeUnknown

    monkeypatch.setattr(holdfast.Session, "append", torn)
    with pytest.raises(holdfast.OutcomeUnknown):
        log.append({"role": "user", "content": "once"})
    monkeypatch.undo()
    log.append({"role": "user", "content": "twice"})
    assert [message.text for message in log.session] == ["once", "twice"]


def test_a_keyed_import_is_one_effect_whatever_the_session_is_told_meanwhile() -> None:
    given = [{"role": "system", "content": "Ask ann@x"}, {"role": "user", "content": "hi"}]
    with holdfast.open("memory:", redact=lambda text: text.replace("ann@x", "[mail]")) as hf:
        chat = hf.session("a")
        chat.import_messages(given, key="k")
        assert chat.import_messages(given, key="k").repeated
        hf.session("a", system="Other.")
        assert chat.import_messages(given, key="k").repeated
        assert len(chat) == 1


def test_a_call_far_back_waits_again_in_a_fork(hf: Holdfast) -> None:
    chat = hf.session("a")
    call = chat.append(calls("Rome")).tool_calls[0]
    far = chat.append([f"message {number}" for number in range(70)])[-1]
    chat.append_result(call, "sun")
    side = chat.fork(at=far)
    assert [one.id for one in side.details.open_calls()] == [call.id]
    side.append_result(call, "rain")


def test_open_calls_are_named_so_that_a_torn_one_can_be_settled(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append(["hi", calls("Rome"), *[f"message {number}" for number in range(30)]])
    assert chat.compact(5).messages == 1
    assert chat.compact(5) is None
    (torn,) = chat.details.open_calls()
    chat.append_result(torn, "Never came back.", is_error=True)
    chat.append([f"later {number}" for number in range(10)])
    assert chat.compact(5).messages > 30
    assert chat.details.open_calls() == []


def test_what_a_provider_does_not_know_is_kept_for_export_and_not_sent(hf: Holdfast) -> None:
    chat = hf.session("a")
    given = {"role": "user", "content": "hi", "timestamp": 123, "id": "m1"}
    chat.append(given)
    assert chat.pack().to_openai()["messages"] == [{"role": "user", "content": "hi"}]
    assert chat.export()["messages"] == [given]
    blank = hf.session("b")
    blank.append("   ")
    assert anthropic_problems(blank.pack().to_anthropic()) == []


def test_many_texts_that_are_large_together_fit_as_one_large_text_does(hf: Holdfast) -> None:
    chat = hf.session("a")
    parts = [{"type": "text", "text": str(number) * 150_000} for number in range(8)]
    message = chat.append(Message(role="user", content=parts))
    odd = chat.append("\x01" * 190_000)
    assert chat.messages() == [message, odd]


def test_compacting_after_a_reset_has_nothing_to_do(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append("hello")
    chat.reset()
    assert chat.compact() is None


def test_a_memory_that_gives_something_to_await_has_not_taken_it(tmp_path: Path) -> None:
    class Sneaky:
        async def _later(self) -> None: ...

        def take(self, ended: holdfast.types.EndedConversation) -> Any:
            return self._later()

    with holdfast.open(tmp_path / "a.db", memory=Sneaky()) as hf:
        chat = hf.session("a")
        chat.append("hello")
        chat.close()
        assert chat.details.status == "closing"


def test_files_keep_everything_else_of_their_message(hf: Holdfast) -> None:
    given = Message(role="user", content="look", metadata={"from": "phone"}, pinned=True, name="ann")
    stored = hf.session("a").append(given, files=[("cat.png", b"PNG")])
    assert (stored.metadata, stored.pinned, stored.name) == ({"from": "phone"}, True, "ann")


def test_wrong_arguments_are_refused_at_the_door_in_words(hf: Holdfast, tmp_path: Path) -> None:
    chat = hf.session("a")
    for wrong in (
        lambda: hf.session("x", idle_timeout=float("inf")),
        lambda: hf.sessions(limit="x"),  # type: ignore[arg-type]
        lambda: hf.sessions(limit=-1),
        lambda: hf.sessions(title=5),  # type: ignore[arg-type]
        lambda: chat.compaction.expand(5),  # type: ignore[arg-type]
        lambda: chat.append("x", files=["a\0b"]),
        lambda: holdfast.models.register_model(5, window=10),  # type: ignore[arg-type]
        lambda: holdfast.open(tmp_path / "n.db", tokenizer=5),  # type: ignore[arg-type]
        lambda: holdfast.open(tmp_path / "n.db", summarizer=5),  # type: ignore[arg-type]
    ):
        with pytest.raises(holdfast.Refused):
            wrong()
    assert not (tmp_path / "n.db").exists()
