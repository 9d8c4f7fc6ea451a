"""Moving from a list of messages to a session: both are written, either can be used, nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.errors import InvalidMessage, InvalidValue, Unavailable

OLD: list[dict[str, Any]] = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "Where is order 17?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"order": 17}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "in Lyon"},
    {"role": "assistant", "content": "In Lyon."},
]


def test_an_existing_list_is_stored_and_both_grow() -> None:
    hf = holdfast.open("memory:")
    log = holdfast.DualWrite([dict(item) for item in OLD], hf, "alice")
    log.append({"role": "user", "content": "And 18?"})
    assert len(log) == 6
    assert log.behind == 0
    assert log.session.details.system == "You are terse."
    assert log.to_openai()["messages"] == log.list


def test_a_process_that_died_half_way_stores_the_rest_once(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        holdfast.DualWrite([dict(item) for item in OLD[:3]], hf, "alice")
    with holdfast.open(tmp_path / "a.db") as hf:
        log = holdfast.DualWrite([dict(item) for item in OLD], hf, "alice")
        assert [message.role for message in log.session] == [item["role"] for item in OLD[1:]]
        again = holdfast.DualWrite(log.list, hf, "alice")
        assert len(again.session) == len(OLD) - 1


def test_an_unavailable_journal_falls_back_to_the_list_and_catches_up() -> None:
    hf = holdfast.open("memory:")
    down = [True]

    def opened() -> holdfast.Holdfast:
        if down[0]:
            raise Unavailable
        return hf

    log = holdfast.DualWrite([], opened, "alice", on_missing="fallback")
    log.append({"role": "user", "content": "hello"})
    assert log.behind == 1
    assert log.to_openai() == {"messages": [{"role": "user", "content": "hello"}]}
    down[0] = False
    log.append({"role": "assistant", "content": "hi"})
    assert log.behind == 0
    assert [message.text for message in log.session] == ["hello", "hi"]


def test_without_a_fallback_neither_grows_when_one_cannot() -> None:
    hf = holdfast.open("memory:")
    log = holdfast.DualWrite([], hf, "alice")
    log.append({"role": "user", "content": "hello"})
    hf.close()
    with pytest.raises(Unavailable):
        log.append({"role": "user", "content": "lost?"})
    assert len(log) == 1


def test_what_the_session_refuses_is_named_and_the_rest_goes_on() -> None:
    hf = holdfast.open("memory:")
    orphan = {"role": "tool", "tool_call_id": "nobody", "content": "x"}
    log = holdfast.DualWrite([OLD[1], orphan, OLD[4]], hf, "alice", on_missing="fallback")
    assert [refused.index for refused in log.refused] == [1]
    assert [message.text for message in log.session] == ["Where is order 17?", "In Lyon."]
    with pytest.raises(holdfast.errors.ToolPairingError):
        holdfast.DualWrite([OLD[1], orphan], hf, "bob")


@pytest.mark.parametrize(("messages", "options"), [((), {}), ([], {"on_missing": "maybe"})])
def test_a_wrong_start_is_refused_in_words(messages: Any, options: Any) -> None:
    with pytest.raises(holdfast.errors.InvalidValue, match="must be"):
        holdfast.DualWrite(messages, holdfast.open("memory:"), "alice", **options)


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
