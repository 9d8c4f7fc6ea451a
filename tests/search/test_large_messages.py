"""A message that is so large that its text lies apart is found like any other, and is gone like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Session, Settings
from holdfast.core.search.documents import INDEXED_CHARS
from holdfast.core.search.segments import decode_block
from holdfast.flow.state.search import search_journal
from holdfast.journal.memory import journal as memory_journal
from holdfast.journal.sqlite import search
from holdfast.journal.sqlite.segments import TextSegments
from holdfast.testing.clock import FrozenClock

IN_THE_DATABASE, IN_A_FILE = 210_000, 300_000
"""Characters: above what an event holds, and above what the database holds of one body."""


def by_fours(text: str) -> int:
    return len(text) // 4 + 1


def by_letters(given: list[str]) -> list[list[float]]:
    """Vectors that are alike when the same letters occur."""
    return [[float(text.lower().count(letter)) + 0.01 for letter in "aeiouhnst"] for text in given]


def opened(url: Any, **how: Any) -> Holdfast:
    return holdfast.open(url, clock=FrozenClock(), durability="fast", tokenizer=by_fours, **how)


@pytest.fixture(params=["memory:", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with opened(tmp_path / "a.db" if request.param == "sqlite" else request.param) as client:
        yield client


def large(words: str, size: int = IN_A_FILE) -> str:
    return f"{words} " + "row data " * (size // 9)


def asked(chat: Session, name: str = "look") -> holdfast.ToolCallRequest:
    function = {"name": name, "arguments": "{}"}
    call = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    return chat.append(call).tool_calls[0]


@pytest.mark.parametrize("size", [IN_THE_DATABASE, IN_A_FILE])
def test_a_large_message_is_found_by_its_first_words(hf: Holdfast, size: int) -> None:
    chat = hf.session("s")
    said = chat.append(large("My passport is C01X.", size))
    chat.append({"role": "assistant", "content": "Noted."})
    for _ in range(2):
        (first, *_) = chat.search("passport")
        assert (first.key, first.value.text) == (said.id, said.text)
        assert first.snippet.startswith("My passport is C01X.")
        assert hf.search("passport")[0].key == said.id
        found = chat.packs.history_tools().run("search_history", {"query": "passport"})
        assert f"m{said.version} (user" in found
        assert "My passport is C01X." in found
        hf.journal.rebuild()
    assert hf.journal.verify().findings == ()


def test_a_large_result_of_a_tool_is_found(hf: Holdfast) -> None:
    chat = hf.session("s")
    result = chat.append_result(asked(chat), large("The parcel waits in Hull."))
    for _ in range(2):
        (first, *_) = chat.search("parcel")
        assert (first.key, first.value.role) == (result.id, "tool")
        assert "waits in Hull" in first.snippet
        assert "waits in Hull" in chat.packs.history_tools().run("search_history", {"query": "parcel"})
        hf.journal.rebuild()


def test_a_large_part_is_found_beside_small_ones(hf: Holdfast) -> None:
    chat = hf.session("s")
    parts = [{"type": "text", "text": text} for text in ("See the report.", large("Amber is rare."), "That was all.")]
    chat.append({"role": "user", "content": parts})
    assert "See the report." in chat.search("report")[0].snippet
    assert "Amber is rare." in chat.search("amber")[0].snippet


def test_only_its_beginning_is_indexed(hf: Holdfast) -> None:
    chat = hf.session("s")
    # Four bytes for each letter: what is read of a body is as many letters as of any other text.
    filling = "\N{DESERET SMALL LETTER LONG I}" * 9 + " "
    chat.append("near " + filling * (INDEXED_CHARS // 10 - 2) + " within " + filling * 20_000 + " beyond")
    assert [len(chat.search(word)) for word in ("near", "within", "beyond")] == [1, 1, 0]


def test_what_follows_a_large_message_is_found_with_its_end_as_indexed(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append(large("x", INDEXED_CHARS - 200)[: INDEXED_CHARS - 60] + " the ferry to Lewis " + large("y"))
    answer = chat.append("At nine.")
    assert answer.id in [one.key for one in chat.search("ferry to Lewis")]


def test_a_copy_finds_what_the_journal_finds(hf: Holdfast, tmp_path: Path) -> None:
    hf.session("s").append([large("My passport is C01X."), large("Amber is rare.", IN_THE_DATABASE)])
    hf.journal.export(tmp_path / "all.jsonl")
    for url in ("memory:", tmp_path / "copy.db"):
        with opened(url) as copy:
            copy.journal.import_(tmp_path / "all.jsonl")
            for word in ("passport", "amber"):
                assert copy.session("s").search(word)[0].key == hf.session("s").search(word)[0].key


def test_the_past_is_searched_with_its_large_messages(hf: Holdfast) -> None:
    chat = hf.session("s")
    said = chat.append(large("My passport is C01X."))
    then = hf.env.journal.position()
    chat.append(large("My passport is D02Y."))
    assert hf.env.past is not None
    past = hf.env.past(hf.env, then)
    assert [one.key for one in search_journal(past, chat._thread_stream, "passport", 10)] == [said.id]


def test_what_was_appended_without_an_index_is_found_after_a_rebuild(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db", settings=Settings(index_text=0)) as hf:
        chat = hf.session("s")
        chat.append([large("My passport is C01X."), large("Amber is rare.", IN_THE_DATABASE)])
        chat.append_result(asked(chat), large("The parcel waits in Hull."))
        assert chat.search("passport") == []
    with opened(tmp_path / "a.db") as hf:
        hf.journal.rebuild()
        for word in ("passport", "amber", "parcel"):
            assert word in hf.session("s").search(word)[0].snippet.lower()


def test_a_large_message_is_found_by_meaning(tmp_path: Path) -> None:
    for url in ("memory:", tmp_path / "a.db"):
        with opened(url, embedder=by_letters) as hf:
            chat = hf.session("s")
            chat.append(["iiii eeee iiii", "oooo uuuu oooo " * 20_000, "aaaa hhhh aaaa"])
            assert chat.search("uuuooo")[0].value.text.startswith("oooo uuuu")


# Erasing


def check_erased(hf: Holdfast) -> None:
    """Neither the message is found, nor what was indexed with its end, nor is a word of it in the index."""
    chat, theirs = hf.session("s"), hf.as_user("ann").session("s")
    before = large("The word is zyzzyvaquark.", INDEXED_CHARS)[: INDEXED_CHARS - 40]
    theirs.append(f"{before} quarkzyzzyva {large('y')}")
    theirs.append_result(asked(theirs), large("It was zyzzyvaquark."))
    chat.append("Yes.")
    chat.append([f"word {number}" for number in range(40)])  # So many that a search stores them in the index.
    assert len(chat.search("zyzzyvaquark")) > 1
    assert len(chat.search("quarkzyzzyva")) > 1
    hf.journal.erase("ann")
    for _ in range(2):
        for word in ("zyzzyvaquark", "quarkzyzzyva"):
            assert chat.search(word) == hf.search(word) == []
        hf.journal.rebuild()
    path = getattr(hf.env.journal, "path", None)
    if path is not None:
        with hf.env.journal.connections.reader() as connection:
            index = TextSegments(connection, 1)
            blocks = [decode_block(body) for one in index.segments() for _, body in index.load(one).blocks]
        assert not any({"zyzzyvaquark", "quarkzyzzyva"} & {*block.words.split(" ")} for block in blocks)
        held = b"".join(one.read_bytes() for one in path.parent.rglob("*") if one.is_file())
        assert b"zzyvaquark" not in held
        assert b"rkzyzzyva" not in held


def test_what_was_erased_is_found_no_more(hf: Holdfast) -> None:
    check_erased(hf)


def test_an_index_that_keeps_what_was_erased_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextSegments, "erase", lambda self, seqs: None)
    with opened(tmp_path / "a.db") as hf, pytest.raises(AssertionError):
        check_erased(hf)


def test_the_same_body_said_by_another_is_still_found(hf: Holdfast) -> None:
    body = large("My passport is C01X.")
    hf.as_user("ann").session("s").append(body)
    kept = hf.as_user("ben").session("s").append(body)
    hf.journal.erase("ann")
    assert [one.key for one in hf.session("s").search("passport") if one.score == 1] == [kept.id]


# Damage, and what it costs


def test_a_lost_body_refuses_no_append_and_no_rebuild(tmp_path: Path) -> None:
    with opened(tmp_path / "a.db") as hf:
        chat = hf.session("s")
        chat.append(large("My passport is C01X."))
        for file in (tmp_path / "a.db-artifacts").rglob("*"):
            if file.is_file():
                file.unlink()
        chat.append(["Yes.", "No.", "Perhaps.", "Hello."])
        hf.journal.rebuild()
        assert chat.search("hello")[0].value.text == "Hello."


def test_ordinary_appends_ask_for_no_body(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []

    def noted(module: Any, name: str) -> None:
        known: Callable[..., str] = getattr(module, name)

        def spy(*given: Any) -> str:
            asked_for.append(given[-1])
            return known(*given)

        monkeypatch.setattr(module, name, spy)

    noted(search, "_artifact_beginning")
    noted(memory_journal.MemoryJournal, "_artifact_beginning")
    chat = hf.session("s")
    chat.append("One.", files=[("a.bin", b"\0" * 300_000)])
    chat.append(["Two.", "x" * 100_000])
    chat.append_result(asked(chat), {"artifact": "of another kind"})
    chat.append("Three.")
    assert len(chat.search("three")) > 0
    assert asked_for == []
    chat.append(large("Four."))
    assert asked_for == []
    chat.search("four")
    assert len(asked_for) == 1
