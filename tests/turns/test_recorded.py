"""Recorded replies: a program that runs again, in another journal, finds them, and nothing else is asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Message, ToolCallResult
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model import recorded
from holdfast.model.recorded import Recorded
from holdfast.model.scripted import Scripted, call
from holdfast.records.messages import Delta, ModelCall

SECRET = "sk-very-secret"


def program(model: Any, **asked: Any) -> list[Message]:
    """A turn with a tool and evidence, in a journal of its own; what the model said in it."""
    said: list[Message] = []
    with holdfast.open("memory:") as hf:
        chat = hf.session("s", system="Be kind.", tools=[holdfast.ToolDef(name="refund")])
        chat.append("Pay me back.")
        frame = hf.index.push_frame("work", scope="actor/main/session/s/thread/main")
        hf.index.add_handle(frame, "event_ref", body="an order")
        while not said or said[-1].tool_calls:
            pack = hf.index.assemble_context_pack(frame=frame)
            said.append(asyncio.run(model.reply(ModelCall(pack=pack, **asked))).message)
            stored = chat.append(said[-1])
            for each in stored.tool_calls:
                chat.append(Message(role="tool", tool_results=(ToolCallResult(tool_call_id=each.id, result="paid"),)))
    return said


def quoting(pack: Any) -> Any:
    """A reply that repeats an id of its request, as one that calls `expand` does."""
    return f"Done with {pack.to_openai()['messages'][-1]['tool_call_id']}."


def real() -> Scripted:
    return Scripted([call("refund", order=17), quoting], name="real")


def test_what_was_recorded_is_given_again_in_another_journal(tmp_path: Path) -> None:
    path, model = tmp_path / "new" / "replies.jsonl", real()
    first = program(Recorded(model, path))
    assert len(model.requests) == 2
    before = path.read_bytes()
    again = real()
    for mode in ("auto", "replay"):
        assert program(Recorded(again, path, mode=mode))[0] == first[0]
    assert program(Recorded("real", path, mode="replay"))[0] == first[0]
    assert len(again.requests) == 0
    assert path.read_bytes() == before


def test_ids_in_a_reply_are_those_of_the_request_that_it_answers(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    said = [program(Recorded(real(), path))[1].text for _ in range(3)]
    assert len(set(said)) == 3
    for text in said:
        assert text.startswith("Done with 0")
    assert "made" in path.read_text()


def test_without_that_another_journal_would_find_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_GENERATED", recorded.lazy_pattern(r"nothing like it"))
    path = tmp_path / "replies.jsonl"
    program(Recorded(real(), path))
    with pytest.raises(ModelFailed):
        program(Recorded(real(), path, mode="replay"))


def test_a_request_that_is_not_known_says_which_and_how_to_record_it(tmp_path: Path) -> None:
    path, model = tmp_path / "replies.jsonl", real()
    for replaying in (Recorded(model, path, mode="replay"), Recorded("real", path)):
        with pytest.raises(ModelFailed, match=r"'Pay me back.' \(request [0-9a-f]{32}\).*mode='record'") as caught:
            program(replaying)
        assert (caught.value.kind, caught.value.retryable) == ("rejected", False)
    assert len(model.requests) == 0
    assert not path.exists()


@pytest.mark.parametrize("other", [{"output": {"type": "object"}}, {"options": {"temperature": 1}}])
def test_another_schema_or_option_is_another_request(tmp_path: Path, other: dict[str, Any]) -> None:
    path = tmp_path / "replies.jsonl"
    program(Recorded(real(), path))
    with pytest.raises(ModelFailed):
        program(Recorded("real", path), **other)
    with pytest.raises(ModelFailed):
        program(Recorded("another", path))


def test_no_key_and_no_more_than_the_beginning_of_a_request_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    program(Recorded(real(), path), options={"api_key": SECRET, "extra_headers": {"authorization": SECRET}})
    text = path.read_text()
    assert SECRET not in text
    assert "Be kind" not in text
    assert [json.loads(line)["about"] for line in text.splitlines()] == ["Pay me back."] * 2
    assert len(program(Recorded("real", path), options={"api_key": "another"})) == 2


def test_recording_anew_takes_the_place_of_the_old_reply(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    program(Recorded(Scripted(["old"], name="real"), path))
    assert program(Recorded(Scripted(["new"], name="real"), path))[0].text == "old"
    assert program(Recorded(Scripted(["new"], name="real"), path, mode="record"))[0].text == "new"
    assert program(Recorded("real", path))[0].text == "new"


def test_failures_are_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    with pytest.raises(ModelFailed, match="busy"):
        program(Recorded(Scripted([ModelFailed("busy", kind="rate_limited")]), path))
    assert not path.exists()


def test_pieces_come_as_they_came(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    heard: list[list[Delta]] = []
    for _ in range(2):
        heard.append([])
        with holdfast.open("memory:") as hf:
            chat = hf.session("s")
            chat.append("one")
            model = Recorded(Scripted(["Two words."]), path)
            asyncio.run(model.reply(ModelCall(pack=chat.pack()), heard[-1].append))
            asyncio.run(model.close())
    assert heard[0] == heard[1] != []


def test_half_a_line_is_passed_over_and_a_wrong_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    program(Recorded(real(), path))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:40])
    model = real()
    assert len(program(Recorded(model, path))) == 2
    assert len(model.requests) == 1
    assert len(program(Recorded("real", path))) == 2
    path.write_bytes(b'{"request": 3}\n')
    with pytest.raises(InvalidValue, match=r"Line 1 of .* is not a recorded reply"):
        Recorded("real", path)


def test_unknown_modes_and_recording_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="auto, record, replay"):
        Recorded(real(), tmp_path / "a", mode="both")
    with pytest.raises(InvalidValue, match="the model itself"):
        Recorded("real", tmp_path / "a", mode="record")
