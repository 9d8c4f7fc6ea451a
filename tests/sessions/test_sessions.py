"""Sessions: get or create, settings that are kept, lists, ends and new beginnings."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, Message
from holdfast.errors import InvalidValue, SessionClosed, SessionNotFound
from holdfast.testing.clock import FrozenClock
from tests.backends import IN_MEMORY


def test_a_session_is_made_once_and_found_again_with_its_settings(tmp_path: Path) -> None:
    tools = [{"name": "find", "description": "Find it", "input_schema": {"type": "object", "properties": {}}}]
    with holdfast.open(tmp_path / "a.db") as hf:
        chat = hf.session(
            "alice", system="Be terse.", model="gpt-4o", title="Nuts", tools=tools, metadata={"plan": "free"}
        )
        chat.append("hello")
    with holdfast.open(tmp_path / "a.db") as hf:
        found = hf.session("alice")
        assert (found.details.system, found.model, found.title) == ("Be terse.", "gpt-4o", "Nuts")
        assert found.details.metadata == {"plan": "free"}
        assert [tool.name for tool in found.details.tools] == ["find"]
        assert [message.text for message in found] == ["hello"]


def test_asking_again_with_the_same_settings_writes_nothing(hf: Holdfast) -> None:
    hf.session("alice", system="Be terse.", model="gpt-4o", title="t", idle_timeout=60, tools=[])
    before = hf.journal.position()
    hf.session("alice", system="Be terse.", model="gpt-4o", title="t", idle_timeout=60, tools=[])
    hf.session("alice")
    assert hf.journal.position() == before


def test_new_settings_are_stored_and_others_keep_their_value(hf: Holdfast) -> None:
    hf.session("alice", system="Be terse.", model="gpt-4o")
    chat = hf.session("alice", model="gpt-5")
    assert (chat.details.system, chat.model) == ("Be terse.", "gpt-5")


def test_an_unknown_session_is_an_error_where_it_must_exist(hf: Holdfast) -> None:
    with pytest.raises(SessionNotFound, match="no session 'alice'"):
        hf.session("alice", create=False)
    hf.session("alice")
    assert hf.session("alice", create=False).id == "alice"
    with pytest.raises(SessionNotFound, match="thread 'side'"):
        hf.session("alice", thread="side", create=False)


def test_a_new_session_has_an_id_that_nobody_had(hf: Holdfast) -> None:
    assert hf.new_session(model="gpt-4o").id != hf.new_session().id


def test_tenants_do_not_see_each_other(hf: Holdfast) -> None:
    hf.tenant("a").session("s").append("of a")
    hf.tenant("b").session("s").append("of b")
    assert [message.text for message in hf.tenant("a").session("s")] == ["of a"]
    assert [info.id for info in hf.sessions()] == []
    with pytest.raises(SessionNotFound):
        hf.session("s", create=False)
    foreign = hf.tenant("b").session("s").messages()[0]
    with pytest.raises(holdfast.errors.MessageNotFound):
        hf.tenant("a").session("s").fork(at=foreign)


def test_sessions_are_listed_by_activity_user_title_and_cost(hf: Holdfast, clock: FrozenClock) -> None:
    for number, user in enumerate(("ann", "bob", "ann")):
        clock.advance(1000)
        chat = hf.as_user(user).session(f"s{number}", title=f"Order {number}", model="gpt-4o")
        usage = holdfast.Usage(input=10, output=number, cost=100 - number)
        chat.append(["hi", Message(role="assistant", content="ok", usage=usage)])
    clock.advance(1000)
    hf.session("s0").append("again")
    assert [info.id for info in hf.sessions()] == ["s0", "s2", "s1"]
    assert [info.id for info in hf.sessions(user="ann")] == ["s0", "s2"]
    assert list(hf.sessions(user="nobody")) == []
    assert [info.id for info in hf.sessions(title="order 1")] == ["s1"]
    assert [info.id for info in hf.sessions(order="cost")] == ["s0", "s1", "s2"]
    assert [info.id for info in hf.sessions(order="title", limit=2)] == ["s0", "s1"]
    first = next(iter(hf.sessions()))
    assert (first.messages, first.threads, first.status, first.model) == (3, 1, "open", "gpt-4o")
    assert first.active_at == clock.now_ms()
    with pytest.raises(InvalidValue, match="order must be"):
        list(hf.sessions(order="size"))


def test_a_closed_session_takes_no_more_messages_and_keeps_those_it_has(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append("hello")
    chat.close()
    assert chat.details.status == "closed"
    first = chat.messages()[0]
    for late in (lambda: chat.append("late"), chat.close, chat.fork, lambda: chat.rewind(before=first)):
        with pytest.raises(SessionClosed):
            late()
    with pytest.raises(SessionClosed):
        hf.session("alice").append("late")
    with pytest.raises(SessionClosed):
        hf.session("alice", thread="new")
    assert [message.text for message in chat] == ["hello"]


def test_a_reset_begins_anew_under_the_same_id(hf: Holdfast) -> None:
    chat = hf.session("alice", system="Be terse.")
    old = chat.append("old")
    chat.reset()
    assert chat.messages() == []
    assert len(chat) == 0
    chat.append("new")
    assert [message.text for message in chat] == ["new"]
    assert chat.details.status == "open"
    assert chat.details.system == "Be terse."
    assert [message["content"] for message in chat.pack().to_openai()["messages"]] == ["Be terse.", "new"]
    with pytest.raises(holdfast.errors.MessageNotFound):
        chat.rewind(to=old)


def test_a_closed_session_can_be_reset_and_an_empty_one_too(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.reset()
    chat.reset()
    chat.append("one")
    chat.close()
    chat.reset()
    chat.append("two")
    assert [message.text for message in chat] == ["two"]


def test_every_thread_of_a_session_is_reset_with_it(hf: Holdfast) -> None:
    chat = hf.session("alice")
    first = chat.append("one")
    side = chat.fork(at=first, thread="side")
    side.append("two")
    chat.reset()
    assert side.messages() == []
    side.append("three")
    chat.append("four")
    assert [message.text for message in side] == ["three"]
    assert [message.text for message in chat] == ["four"]


def test_an_idle_timeout_is_turned_off_again(hf: Holdfast, clock: FrozenClock) -> None:
    hf.session("alice", idle_timeout=60).append("hello")
    seq = hf.journal.position()
    chat = hf.session("alice", idle_timeout=0)
    assert hf.journal.position() == seq + 1
    hf.session("alice", idle_timeout=0)
    assert hf.journal.position() == seq + 1
    clock.advance(10**9)
    assert hf.sweep_sessions().ended == 0
    assert [message.text for message in chat] == ["hello"]


def test_an_idle_session_ends_by_the_sweep_and_begins_anew(hf: Holdfast, clock: FrozenClock) -> None:
    chat = hf.session("alice", idle_timeout=60)
    other = hf.session("bob")
    chat.append("hello")
    other.append("hello")
    clock.advance(59_999)
    assert hf.sweep_sessions().ended == 0
    clock.advance(1)
    assert hf.sweep_sessions().ended == 1
    assert hf.sweep_sessions().ended == 0
    assert chat.details.status == "ended"
    chat.append("back")
    assert [message.text for message in chat] == ["back"]
    assert [message.text for message in other] == ["hello"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"idle_timeout": -1}, "idle_timeout"),
        ({"idle_timeout": True}, "idle_timeout"),
        ({"system": 5}, "system must be text"),
        ({"model": ""}, "model must not be empty"),
        ({"tokenizer": "nobody"}, "no tokenizer"),
        ({"metadata": []}, "metadata"),
        ({"tools": [{"nothing": 1}]}, "tool"),
        ({"thread": ""}, "thread id must not be empty"),
    ],
)
@IN_MEMORY
def test_wrong_settings_are_refused_in_words_and_nothing_is_made(hf: Holdfast, options: dict, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        hf.session("alice", **options)
    assert list(hf.sessions()) == []
    with pytest.raises(InvalidValue):
        hf.session("")


def test_another_process_sees_what_this_one_did(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as one, holdfast.open(tmp_path / "a.db") as two:
        here, there = one.session("alice"), two.session("alice")
        first = here.append("one")
        there.append("two")
        here.append("three")
        assert [message.text for message in there] == ["one", "two", "three"]
        there.rewind(to=first)
        assert [message.text for message in here] == ["one"]
        there.reset()
        assert here.messages() == []
        here.append("four")
        assert [message.text for message in there] == ["four"]
        there.close()
        with pytest.raises(SessionClosed):
            here.append("five")


def test_a_session_shows_itself_in_a_notebook(hf: Holdfast) -> None:
    chat = hf.session("alice", title="<b>Nuts</b>")
    chat.append("<script>alert(1)</script>")
    shown = chat._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert "&lt;b&gt;Nuts" in shown
    assert "<script>" not in chat.pack()._repr_html_()


def test_a_tokenizer_that_was_given_stays_and_one_that_follows_from_the_client_binds_nobody(tmp_path: Path) -> None:
    def letters(text: str) -> int:
        return len(text)

    with holdfast.open(tmp_path / "a.db", tokenizer=letters) as hf:
        hf.session("own", model="gpt-4o").append("hello")
    with holdfast.open(tmp_path / "a.db") as hf:
        assert hf.session("own").append("again").tokenizer == "o200k_base"
        hf.session("given", model="gpt-4o", tokenizer="estimate:3")
        assert hf.session("given", model="gpt-4o").append("hello").tokenizer == "estimate:3"


@IN_MEMORY
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
