"""Questions find the message that answers them: on real conversations where they are at hand, else on made ones."""

from __future__ import annotations

import random

import pytest

from bench import retrieval
from bench.retrieval import Question, Said, located, shares
from bench.session_texts import text
from holdfast.core.search import words
from holdfast.flow.state import search

People = dict[str, list[Said]]


def made() -> tuple[People, list[Question]]:
    """Conversations of which every question takes three words, in other forms, and asks around them."""
    people = {
        name: [Said(at // 10, at % 10, text(100 * number + at)[:500]) for at in range(80)]
        for number, name in enumerate("abc")
    }
    chance, asked = random.Random(4), []
    for name, messages in people.items():
        for at in chance.sample(range(len(messages)), 40):
            rare = sorted(set(terms_of(messages[at].text)), key=len)[-8:]
            asked.append(Question(name, f"What did I tell you about the {' and '.join(chance.sample(rare, 4))}s?", at))
    return people, asked


def terms_of(said: str) -> list[str]:
    return [word for word in words.index_text(said).split() if word.isalpha()]


def questions() -> tuple[People, list[Question]]:
    if not retrieval.DATA.exists():
        return made()
    people = retrieval.conversations()
    return people, retrieval.questions(people)[0]


def check(people: People, asked: list[Question]) -> None:
    assert shares(people, asked, None)[5] >= retrieval.TEXT_BAR


def test_the_source_is_among_the_first_five_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    people, asked = questions()
    check(people, asked)
    check(*made())
    monkeypatch.setattr(
        search, "rank_candidates", lambda given, **_: [(one.id, 1.0) for one in given if one.text][-10:]
    )
    with pytest.raises(AssertionError):
        check(people, asked)


def test_the_source_is_among_the_first_five_by_words_and_vectors() -> None:
    people, asked = questions()
    assert shares(people, asked, "wordllama")[5] >= retrieval.VECTOR_BAR


def test_a_source_is_the_message_that_contains_every_piece_of_its_quotation() -> None:
    said = [Said(0, 0, "I live here. My dog, Archie, is old!"), Said(0, 1, "Monday: rain. Tuesday: my dog ate.")]
    assert located("...my dog, Archie... is old", said) == [0]
    assert located("Tuesday: My dog ate.", said) == [1]
    assert located("my dog", said) == [0, 1]
    assert located("my dogs", said) == []
