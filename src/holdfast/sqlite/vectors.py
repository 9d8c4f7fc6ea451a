"""Vectors as bytes: a unit vector scaled by 127, one signed byte per dimension.

Numbers from outside are checked while they are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.numbers import load_numpy
from holdfast.errors import InvalidValue

SCALE = 127
MAX_DIMENSIONS = 16_384
_ROWS_AT_ONCE = 8_192
"""Rows widened to floats at a time: they stay in the processor's cache, and memory stays small."""


class InvalidVectors(ValueError):
    """An embedder's result is not one vector of finite numbers for each text."""


def pack_vectors(rows: Any, count: int, dimensions: int | None) -> list[bytes]:
    """Return rows of numbers as packed vectors; refuse other than `count` rows of one length (None: that of the first).

    A row of zeros stays zero and is similar to nothing. Rows of bytes are taken for packed vectors.
    """
    if isinstance(rows, str | bytes | dict) or not hasattr(rows, "__len__"):
        raise InvalidVectors(f"it gave {type(rows).__name__}, not a list of vectors")
    if len(rows) != count:
        raise InvalidVectors(f"it gave {len(rows):,} vectors for {count:,} texts")
    if not count:
        return []
    if isinstance(rows, list | tuple):
        rows = [memoryview(row).cast("b").tolist() if isinstance(row, bytes) else row for row in rows]
    return _pack_rows(rows, dimensions)


def _pack_rows(rows: Any, dimensions: int | None) -> list[bytes]:
    numpy = load_numpy()
    try:
        matrix = numpy.asarray(rows)
    except (TypeError, ValueError, OverflowError):
        raise InvalidVectors("its vectors are not lists of numbers of one length") from None
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise InvalidVectors("its vectors are not lists of numbers of one length")
    _check_length(matrix.shape[1], dimensions)
    matrix = matrix.astype(numpy.float64)
    if not numpy.isfinite(matrix).all():
        raise InvalidVectors("a vector has a number that is not finite")
    # Scale by the largest number first: squares of large numbers would overflow, and those of tiny ones vanish.
    # A row whose largest number is too small to divide by is divided by 1 and becomes zero.
    largest = numpy.abs(matrix).max(axis=1, keepdims=True)
    matrix /= numpy.where(largest < _TINY, 1.0, largest)
    length = numpy.sqrt(numpy.square(matrix).sum(axis=1, keepdims=True))
    matrix *= SCALE / numpy.where(length < _TINY, 1.0, length)
    return [row.tobytes() for row in numpy.rint(matrix).astype(numpy.int8)]


_TINY = 1e-300


def _check_length(length: int, dimensions: int | None) -> None:
    if dimensions is not None and length != dimensions:
        raise InvalidVectors(f"a vector has {length:,} numbers instead of {dimensions:,}")
    if not 1 <= length <= MAX_DIMENSIONS:
        raise InvalidVectors(f"a vector has {length:,} numbers, not 1 to {MAX_DIMENSIONS:,}")


def similarities(query: bytes, rows: Sequence[bytes]) -> list[float]:
    """Return the cosine between one vector and each of the others: 1 is the same direction, 0 is unrelated."""
    if not rows:
        return []
    if set(map(len, rows)) != {len(query)}:
        raise InvalidValue(
            f"Only vectors of one length can be compared, here {len(query):,}. Make them all with the same embedder."
        )
    numpy = load_numpy()
    if not query:
        return [0.0] * len(rows)
    wanted = numpy.frombuffer(query, numpy.int8).astype(numpy.float32)
    found: list[float] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        matrix = numpy.frombuffer(b"".join(some), numpy.int8).reshape(len(some), -1).astype(numpy.float32)
        # Each sum stays below 2^24, so floats are exact for up to 1,040 dimensions and close enough beyond.
        lengths = numpy.sqrt(numpy.einsum("ij,ij->i", matrix, matrix) * (wanted @ wanted))
        found += ((matrix @ wanted) / numpy.where(lengths == 0, 1, lengths)).tolist()
    return found
