"""The text index: whatever is asked is words, in the places asked for and no others, and gone is gone."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.search import words
from holdfast.core.search.documents import TextRow
from holdfast.core.search.words import query_terms
from holdfast.errors import Corrupt
from holdfast.sqlite import fts
from holdfast.sqlite.fts import TextIndex
from tests.scale import seeded, volume

KNOWN = ["refund", "gloss", "tulip", "near", "place", "text", "prev", "plumb"]
HOSTILE = ['"', "AND", "OR", "NOT", "NEAR(", "*", "^", ":", "{", "}", "(", ")", "-", "+", ",", "\0", "\ud800", ";", "'"]
ALPHABETS = [
    *[(0x20, 0x7E), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x620, 0x655), (0x904, 0x94D)],
    *[(0xE01, 0xE4E), (0x3042, 0x30F6), (0x4E00, 0x4E40), (0xAC00, 0xAC40), (0xFF21, 0xFF3A)],
]
SCRIPTS = "".join(chr(letter) for first, last in ALPHABETS for letter in range(first, last))


@pytest.fixture
def index() -> Iterator[TextIndex]:
    connection = apsw.Connection(":memory:")
    made = TextIndex(connection, "said")
    made.create()
    yield made
    connection.close(True)


def rows(found: list[tuple[int, float]]) -> set[int]:
    return {rowid for rowid, _ in found}


def ask(index: TextIndex, query: str, places: list[str] | None = None, limit: int = 100) -> list[tuple[int, float]]:
    return index.match(query_terms(query), places, limit)


def check_questions_are_words(index: TextIndex, chance: random.Random, times: int) -> None:
    """Each row is one word. A question finds the rows of its words, whatever stands between them."""
    for _ in range(times):
        pieces = chance.choices([*KNOWN, *HOSTILE, *HOSTILE], k=chance.randrange(12))
        query = "".join(piece + chance.choice(["", " "]) for piece in pieces)
        asked = query_terms(query)
        expected = {number for number, word in enumerate(KNOWN) if word in asked}
        assert rows(index.match(asked, None, 100)) == expected, query
        assert rows(index.match(asked, ["s1"], 100)) == {number for number in expected if number % 2}
        # A caller who forgets to take a question apart gets nothing worse than fewer answers.
        written = {number for number, word in enumerate(KNOWN) if word in query.lower()}
        assert rows(index.match([query, *query.split()], None, 100)) <= written


def test_no_question_is_anything_but_words(index: TextIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = seeded("questions")
    index.add(TextRow(number, word, place=f"s{number % 2}") for number, word in enumerate(KNOWN))
    check_questions_are_words(index, chance, volume(400, 30_000))
    monkeypatch.setattr(fts, "_quote_term", lambda term: term)
    with pytest.raises((AssertionError, apsw.SQLError, UnicodeError)):
        check_questions_are_words(index, chance, 400)


@settings(deadline=None, max_examples=volume(100, 3_000))
@given(st.text(st.characters()))
def test_no_text_and_no_question_is_refused(text: str) -> None:
    connection = apsw.Connection(":memory:")
    index = TextIndex(connection, "said")
    index.create()
    index.add([TextRow(1, text, text, text, "s1")])
    ask(index, text)
    index.match([text], ["s1"], 5)
    assert index.rowids() == [1]
    connection.close(True)


def check_found_by_itself(index: TextIndex, seeds: range) -> None:
    for chance in map(random.Random, seeds):
        letters = [chance.choice(SCRIPTS) if chance.random() < 0.9 else " " for _ in range(chance.randrange(1, 40))]
        text = "".join(letters)
        index.add([TextRow(1, text)])
        for term in query_terms(text):
            assert rows(index.match([term], None, 5)) == {1}, (text, term)


def test_every_term_of_a_text_finds_it_in_any_script(index: TextIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    check_found_by_itself(index, range(volume(400, 20_000)))
    monkeypatch.setattr(words, "_LETTERS", re.compile("(?!)"))
    with pytest.raises(AssertionError):
        check_found_by_itself(index, range(400))


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("My daughter’s allergies got worse", "is my daughter allergic?"),  # noqa: RUF001
        ("We ran C++ and not C# there", "c++"),
        ("The durable-execution engine of user_42", "durable execution"),
        ("The durable-execution engine of user_42", "USER_42"),
        ("Ich wohne in Köln", "koln"),
        ("私は東京駅で会った", "東京駅はどこ"),
        ("Hashing gave " + "0f" * 32, "0F" * 32),
    ],
)
def test_a_text_is_found_by_other_forms_of_its_words(index: TextIndex, text: str, query: str) -> None:
    index.add([TextRow(1, text), TextRow(2, "something else, 京, in C")])
    assert rows(ask(index, query)) == {1}


def test_words_of_one_stem_may_be_asked_for_together(index: TextIndex) -> None:
    index.add([TextRow(1, "she runs"), TextRow(2, "a walk"), TextRow(3, "a ride")])
    assert rows(ask(index, "run runs running walked")) == {1, 2}


def fill(index: TextIndex, chance: random.Random, count: int = 60) -> dict[int, str]:
    """Rows of some words in six places and two groups; gives the place of each."""
    places = {}
    for number in range(count):
        places[number] = f"s{chance.randrange(6)}"
        said, before = (" ".join(chance.choices(KNOWN, k=chance.randrange(1, 9))) for _ in range(2))
        date = chance.choice(["8 May 2023", "9 June 2023"])
        index.add([TextRow(number, said, before, date, f"{places[number]} g{number % 2}")])
    return places


def check_places(index: TextIndex, places: dict[int, str], chance: random.Random, times: int) -> None:
    """Asking in some places is the same as asking everywhere and leaving out the others, also in its scores."""
    for _ in range(times):
        query = " ".join(chance.choices([*KNOWN, "8 May", "s1", "g1"], k=3))
        everywhere = ask(index, query)
        assert everywhere or set(query_terms(query)) <= {"s1", "g1"}
        asked = [f"s{number}" for number in chance.sample(range(6), 2)]
        assert ask(index, query, asked) == [hit for hit in everywhere if places[hit[0]] in asked]
        assert ask(index, query, ["g1"]) == [hit for hit in everywhere if hit[0] % 2]
        assert ask(index, query, []) == ask(index, query, ["s9"]) == []
        assert ask(index, query, limit=3) == everywhere[:3]
        assert everywhere == sorted(everywhere, key=lambda hit: (-hit[1], -hit[0]))
        assert all(score > 0 for _, score in everywhere)


def test_only_rows_of_the_places_asked_for_are_found(index: TextIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = seeded("places")
    places = fill(index, chance)
    check_places(index, places, chance, volume(60, 5_000))
    monkeypatch.setattr(fts, "_quote_place", lambda token: '"s1" OR place : "s2"' if token == "s1" else f'"{token}"')
    with pytest.raises(AssertionError):
        check_places(index, places, chance, 60)


def test_a_name_of_a_place_or_a_table_is_never_anybodys_text(index: TextIndex) -> None:
    for place in ('"', "s1 OR s2", "", "s*", "ä"):
        with pytest.raises(Corrupt):
            index.match(["refund"], [place], 5)
    for table in ("a b", "x; DROP TABLE y", "", "Ä"):
        with pytest.raises(Corrupt):
            TextIndex(apsw.Connection(":memory:"), table)


def test_what_another_table_holds_changes_no_score() -> None:
    connection = apsw.Connection(":memory:")
    mine, other = TextIndex(connection, "mine"), TextIndex(connection, "other")
    mine.create()
    fill(mine, random.Random(1))
    before = [ask(mine, word) for word in KNOWN]
    other.create()
    fill(other, random.Random(2))
    assert [ask(mine, word) for word in KNOWN] == before
    # Within one table, more rows do change scores: this is what the tables are apart for.
    other.add([TextRow(number + 100, "gloss") for number in range(50)])
    assert [ask(mine, word) for word in KNOWN] == before
    assert ask(mine, "gloss") != ask(other, "gloss")
    other.drop()
    assert not other.exists()
    assert [ask(mine, word) for word in KNOWN] == before
    connection.close(True)


def test_the_message_before_and_the_date_find_a_row_too(index: TextIndex) -> None:
    index.add([TextRow(1, "Yes, at noon.", prev="Is the plumber coming?", date="8 May 2023")])
    index.add([TextRow(2, "The plumber left.", date="9 June 2023")])
    assert [rowid for rowid, _ in ask(index, "plumber")] == [2, 1]
    assert [rowid for rowid, _ in ask(index, "What about the plumber in May?")] == [1, 2]


def test_a_row_that_is_added_again_is_found_by_its_new_words_alone(index: TextIndex) -> None:
    index.add([TextRow(1, "refund"), TextRow(2, "tulip")])
    index.add([TextRow(1, "gloss", place="s1")])
    assert ask(index, "refund") == []
    assert rows(ask(index, "gloss", ["s1"])) == {1}
    assert index.rowids() == [1, 2]
    index.remove([1, 7])
    assert ask(index, "gloss") == []
    assert index.rowids() == [2]


def test_nothing_is_kept_of_a_transaction_that_is_undone(index: TextIndex) -> None:
    index._connection.execute("BEGIN")
    index.add([TextRow(1, "refund")])
    index._connection.execute("ROLLBACK")
    assert ask(index, "refund") == []
    assert index.is_sound()
