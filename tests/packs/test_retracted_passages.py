"""What was rewound or reset leaves recall, search and the state in the same commit, wherever it was flushed to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Session
from holdfast.core.compaction.summary import PASSAGE_PREFIX
from holdfast.errors import InvalidValue
from holdfast.flow.sessions import branch, sessions, summaries
from holdfast.testing.clock import FrozenClock
from holdfast.testing.journal_contract import dump_projections

SECRET = "My password is HUNTER2."
SCOPES = ["session/a", "user/ann", "session/a/thread/main"]


def short(messages: Any, max_tokens: int) -> str:
    return f"{len(messages)} messages"


def count(text: str) -> int:
    return len(text) // 4 + 1


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture(params=["memory:", "a.db"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[Holdfast]:
    url = request.param if request.param == "memory:" else tmp_path / request.param
    with holdfast.open(url, clock=clock, summarizer=short, tokenizer=count) as client:
        yield client
        assert client.journal.verify().findings == ()
        live = dump_projections(client.env.journal)
        client.journal.rebuild()
        assert dump_projections(client.env.journal) == live


def talk(hf: Holdfast, scope: str, id: str = "a") -> Session:
    """A conversation that tells a secret in its middle, compacted and flushed step by step."""
    chat = hf.session(id)
    chat.append(["The garage code is 4471.", "It rains today."])
    chat.compact(1, store=scope)
    chat.append([SECRET, "Please remember it."])
    chat.compact(1, store=scope)
    chat.append(["It still rains.", "Now it stops."])
    chat.compact(1, store=scope, whole=True)
    return chat


def shown(hf: Holdfast, chat: Session, scope: str) -> str:
    """All that a model is shown, and all that can be found, of the password."""
    chat.compaction.add_rule(holdfast.compaction.CompactionConfig(threshold=1_000, store=scope, recall=9))
    chat.append("What is my password, HUNTER2?")
    pack = chat.pack(4_000, query="password is")
    texts = [segment.text for segment in pack.segments if segment.kind != "conversation"]
    places = [hf.state(scope).search("password is"), hf.state("session/a").search("password is")]
    return repr((texts, places, hf.state(scope).entries(), chat.compaction.summaries()))


@pytest.mark.parametrize("scope", SCOPES)
def test_what_was_rewound_leaves_recall_search_and_state(hf: Holdfast, scope: str) -> None:
    chat = talk(hf, scope)
    assert "My password" in shown(hf, chat, scope)
    secret = next(message for message in chat.messages() if message.text == SECRET)
    chat.rewind(before=secret)
    assert "HUNTER2" not in shown(hf, chat, scope)
    # A message that stands is still recalled.
    assert "4471" in repr(hf.state(scope).search("garage code"))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("end", ["reset", "timeout"])
def test_what_was_reset_leaves_recall_search_and_state(hf: Holdfast, clock: FrozenClock, scope: str, end: str) -> None:
    chat = talk(hf, scope)
    hf.state(scope).write("own", "The door is red.")
    if end == "reset":
        chat.reset()
    else:
        hf.session("a", idle_timeout=60)
        clock.advance(61_000)
        assert hf.sweep_sessions().ended == 1
    assert hf.state(scope).list() == ["own"]
    told = shown(hf, chat, scope)
    assert "HUNTER2" not in told
    assert "4471" not in told


def test_a_closed_session_keeps_what_it_flushed(hf: Holdfast) -> None:
    chat = talk(hf, "user/ann")
    chat.close()
    assert "HUNTER2" in repr(hf.state("user/ann").search("password"))


def test_another_conversation_keeps_what_it_flushed_to_a_shared_scope(hf: Holdfast) -> None:
    chat, other = talk(hf, "user/ann"), talk(hf, "user/ann", "b")
    branched = other.fork(thread="fork")
    branched.append("Yes.")
    branched.compact(0, store="user/ann")
    before = set(hf.state("user/ann").list())
    chat.reset()
    theirs = set(hf.state("user/ann").list())
    assert theirs < before
    assert "HUNTER2" in repr(hf.state("user/ann").search("password"))
    other.rewind(to=other.messages()[0])
    assert {one.partition("/")[0] for one in hf.state("user/ann").list()} == {"holdfast"}, "the fork still has them"


def test_a_fork_that_is_rewound_into_what_it_shares_drops_its_own_passages(hf: Holdfast) -> None:
    chat = hf.session("a")
    chat.append(["The garage code is 4471.", SECRET, "It rains."])
    branched = chat.fork(thread="fork")
    branched.append(["Yes.", "No."])
    branched.compact(0, store="user/ann")
    assert "HUNTER2" in repr(hf.state("user/ann").search("password"))
    branched.rewind(to=branched.messages()[0])
    assert hf.state("user/ann").list() == []
    assert [one.text for one in chat.messages()][1] == SECRET


def test_evidence_flushed_to_the_session_goes_when_it_is_reset(hf: Holdfast) -> None:
    chat = hf.session("a")
    frame = hf.index.push_frame("look", scope="actor/a/session/a/thread/main")
    hf.index.add_handle(frame, "document", body=SECRET, tokens=50, priority="low")
    hf.index.compact_context(frame, 0, store=True)
    assert "HUNTER2" in repr(hf.state("session/a").search("password"))
    chat.append("Go on.")
    chat.reset()
    assert hf.state("session/a").list() == []


def test_the_owner_can_delete_a_passage_and_nobody_can_write_one(hf: Holdfast) -> None:
    talk(hf, "user/ann")
    for key in hf.state("user/ann").list(PASSAGE_PREFIX):
        with pytest.raises(InvalidValue, match="holdfast alone"):
            hf.state("user/ann").write(key, {"text": "forged"})
        assert hf.state("user/ann").delete(key)
    assert hf.state("user/ann").search("password") == []
    with pytest.raises(InvalidValue, match="holdfast alone"):
        hf.state("user/ann").delete("holdfast/brief/x")


def _standing_only(env: Any, stream: str) -> Any:
    """Plant a bug: look only at summaries that stand."""
    standing = {one.id for one in summaries.list_summaries(env, stream)}
    return [one for one in summaries_list_flushed(env, stream) if one[1] in standing]


summaries_list_flushed = summaries.list_flushed


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (branch.summaries, "list_flushed", lambda env, stream: []),
        (branch.summaries, "list_flushed", _standing_only),
        (branch, "_is_retracted", lambda distance, end, place: False),
        (branch.summaries, "delete_passages", lambda env, scope, compaction="": []),
    ],
)
def test_a_rewind_that_leaves_passages_is_found(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bug: Any
) -> None:
    with holdfast.open("memory:", summarizer=short, tokenizer=count) as hf:
        chat = talk(hf, "user/ann")
        monkeypatch.setattr(module, name, bug)
        chat.rewind(to=chat.messages()[0])
        assert "HUNTER2" in repr(hf.state("user/ann").search("password"))


@pytest.mark.parametrize("name", ["list_flushed", "delete_passages"])
def test_a_reset_that_leaves_passages_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sessions, name, lambda *given: [])
    with holdfast.open("memory:", summarizer=short, tokenizer=count) as hf:
        talk(hf, "user/ann").reset()
        assert "HUNTER2" in repr(hf.state("user/ann").search("password"))
