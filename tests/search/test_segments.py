"""Segments rank as one FTS5 table of the same texts does, however the texts are spread over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.search import segments
from holdfast.core.search.documents import TextRow
from holdfast.core.search.segments import (
    DamagedSegment,
    TextSegment,
    build_segment,
    choose_merge,
    decode_block,
    find_rows,
    merge_segments,
    rank_rows,
    read_postings,
    view_segment,
)
from holdfast.core.search.words import query_terms
from holdfast.sqlite.fts import STEMS, TextIndex
from tests.scale import seeded, volume
from tests.search.test_text_index import SCRIPTS

WORDS = ["refund", "refunds", "gloss", "tulip", "near", "plumb", "plumbing", "May", "8", "user_42", "Köln", "running"]
Found = list[tuple[int, float]]


def invent_rows(chance: random.Random, count: int) -> list[TextRow]:
    """Texts of some words, with contexts and dates, in three places."""

    def say(most: int) -> str:
        return " ".join(chance.choices(WORDS, k=chance.randrange(1, most)))

    return [
        TextRow(seq, say(30), say(5) if chance.random() < 0.5 else "", "8 May 2023", str(chance.randrange(3)))
        for seq in sorted(chance.sample(range(1, 10_000), count))
    ]


def ask_table(rows: Sequence[TextRow], terms: Sequence[str], places: list[str] | None, limit: int) -> Found:
    connection = apsw.Connection(":memory:")
    index = TextIndex(connection, "said")
    index.create()
    index.add(rows)
    found = index.match(terms, places, limit)
    connection.close(True)
    return found


def ask_segments(
    parts: Sequence[tuple[TextSegment, frozenset[int]]], terms: Sequence[str], places: list[str] | None, limit: int
) -> Found:
    words = [STEMS[term] for term in terms]
    views = [view_segment(one, words, hidden) for one, hidden in parts]
    return rank_rows(views, words, None if places is None else [int(place) for place in places]).best(limit)


def spread(chance: random.Random, rows: Sequence[TextRow]) -> list[tuple[TextSegment, frozenset[int]]]:
    """Index texts in several segments, some of them merged, with other texts among them that are hidden."""
    parts: list[tuple[TextSegment, frozenset[int]]] = []
    left = list(rows)
    while left:
        size = chance.randrange(1, 20)
        some, left = left[:size], left[size:]
        others = [TextRow(20_000 + 100 * len(parts) + number, "gloss over tulip") for number in range(3)]
        mixed = chance.sample([*some, *others], len(some) + 3)
        built = build_segment(mixed, STEMS)
        parts.append((built, find_rows(built.rows, [one.rowid for one in others])))
        if chance.random() < 0.3:
            parts = [(merge_segments(parts), frozenset())]
    return parts


def check_ranking(chance: random.Random) -> None:
    rows = invent_rows(chance, chance.randrange(1, 60))
    parts = spread(chance, rows)
    for _ in range(3):
        terms = query_terms(" ".join(chance.choices(WORDS, k=chance.randrange(1, 6))))
        places = chance.choice([None, ["1"], ["0", "2"], []])
        limit = chance.choice([1, 5, 1_000])
        known = ask_table(rows, terms, places, limit)
        found = ask_segments(parts, terms, places, limit)
        assert [seq for seq, _ in found] == [seq for seq, _ in known]
        assert [score for _, score in found] == pytest.approx([score for _, score in known], rel=1e-12)


def check_rankings(chances: Iterable[random.Random]) -> None:
    for chance in chances:
        check_ranking(chance)


def test_texts_rank_as_in_one_table_of_fts5() -> None:
    chance = seeded("ranking of segments")
    check_rankings(repeat(chance, volume(60, 3_000)))


def hidden_texts_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segments, "_kept_rows", lambda count, removed: segments.load_numpy().ones(count, bool))


def rarity_of_each_segment(patch: pytest.MonkeyPatch) -> None:
    known = segments._weigh_rarity
    patch.setattr(segments, "_weigh_rarity", lambda total, pairs, loaded: known(total, pairs[:1], loaded[:1]))


def merged_numbers_begin_again(patch: pytest.MonkeyPatch) -> None:
    known = segments._renumber
    patch.setattr(segments, "_renumber", lambda block, kept, fresh: known(block, kept, fresh - fresh[0]))


class Unstemmed(dict[str, str]):
    def __missing__(self, word: str) -> str:
        return word


def words_are_not_stemmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.search.test_segments.STEMS", Unstemmed())


@pytest.mark.parametrize(
    "plant", [hidden_texts_count, rarity_of_each_segment, merged_numbers_begin_again, words_are_not_stemmed]
)
def test_another_ranking_would_be_seen(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        check_rankings(map(random.Random, range(60)))


def test_merging_gives_the_segment_of_all_texts() -> None:
    rows = invent_rows(seeded("merging"), 90)
    apart = [(build_segment(rows[first : first + 30], STEMS), frozenset[int]()) for first in range(0, 90, 30)]
    assert merge_segments(apart) == build_segment(rows, STEMS)
    hidden = [(build_segment(rows, STEMS), frozenset(range(0, 90, 2)))]
    assert merge_segments(hidden) == build_segment(rows[1::2], STEMS)


def test_merging_keeps_segments_few() -> None:
    sizes: list[tuple[int, int]] = []
    merged = 0
    for _ in range(volume(400, 20_000)):
        sizes.append((256, 0))
        while chosen := choose_merge(sizes):
            total = sum(sizes[number][0] for number in chosen)
            merged += total
            sizes = [*(one for number, one in enumerate(sizes) if number not in chosen), (total, 0)]
    texts = sum(size for size, _ in sizes)
    assert len(sizes) <= 7 * 3 + texts / 16_384
    assert merged <= 3 * texts


def test_a_segment_that_is_mostly_hidden_is_written_anew() -> None:
    assert choose_merge([(100, 51), (5_000, 0)]) == (0,)
    assert choose_merge([(100, 50), (5_000, 2_500)]) == ()


@settings(deadline=None, max_examples=volume(100, 3_000))
@given(st.text(st.characters()))
def test_no_text_is_refused(text: str) -> None:
    one = build_segment([TextRow(1, text, text, text, "1")], STEMS)
    assert merge_segments([(one, ())]) == one
    found = ask_segments([(one, frozenset())], query_terms(text), None, 5)
    assert [seq for seq, _ in found] == ([1] if query_terms(text) else [])


def test_every_term_of_a_text_finds_it_in_any_script() -> None:
    chance = seeded("scripts")
    for _ in range(volume(300, 20_000)):
        letters = [chance.choice(SCRIPTS) if chance.random() < 0.9 else " " for _ in range(chance.randrange(1, 40))]
        text = "".join(letters)
        one = build_segment([TextRow(1, text)], STEMS)
        for term in query_terms(text):
            assert ask_segments([(one, frozenset())], [term], None, 5), (text, term)


def test_damaged_bytes_are_noticed() -> None:
    chance = seeded("damage")
    whole = build_segment(invent_rows(chance, 30), STEMS)
    for _ in range(volume(300, 20_000)):
        _, body = chance.choice(whole.blocks)
        at = chance.randrange(len(body))
        damaged = chance.choice([body[:at], body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :]])
        try:
            block = decode_block(damaged)
        except DamagedSegment:
            continue
        assert block == decode_block(body), "damage went unnoticed"
    with pytest.raises(DamagedSegment):
        merge_segments([(TextSegment(whole.count, whole.tokens, whole.rows[:-1], whole.blocks), ())])
    with pytest.raises(DamagedSegment):
        merge_segments([(TextSegment(1, 1, segments._seal(whole.rows[4:18]), whole.blocks), ())])


def test_a_block_gives_only_the_words_that_are_asked_for() -> None:
    whole = build_segment([TextRow(1, "amber birch amber"), TextRow(2, "birch")], STEMS)
    assert read_postings(whole.blocks[0][1], {"amber", "cedar"}) == {"amber": (b"\0\0", b"\4")}
