"""Words that a summary or a passage repeats go when their speaker is erased, whoever had them written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Session
from holdfast.journal.sqlite import erase
from holdfast.testing.journal_contract import dump_projections

CANARIES = [f"canary{number:02d};" for number in range(24)]


def quote(messages: Sequence[Any], *, max_tokens: int) -> str:
    return " ".join(str(message.content) for message in messages)


@pytest.fixture(params=["memory:", "a.db"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = request.param if request.param == "memory:" else tmp_path / request.param
    with holdfast.open(url, summarizer=quote, tokenizer=len) as client:
        yield client
        assert client.journal.verify().findings == ()
        live = dump_projections(client.env.journal)
        client.journal.rebuild()
        assert dump_projections(client.env.journal) == live


def left(hf: Holdfast, tmp_path: Path) -> set[str]:
    """The canaries that can still be read, in any event and in any byte on disk."""
    data = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    told = repr([event.content for event in hf.journal.events()])
    return {canary for canary in CANARIES if canary in told or canary.encode() in data}


def talk(hf: Holdfast, words: Sequence[str], id: str = "s") -> Session:
    """Ann says some words, Bob answers each."""
    for word in words:
        hf.as_user("ann").session(id).append(f"It is {word}")
        hf.as_user("bob").session(id).append("Go on, and tell me more about it.")
    return hf.as_user("bob").session(id)


def test_a_summary_that_somebody_else_had_made_falls_with_any_subject_it_covers(hf: Holdfast, tmp_path: Path) -> None:
    chat = talk(hf, CANARIES[:10])
    made = chat.compact(1, max_tokens=2_000)
    assert made is not None
    assert CANARIES[0] in made.text
    hf.journal.erase("ann")
    assert left(hf, tmp_path) == set()
    assert [one.text for one in chat.compaction.summaries()] == ["[erased]"]
    assert "canary" not in repr(chat.pack(4_000).to_openai())


def test_a_summary_that_covers_nothing_of_a_subject_stays(hf: Holdfast) -> None:
    hf.as_user("bob").session("s").append(["The house is blue.", "It has two floors."])
    made = hf.as_user("cleo").session("s").compact(0)
    talk(hf, CANARIES[:2])
    assert made is not None
    hf.journal.erase("ann")
    assert [one.text for one in hf.session("s").compaction.summaries()] == [made.text]


def test_a_replaced_summary_and_one_of_a_fork_fall_too(hf: Holdfast, tmp_path: Path) -> None:
    chat = talk(hf, CANARIES[:6])
    branch = chat.fork(thread="other")
    branch.append("And now?")
    branch.compact(1, max_tokens=2_000)
    chat.compact(2, max_tokens=2_000)
    chat.compact(0, max_tokens=2_000, whole=True)
    hf.journal.erase("ann")
    assert left(hf, tmp_path) == set()
    assert [one.text for one in branch.compaction.summaries()] == ["[erased]"]


@pytest.mark.parametrize("scope", ["session/s", "user/bob", "custom/notes/id/n"])
def test_passages_of_a_compaction_fall_with_any_subject_it_covers(hf: Holdfast, tmp_path: Path, scope: str) -> None:
    chat = talk(hf, CANARIES[:8])
    chat.compact(4, store=scope, max_tokens=2_000)
    chat.compact(1, store=scope, max_tokens=2_000, whole=True)
    hf.state(scope).write("own", "A canary is a bird.")
    assert any("canary00" in one.snippet for one in hf.state(scope).search("canary00"))
    hf.journal.erase("ann")
    assert left(hf, tmp_path) == set()
    assert hf.state(scope).list() == ["own"]
    assert [one.key for one in hf.state(scope).search("canary")] == ["own"]


def test_passages_of_detached_evidence_fall_with_its_subject(hf: Holdfast, tmp_path: Path) -> None:
    ann, bob = hf.as_user("ann").index, hf.as_user("bob").index
    frame = hf.index.push_frame("compare", scope="actor/a")
    handle = ann.add_handle(frame, "document", body=f"It is {CANARIES[0]}", tokens=50, priority="low")
    inner = bob.push_frame("look closer", parent=frame, inherit=[handle])
    bob.compact_context(inner, 0, store="user/bob")
    other = hf.index.push_frame("another one", scope="actor/b")
    hf.index.add_handle(other, "document", body="The door is red.", tokens=50, priority="low")
    bob.compact_context(other, 0, store="user/bob")
    assert len(hf.state("user/bob").list()) == 2
    hf.journal.erase("ann")
    assert left(hf, tmp_path) == set()
    assert [one.value["text"] for one in hf.state("user/bob").entries()] == ["The door is red."]


def test_a_summary_that_was_being_made_during_an_erasure_does_not_bring_words_back(
    hf: Holdfast, tmp_path: Path
) -> None:
    chat, told = talk(hf, CANARIES[:6]), []

    def slow(messages: Sequence[Any], *, max_tokens: int) -> str:
        told.append(quote(messages, max_tokens=max_tokens))
        if len(told) == 1:
            hf.state("global").write("unrelated", 1)
            hf.journal.erase("ann")
        return told[-1]

    made = chat.compact(1, summarizer=slow, store=True, max_tokens=2_000)
    assert made is not None
    assert (len(told), CANARIES[0] in told[0], "canary" in made.text) == (2, True, False)
    assert left(hf, tmp_path) == set()


def _only_theirs(connection: Any, tenant: int, subject: int) -> list[int]:
    rows = connection.execute("SELECT seq FROM events WHERE tenant = ? AND subject = ?", (tenant, subject))
    return [seq for (seq,) in rows.fetchall()]


def _without(name: str) -> Callable[[], dict[str, str]]:
    known = erase.queries()
    return lambda: {**known, name: "SELECT 1, 1, 1 FROM events WHERE tenant = ? AND 0 = ?"}


@pytest.mark.parametrize("bug", ["only theirs", "subject_summaries", "passages"])
def test_an_erasure_that_leaves_repeated_words_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    if bug == "only theirs":
        monkeypatch.setattr(erase, "_find_events", _only_theirs)
    elif bug == "passages":
        broken = {**erase.queries(), bug: "SELECT 1 FROM events WHERE ? IS NULL AND ? IS NULL AND ? IS NULL"}
        monkeypatch.setattr(erase, "queries", lambda: broken)
    else:
        monkeypatch.setattr(erase, "queries", _without(bug))
    with holdfast.open(tmp_path / "a.db", summarizer=quote, tokenizer=len) as hf:
        talk(hf, CANARIES[:8]).compact(1, store=True, max_tokens=2_000)
        hf.journal.erase("ann")
        assert left(hf, tmp_path)
