"""Finding what was said: by words, by what stands around, by meaning; in this line, as it stands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast import Holdfast, Settings
from holdfast.journal import text_index
from holdfast.testing.clock import FrozenClock


def by_letters(texts: list[str]) -> list[list[float]]:
    """Vectors that are alike when the same letters occur: enough to be found without a word in common."""
    return [[float(text.lower().count(letter)) + 0.01 for letter in "aeiouhnst"] for text in texts]


@pytest.fixture(params=["memory:", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = tmp_path / "a.db" if request.param == "sqlite" else request.param
    with holdfast.open(url, clock=FrozenClock()) as opened:
        yield opened


def found(results: object) -> list[str]:
    return [result.value.text for result in results]  # type: ignore[attr-defined]


def test_a_message_is_found_by_its_words_whatever_their_form(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append(["We planned a trip to Lisbon.", "The invoice is overdue.", "My cat sleeps all day."])
    assert found(chat.search("planning trips"))[0] == "We planned a trip to Lisbon."
    assert found(chat.search("INVOICES"))[0] == "The invoice is overdue."
    (first, *_) = chat.search("invoice")
    assert (first.kind, first.score, first.scope) == ("message", 1.0, "session/alice/thread/main")
    assert first.key == first.value.id
    assert "invoice" in first.snippet


def test_what_was_said_next_is_found_with_what_was_asked(hf: Holdfast) -> None:
    chat = hf.session("alice")
    for number in range(20):
        chat.append(f"Filler number {number}.")
    chat.append("Which airline did you book for the conference?")
    chat.append({"role": "assistant", "content": "Icelandair."})
    assert "Icelandair." in found(chat.search("which airline for the conference", limit=2))


def test_a_day_is_found_by_its_name(hf: Holdfast) -> None:
    chat = hf.session("alice")
    clock = hf.env.clock
    assert isinstance(clock, FrozenClock)
    for text in ("Went swimming.", "Went climbing.", "Went sailing."):
        chat.append(text)
        clock.advance(40 * 24 * 3600 * 1000)
    by_month = [found(chat.search(f"what did I do in {month}"))[0] for month in ("June", "July", "September")]
    assert by_month == ["Went swimming.", "Went climbing.", "Went sailing."]


def test_what_was_retracted_or_reset_is_not_found(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append("The password is swordfish.")
    kept = chat.append("Hello again.")
    chat.append("The password is marlin.")
    chat.rewind(to=kept)
    assert found(chat.search("password marlin"))[:1] == ["The password is swordfish."]
    assert "The password is marlin." not in found(chat.search("marlin"))
    chat.reset()
    chat.append("A new beginning.")
    assert chat.search("swordfish") == []
    assert [one for one in hf.search("swordfish") if one.kind == "message"] == []


def test_a_greeting_after_a_reset_is_not_found_by_words_from_before_it(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append(["Hello.", "My password is HUNTER2."])
    chat.reset()
    chat.append("hi")
    assert found(chat.search("password HUNTER2")) == found(hf.search("password HUNTER2")) == []
    chat.append("The invoice is overdue.")
    chat.append("oh")
    assert found(chat.search("invoice"))[:2] == ["The invoice is overdue.", "oh"]
    # Words that are indexed again, for an erasure or a repair, get no others either.
    hf.as_user("ann").session("alice").append("Ann was here.")
    hf.journal.erase("ann")
    hf.journal.rebuild()
    assert found(chat.search("password HUNTER2")) == found(hf.search("password HUNTER2")) == []


def test_context_that_crosses_a_reset_is_found(monkeypatch: pytest.MonkeyPatch, hf: Holdfast) -> None:
    def crossing(placed: text_index.IndexedEvent, text: str) -> bool:
        return placed.event.type == "message.appended"

    monkeypatch.setattr(text_index, "needs_context", crossing)
    with pytest.raises(AssertionError):
        test_a_greeting_after_a_reset_is_not_found_by_words_from_before_it(hf)


def test_a_branch_finds_what_it_shares_and_its_parent_does_not_find_what_it_adds(hf: Holdfast) -> None:
    chat = hf.session("alice")
    at = chat.append("We agreed on the blue paint.")
    chat.append("No, on the green paint.")
    branch = chat.fork(at=at, thread="b")
    branch.append("Then we chose a brush for the paint.")
    assert set(found(branch.search("paint"))) == {
        "We agreed on the blue paint.",
        "Then we chose a brush for the paint.",
    }
    assert set(found(chat.search("paint"))) == {"We agreed on the blue paint.", "No, on the green paint."}
    chat.rewind(before=at)
    assert "We agreed on the blue paint." in found(branch.search("paint"))


def test_one_session_does_not_find_what_another_holds(hf: Holdfast) -> None:
    hf.session("alice").append("The code is 4711.")
    hf.session("alic").append("Nothing here.")
    assert hf.session("alic").search("code 4711") == []
    assert len(hf.search("code 4711")) == 1


def test_tool_results_are_found_and_arguments_are_not(hf: Holdfast) -> None:
    chat = hf.session("alice")
    call = {"id": "c1", "function": {"name": "lookup", "arguments": '{"city": "Tromsø"}'}}
    chat.append({"role": "assistant", "tool_calls": [call]})
    chat.append({"role": "tool", "tool_call_id": "c1", "content": "Sunset at 14:02, polar lights likely"})
    (best, *_) = chat.search("polar lights")
    assert best.value.role == "tool"
    assert "polar lights" in best.snippet


def test_languages_without_spaces_are_found(hf: Holdfast) -> None:
    chat = hf.session("alice")
    chat.append(["私は東京に住んでいます", "猫が好きです", "Ich wohne in München"])
    assert found(chat.search("東京"))[0] == "私は東京に住んでいます"
    assert found(chat.search("Munchen"))[0] == "Ich wohne in München"


@pytest.mark.parametrize(
    "query", ['durable-execution "AND C++', "*", '"', "NEAR(a b)", "text: x", "", "\0", "a" * 50_000]
)
def test_any_text_may_be_asked_for(hf: Holdfast, query: str) -> None:
    chat = hf.session("alice")
    chat.append(["We write C++ with durable-execution AND tests.", "a b"])
    results = chat.search(query)
    assert len(results) <= 2
    if "C++" in query:
        assert found(results)[0].startswith("We write C++")


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": -1}, {"limit": 10**9}, {"limit": True}, {"limit": "5"}])
def test_a_limit_that_cannot_be_is_refused(hf: Holdfast, bad: dict[str, int]) -> None:
    with pytest.raises(holdfast.errors.InvalidValue, match="limit must be"):
        hf.session("alice").search("x", **bad)
    with pytest.raises(holdfast.errors.InvalidValue, match="query must be text"):
        hf.session("alice").search(7)  # type: ignore[arg-type]


def test_without_an_index_nothing_is_found_until_it_is_turned_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, settings=Settings(index_text=0)) as hf:
        hf.session("alice").append("The invoice is overdue.")
        hf.state("user/1").write("note", "an invoice")
        assert hf.session("alice").search("invoice") == []
    with holdfast.open(path) as hf:
        assert len(hf.session("alice").search("invoice")) == 1
        assert hf.state("user/1").write("note", "an invoice, again") > 0
    with holdfast.open(path, settings=Settings(index_text=0)) as hf:
        hf.state("user/1").write("note", "an invoice")
        assert hf.journal.verify().findings == ()
    with holdfast.open(path) as hf:
        assert len(hf.state("user/1").search("invoice")) == 1
        hf.journal.rebuild()
        assert len(hf.session("alice").search("invoice")) == 1
        assert len(hf.state("user/1").search("invoice")) == 1
        assert hf.journal.verify().findings == ()


def test_what_has_no_word_in_common_is_found_by_meaning(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", embedder=by_letters) as hf:
        chat = hf.session("alice")
        chat.append(["oooo uuuu oooo", "iiii eeee iiii"])
        assert found(chat.search("uuuooo"))[0] == "oooo uuuu oooo"
        assert found(chat.search("eeeiii"))[0] == "iiii eeee iiii"
        state = hf.state("user/1")
        state.write("a", "oooo uuuu oooo")
        state.write("b", "iiii eeee iiii")
        assert state.search("uuuooo")[0].key == "a"
        state.write("a", "iii eee iiii")
        state.write("b", "ooo uuu ooo")
        assert state.search("uuuooo")[0].key == "b"


def test_an_embedder_that_is_out_of_order_leaves_the_words(tmp_path: Path) -> None:
    def broken(texts: list[str]) -> list[list[float]]:
        raise OSError("no route to host")

    with holdfast.open(tmp_path / "a.db", embedder=broken) as hf:
        chat = hf.session("alice")
        chat.append(["The invoice is overdue.", "My cat sleeps."])
        assert found(chat.search("invoice"))[0] == "The invoice is overdue."
        hf.state("user/1").write("note", "an invoice")
        assert hf.state("user/1").search("invoice")[0].key == "note"


def test_a_search_answers_also_when_its_cache_cannot_be_tidied_up(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, embedder=by_letters, settings=Settings(busy_ms=10)) as hf:
        state = hf.state("user/1")
        state.write("a", "oooo uuuu")
        state.write("b", "uuu iiii")
        assert len(state.search("uuuu")) == 2
        state.delete("a")
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        assert [one.key for one in state.search("uuuu")] == ["b"]
        other.execute("ROLLBACK")
        other.close()


def test_texts_are_embedded_once_and_again_only_when_they_change(tmp_path: Path) -> None:
    asked: list[str] = []

    def counted(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return by_letters(texts)

    for _ in range(2):
        with holdfast.open(tmp_path / "a.db", embedder=counted) as hf:
            chat = hf.session("alice")
            if not len(chat):
                chat.append(["same words", "same words", "other words"])
            chat.search("words")
            chat.search("words")
    assert sorted(text for text in asked if text != "words") == ["other words", "same words"]


def test_a_hit_that_the_index_no_longer_stands_for_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.journal import text_index as texts

    monkeypatch.setattr(texts, "is_match", lambda search, hit: True)
    with holdfast.open(tmp_path / "a.db") as hf, pytest.raises(AssertionError):
        test_what_was_retracted_or_reset_is_not_found(hf)
