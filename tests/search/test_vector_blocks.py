"""Likeness in blocks gives the answers of the plain way."""

from __future__ import annotations

import pytest

from holdfast.flow.state import vectors
from holdfast.flow.state.vectors import VectorBlocks, VectorScores, append_vectors, count_vectors
from holdfast.sqlite.vectors import pack_vectors, similarities
from tests.scale import seeded, volume

COUNT, DIMENSIONS = volume(60, 600), 5


def _rows() -> list[tuple[int, bytes]]:
    """Vectors with numbers that grow; some are alike to the bit, and some are like nothing."""
    chance = seeded("vectors")
    numbers = [[chance.choice((-1.0, 0.0, 0.5, 1.0)) for _ in range(DIMENSIONS)] for _ in range(COUNT)]
    seqs = sorted(chance.sample(range(1, 10 * COUNT), COUNT))
    return list(zip(seqs, pack_vectors(numbers, COUNT, None), strict=True))


def _in_parts(rows: list[tuple[int, bytes]]) -> VectorBlocks:
    """As they come in, a few at a time."""
    chance, blocks = seeded("parts"), VectorBlocks()
    while rows:
        some = chance.randrange(1, 9)
        blocks, rows = append_vectors(blocks, rows[:some]), rows[some:]
    return blocks


@pytest.fixture(autouse=True)
def blocks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "BLOCK_ROWS", 7)


def test_the_best_come_first_and_of_equals_the_newest_however_they_came_in() -> None:
    rows = _rows()
    blocks = _in_parts(rows)
    assert count_vectors(blocks) == COUNT
    for _, vector in rows[:10]:
        cosines = dict(zip([seq for seq, _ in rows], similarities(vector, [row for _, row in rows]), strict=True))
        wanted = sorted(((cosine, seq) for seq, cosine in cosines.items() if cosine > 0), reverse=True)
        found = [pair for part in VectorScores(vector, blocks).iter_best(3) for pair in part.items()]
        assert [seq for seq, _ in found] == [seq for _, seq in _exact(wanted, found)]
        assert [cosine for _, cosine in found] == pytest.approx([cosine for cosine, _ in wanted], abs=1e-6)
        some = [seq for seq, _ in rows[::3]] + [10**9]
        like = {seq: cosine for seq, cosine in cosines.items() if seq in some and cosine > 0}
        assert VectorScores(vector, blocks).cosines_of(some) == pytest.approx(like, abs=1e-6)


def _exact(wanted: list[tuple[float, int]], found: list[tuple[int, float]]) -> list[tuple[float, int]]:
    """The same order by the cosines as they were found: single precision tells fewer of them apart."""
    cosines = dict(found)
    return sorted(((cosines[seq], seq) for _, seq in wanted), reverse=True)


def test_what_is_known_stays_as_it_was_when_more_comes() -> None:
    rows = _rows()
    known = append_vectors((), rows[:10])
    before = [(block.seqs.tolist(), block.data) for block in known]
    more = append_vectors(known, rows[10:])
    assert [(block.seqs.tolist(), block.data) for block in known] == before
    assert [seq for block in more for seq in block.seqs] == [seq for seq, _ in rows]
    assert more[0] is known[0]


def test_a_question_that_is_like_nothing_finds_nothing() -> None:
    blocks = _in_parts(_rows())
    assert list(VectorScores(bytes(DIMENSIONS), blocks).iter_best(3)) == []
    assert list(VectorScores(b"\1" * DIMENSIONS, ()).iter_best(3)) == []
    assert VectorScores(b"\1" * DIMENSIONS, ()).cosines_of([1]) == {}
