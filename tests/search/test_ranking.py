"""One order out of two scores: by what stands around a candidate, the same however the candidates are given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.search import rank
from holdfast.core.search.rank import SearchCandidate, rank_candidates
from tests.scale import volume

SHORT, LONG = 100.0, 2_000.0
SCORES = st.sampled_from([0.0, 0.3, 0.5, 1.0, 7.25])


@st.composite
def candidates(draw: Any) -> list[SearchCandidate]:
    return [
        SearchCandidate(
            id=number,
            text=draw(SCORES),
            cosine=draw(st.integers(-1_000, 1_000)) / 1_000,
            thread=draw(st.sampled_from(["", "one", 2])),
            position=draw(st.integers(0, 6)),
            session=draw(st.sampled_from(["", "a", "b"])),
            speaker=draw(st.sampled_from([None, "Ann", "Ben"])),
            is_question=draw(st.booleans()),
            salience=draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
            newest=draw(st.integers(0, 3)),
        )
        for number in range(draw(st.integers(0, 12)))
    ]


def ids(found: list[tuple[int, float]]) -> list[int]:
    return [id for id, _ in found]


def line(*scores: float, session: str = "a", name: str = "main") -> list[SearchCandidate]:
    """Messages of one conversation, numbered from 1."""
    return [
        SearchCandidate(id=number, text=score, thread=name, position=number, session=session, newest=number)
        for number, score in enumerate(scores, 1)
    ]


def check_order(given: list[SearchCandidate], other: list[SearchCandidate]) -> None:
    named = frozenset({"Ann"})
    found = rank_candidates(given, mean_length=SHORT, speakers_named=named, limit=100)
    assert found == rank_candidates(other, mean_length=SHORT, speakers_named=named, limit=100)
    assert rank_candidates(given, mean_length=SHORT, speakers_named=named, limit=3) == found[:3]
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert not scores or scores[0] == 1
    answers = {one.id for one in given if one.text > 0 or one.cosine > 0}
    assert answers <= set(ids(found))


@settings(deadline=None, max_examples=volume(150, 5_000))
@given(candidates().flatmap(lambda given: st.tuples(st.just(given), st.permutations(given))))
def test_the_order_does_not_depend_on_how_candidates_are_given(
    both: tuple[list[SearchCandidate], list[SearchCandidate]],
) -> None:
    check_order(*both)


def test_an_order_by_arrival_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    equal = [SearchCandidate(id=number, text=1.0) for number in range(3)]
    check_order(equal, equal[::-1])
    real = rank._own_scores
    monkeypatch.setattr(
        rank, "_own_scores", lambda given, weight: [s - i / 9 for i, s in enumerate(real(given, weight))]
    )
    with pytest.raises(AssertionError):
        check_order(equal, equal[::-1])


def test_equals_are_shown_newest_first_then_by_number() -> None:
    given = [
        SearchCandidate(id=1, text=1.0, newest=5),
        SearchCandidate(id=3, text=1.0, newest=9),
        SearchCandidate(id=2, text=1.0, newest=5),
    ]
    assert ids(rank_candidates(given, mean_length=SHORT, limit=9)) == [3, 1, 2]


def test_words_count_twice_as_much_as_vectors_each_measured_by_its_best() -> None:
    given = [SearchCandidate(id=1, text=1e-6, cosine=0.1), SearchCandidate(id=2, text=0.4e-6, cosine=0.8)]
    assert ids(rank_candidates(given, mean_length=SHORT, limit=9)) == [1, 2]
    assert ids(rank_candidates(given, mean_length=SHORT, vector_weight=1.0, limit=9)) == [2, 1]
    assert ids(rank_candidates(given, mean_length=SHORT, vector_weight=0.0, limit=9)) == [1, 2]


def test_scores_too_small_for_arithmetic_are_scores() -> None:
    tiny = 5e-324
    assert rank_candidates([SearchCandidate(id=1, text=tiny, cosine=tiny)], mean_length=SHORT, limit=5) == [(1, 1.0)]


def check_context() -> None:
    """A weak match beside a strong one is better than the same match elsewhere, unless messages are long."""
    given = line(0, 0, 1.0, 0.4, 0, 0, 0, 0.45)
    assert ids(rank_candidates(given, mean_length=SHORT, limit=2)) == [3, 4]
    assert ids(rank_candidates(given, mean_length=LONG, limit=2)) == [3, 8]


def test_what_stands_beside_a_match_counts_where_messages_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    check_context()
    for name, value in (("NEIGHBOUR_WEIGHTS", ()), ("SHORT_CHARS", 1_000_000)):
        with monkeypatch.context() as patch:
            patch.setattr(rank, name, value)
            with pytest.raises(AssertionError):
                check_context()


def check_sessions() -> None:
    """Of two messages with the same words, the one whose session has the best match comes first."""
    near = line(1.0, 0, 0, 0, 0.5, session="a", name="one")
    far = [
        SearchCandidate(id=10 + one.id, text=one.text / 2, thread="two", position=one.position, session="b", newest=99)
        for one in line(0, 0, 0, 0, 1.0)
    ]
    assert ids(rank_candidates([*near, *far], mean_length=SHORT, limit=9))[:1] == [1]
    found = ids(rank_candidates([*near, *far], mean_length=SHORT, limit=9))
    assert found.index(5) < found.index(15)


def test_a_session_that_fits_lifts_all_its_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sessions()
    monkeypatch.setattr(rank, "SESSION_WEIGHT", 0.0)
    with pytest.raises(AssertionError):
        check_sessions()


def test_a_message_is_no_answer_only_because_its_session_fits() -> None:
    assert ids(rank_candidates(line(1.0, 0, 0, 0, 0), mean_length=SHORT, limit=9)) == [1, 2, 3]


def test_what_has_no_line_has_no_context() -> None:
    given = [SearchCandidate(id=one.id, text=one.text, position=one.position, session="a") for one in line(1.0, 0.2, 0)]
    assert rank_candidates(given, mean_length=SHORT, limit=9) == [(1, 1.0), (2, pytest.approx(0.2))]
    apart = [*line(1.0), SearchCandidate(id=2, thread="other", position=2, session="a")]
    assert ids(rank_candidates(apart, mean_length=SHORT, limit=9)) == [1]


def test_a_speaker_who_is_named_comes_first_and_a_question_last() -> None:
    given = [
        SearchCandidate(id=1, text=1.0, speaker="Ben", newest=3),
        SearchCandidate(id=2, text=1.0, speaker="Ann", newest=2),
        SearchCandidate(id=3, text=1.0, is_question=True, newest=4),
    ]
    assert ids(rank_candidates(given, mean_length=SHORT, speakers_named=frozenset({"Ann"}), limit=9)) == [2, 1, 3]


def test_salience_moves_a_score_by_a_fifth_at_most_and_none_is_the_middle() -> None:
    given = [SearchCandidate(id=number, text=1.0, salience=value) for number, value in enumerate([0.0, 0.5, None, 1.0])]
    found = dict(rank_candidates(given, mean_length=SHORT, limit=9))
    assert found[1] == found[2]
    assert found[0] / found[1] == pytest.approx(0.8)
    assert found[3] / found[1] == pytest.approx(1.2)
    better = [SearchCandidate(id=1, text=1.0, salience=0.0), SearchCandidate(id=2, text=0.6, salience=1.0)]
    assert ids(rank_candidates(better, mean_length=SHORT, limit=9)) == [1, 2]


def test_nothing_is_found_among_nothing() -> None:
    assert rank_candidates([], mean_length=0, limit=5) == []
    assert rank_candidates([SearchCandidate(id=1, cosine=-0.5)], mean_length=SHORT, limit=5) == []
    assert rank_candidates([SearchCandidate(id=1, text=1.0)], mean_length=SHORT, limit=0) == []
