"""Vectors as bytes: any numbers become unit vectors, and bytes rank as the numbers do, with numpy and without."""

from __future__ import annotations

import math
import operator
import random
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidValue
from holdfast.model.embedders import resolve_embedder
from holdfast.sqlite import vectors
from holdfast.sqlite.vectors import similarities
from tests.scale import seeded, volume
from tests.search.test_embedders import by_letters

numbers = st.floats(allow_nan=False, allow_infinity=False)
plain_numbers = st.floats(min_value=-1e3, max_value=1e3).filter(lambda number: number == 0 or abs(number) > 1e-3)


@settings(deadline=None, max_examples=volume(80, 3_000))
@given(st.integers(1, 24).flatmap(lambda d: st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=1)))
def test_any_finite_numbers_become_unit_vectors_or_zero(rows: list[list[float]]) -> None:
    packed = vectors.pack_vectors(rows, len(rows), None)
    for row, vector in zip(rows, packed, strict=True):
        signed = memoryview(vector).cast("b").tolist()
        length = math.sqrt(sum(number * number for number in signed))
        assert length == 0 if max(map(abs, row)) < 1e-300 else abs(length - 127) <= math.sqrt(len(row)) / 2 + 0.01
        for number, byte in zip(row, signed, strict=True):
            assert byte == 0 or (byte > 0) == (number > 0)


def check_bytes_rank_as_numbers_do(rows: list[list[float]]) -> None:
    """Each cosine is off by no more than rounding to bytes can turn two vectors."""
    packed = vectors.pack_vectors(rows, len(rows), None)
    found = similarities(packed[0], packed)
    most = 1.02 * math.sqrt(len(rows[0])) / 127
    for row, cosine in zip(rows, found, strict=True):
        exact = sum(a * b for a, b in zip(rows[0], row, strict=True)) / (math.hypot(*rows[0]) * math.hypot(*row))
        assert abs(cosine - exact) <= most, (rows[0], row)


@settings(deadline=None, max_examples=volume(80, 3_000))
@given(
    st.integers(1, 16).flatmap(
        lambda d: st.lists(st.lists(plain_numbers, min_size=d, max_size=d).filter(any), min_size=1, max_size=8)
    )
)
def test_cosines_of_bytes_are_those_of_the_numbers(rows: list[list[float]]) -> None:
    check_bytes_rank_as_numbers_do(rows)


def test_bytes_lose_nothing_of_the_ranking_of_texts() -> None:
    chance = seeded("ranking")
    ours = resolve_embedder("wordllama")
    assert ours is not None
    kinds = ["refund", "flight", "violin", "password", "garden", "invoice", "hospital", "football"]
    texts = [" ".join(chance.choices(kinds, k=4)) for _ in range(volume(300, 3_000))]
    exact = numpy.asarray(ours._compute_vectors(texts, query=False), dtype=float)
    exact /= numpy.linalg.norm(exact, axis=1, keepdims=True)
    packed = ours.embed(texts)
    for number in range(20):
        cosines = exact @ exact[number]
        found = numpy.array(similarities(packed[number], packed))
        tenth = numpy.sort(cosines)[-10]
        first = numpy.argsort(-found, kind="stable")[:10]
        assert (cosines[first] > tenth - 0.01).all()


def cosine(one: bytes, other: bytes) -> float:
    first, second = memoryview(one).cast("b").tolist(), memoryview(other).cast("b").tolist()
    return sum(map(operator.mul, first, second)) / (math.hypot(*first) * math.hypot(*second) or 1.0)


def test_similarities_are_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    rows = [bytes(chance.randrange(256) for _ in range(40)) for _ in range(50)] + [bytes(40)]
    monkeypatch.setattr(vectors, "_ROWS_AT_ONCE", 7)
    found = similarities(rows[0], rows)
    assert found == pytest.approx([cosine(rows[0], row) for row in rows], abs=1e-6)
    assert (found[0], found[-1]) == (1.0, 0.0)
    assert similarities(bytes(40), rows) == [0.0] * 51
    assert similarities(rows[0], []) == []
    with pytest.raises(InvalidValue, match="one length"):
        similarities(rows[0], [*rows, b"short"])


def test_a_function_is_an_embedder() -> None:
    ours = resolve_embedder(by_letters)
    assert ours is not None
    wanted, near, far = ours.embed(["bead", "abed", "fff"])
    assert similarities(wanted, [near, far]) == [1.0, 0.0]


def test_planted_vectors_that_are_not_normalised_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def raw(rows: Any, dimensions: int | None) -> list[bytes]:
        return [row.tobytes() for row in numpy.clip(numpy.rint(numpy.array(rows)), -127, 127).astype(numpy.int8)]

    rows = [[0.3, 0.4], [300.0, 4.0], [2.0, 900.0]]
    check_bytes_rank_as_numbers_do(rows)
    monkeypatch.setattr(vectors, "_pack_rows", raw)
    with pytest.raises(AssertionError):
        check_bytes_rank_as_numbers_do(rows)
