"""Words of questions and of texts are taken apart alike, whatever is written; snippets show where they stand."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.search import words
from holdfast.core.search.words import (
    context_before,
    find_named,
    flatten_value,
    index_text,
    make_snippet,
    query_terms,
    space_letters,
)
from tests.scale import volume

ANYTHING = st.text(st.characters())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("What is my daughter's name?", ("daughter", "name")),
        ("I can't find the receipt, won't you?", ("find", "receipt")),
        ("Where\u2019s Zoë\u2019s café?", ("zoe", "cafe")),
        ('durable-execution "AND C++', ("durable", "execution", "and", "cplusplus")),
        ("C# or C, not item#3", ("csharp", "c", "item", "3")),
        ("user_42 paid $49.99 at 6:30", ("user", "42", "paid", "49", "99", "6", "30")),
        ("refund Refund REFUND", ("refund",)),
        ("What happened in May?", ("happened", "may")),
        ("What is due on 8 may?", ("due", "8", "may")),
        ("Was it sent by early May or late?", ("sent", "early", "may", "late")),
        ("May I ask what is due?", ("ask", "due")),
        ("you may want to see", ("want", "see")),
        ("What did IT ask us to change?", ("it", "ask", "change")),
        ("WHAT IS THE BUDGET", ("budget",)),
        ("Who are you?", ("who", "are", "you")),
        ("The Who", ("the", "who")),
        ("東京タワー 2023年", ("東京", "京タ", "タワ", "ワー", "2023", "年")),
        ("서울역", ("서울", "울역")),
        ("สวัสดี", ("สว", "วส", "สด")),
        ("ＡＢＣ ﬁne", ("abc", "fine")),  # noqa: RUF001
        ("", ()),
        ("?! -- \0 \ud800 … 🎉", ()),
    ],
)
def test_a_question_is_reduced_to_the_words_worth_looking_for(query: str, found: tuple[str, ...]) -> None:
    assert query_terms(query) == found


def test_names_of_people_who_speak_are_left_out_unless_nothing_else_is_asked() -> None:
    people = ["Caroline", "Mary Ann"]
    assert query_terms("What did Caroline's sister tell Mary about the cake?", people) == ("sister", "cake")
    assert query_terms("Who is Caroline?", people) == ("caroline",)
    assert find_named("What did Caroline's sister tell Mary?", people) == {"Caroline"}
    assert find_named("did mary ann call", people) == {"Mary Ann"}
    assert find_named("anything", ["", "?"]) == frozenset()


@settings(deadline=None, max_examples=volume(100, 3_000))
@given(ANYTHING, st.lists(st.text(max_size=10), max_size=3))
def test_terms_are_few_different_and_made_of_letters_and_digits(query: str, names: list[str]) -> None:
    found = query_terms(query, names)
    assert len(found) == len(set(found)) <= words.MAX_TERMS
    assert all(term.isalnum() for term in found)
    kept = index_text(query)
    kept.encode()
    assert all(letter.isalnum() or letter == " " for letter in kept)


def test_a_question_of_any_length_costs_a_bounded_number_of_terms() -> None:
    assert len(query_terms(" ".join(f"word{number}" for number in range(100_000)))) == words.MAX_TERMS
    assert query_terms("x" * 500) == ("x" * words.MAX_WORD_CHARS,)
    assert index_text("x" * 500) == "x" * words.MAX_WORD_CHARS


def test_a_text_is_indexed_without_function_words_unless_it_has_no_others() -> None:
    assert index_text("The IT people gave us a key to the door") == "it people gave key door"
    assert index_text("To be or not to be") == "not"
    assert index_text("There it is") == "there it is"
    assert space_letters("東京 tower").split() == ["東", "京", "tower"]


def test_only_a_short_message_is_given_the_end_of_the_one_before() -> None:
    before = " ".join(f"word{number}" for number in range(100))
    assert context_before("Yes, on Tuesday.", "When?") == "When?"
    found = context_before("Yes, on Tuesday.", before)
    assert before.endswith(f" {found}")
    assert words.CONTEXT_CHARS - 10 < len(found) < words.CONTEXT_CHARS
    assert context_before("long " * 100, before) == context_before("short", "") == ""


def test_the_text_of_a_value_is_its_fields_strings_and_numbers_in_order() -> None:
    value = {"diet": {"avoid": ["nuts", "milk"], "meals": 3, "strict": True}, "note": None, "weight": 61.5}
    assert flatten_value(value, 1_000) == "diet\navoid\nnuts\nmilk\nmeals: 3\nstrict\nnote\nweight: 61.5"
    assert flatten_value("plain", 3) == "pla"
    assert flatten_value(10**5000, 100) == ""


@settings(deadline=None, max_examples=volume(60, 2_000))
@given(JSON, st.integers(0, 60))
def test_the_text_of_any_value_is_within_its_limit(value: Any, limit: int) -> None:
    whole = flatten_value(value, 10_000)
    assert (
        flatten_value(value, limit) == whole[:limit].removesuffix("\n") or flatten_value(value, limit) == whole[:limit]
    )


def test_a_value_nested_beyond_any_stack_has_a_text() -> None:
    value: Any = "found"
    for _ in range(50_000):
        value = [value]
    assert flatten_value(value, 100) == "found"


def test_a_snippet_shows_where_most_of_the_terms_stand() -> None:
    filler = "nothing to see in this part of it, " * 20
    text = f"{filler}a refund was late. {filler}The refund of the allergic customer was paid. {filler}"
    shown = make_snippet(text, ("refund", "allergy", "paid"))
    assert "refund of the allergic customer was paid" in shown
    assert shown[0] == shown[-1] == "…"
    assert "旅館の予約" in make_snippet("あ" * 400 + "旅館の予約" + "い" * 400, query_terms("旅館の予約"))
    assert make_snippet(text, ()) == make_snippet(text, ("absent",)) == text[:160].rpartition(" ")[0] + "…"


@settings(deadline=None, max_examples=volume(60, 2_000))
@given(st.text(st.characters(), max_size=300), st.lists(st.text(st.characters(), max_size=4), max_size=4))
def test_a_snippet_is_made_for_any_text_and_any_terms(text: str, looked_for: list[str]) -> None:
    assert make_snippet(text, looked_for, 40).removeprefix("…").removesuffix("…") in text
    assert (
        make_snippet("a (b) [c*" * 30, ["(", "[c*", "", "\\"], 40).removeprefix("…").removesuffix("…")
        in "a (b) [c*" * 30
    )


def check_snippets(seeds: range, bag: list[str], *, between_words: bool) -> None:
    for chance in map(random.Random, seeds):
        text = " ".join(chance.choices(bag, k=chance.randrange(120)))
        width = chance.randrange(30, 200)
        shown = make_snippet(text, query_terms(" ".join(chance.choices(bag, k=3))), width)
        inner = shown.removeprefix("…").removesuffix("…")
        assert inner in text
        assert len(inner) <= width
        assert shown.startswith("…") or text.lstrip().startswith(inner)
        assert shown.endswith("…") or text.rstrip().endswith(inner)
        assert not between_words or set(inner.split()) <= set(bag)


def test_a_snippet_is_a_part_of_its_text_cut_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(volume(150, 10_000))
    short = ["refund", "Zoë", "paid", "a", "42", "C++", "東京", "ééé"]
    check_snippets(seeds, short, between_words=True)
    check_snippets(seeds, [*short, "x" * 300, "東京駅" * 40, "\n\n"], between_words=False)
    monkeypatch.setattr(words, "SNIPPET_SLACK", 0)
    with pytest.raises(AssertionError):
        check_snippets(seeds, short, between_words=True)
