"""How much vectors are like another one: many of them, kept in blocks, compared at once.

numpy does the work where it is installed; without it plain Python gives the same order, only slower.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.vectors import numpy_or_none, similarities

ROWS: Final = 4_096
"""Vectors of a block. As floats they stay in the processor's cache, and a new one copies no more than these."""
GROWTH: Final = 4


class Block(msgspec.Struct, frozen=True):
    """Vectors one behind the other, with the numbers of their events, which never go back. It is never changed."""

    seqs: array[int]
    data: bytes
    lengths: Any
    """Of each vector, as an array; None without numpy."""


Blocks = tuple[Block, ...]


def size_of(blocks: Blocks) -> int:
    """How many vectors there are."""
    return sum(len(block.seqs) for block in blocks)


def grown(known: Blocks, rows: Sequence[tuple[int, bytes]]) -> Blocks:
    """The same and what came since. Other threads may read what is known: full blocks are kept, the last is copied."""
    found = list(known)
    first = 0
    while first < len(rows):
        last = found.pop() if found and len(found[-1].seqs) < ROWS else Block(array("q"), b"", None)
        some = rows[first : first + ROWS - len(last.seqs)]
        seqs = last.seqs + array("q", [seq for seq, _ in some])
        data = b"".join((last.data, *(vector for _, vector in some)))
        found.append(Block(seqs, data, _lengths(data, len(seqs))))
        first += len(some)
    return tuple(found)


def _lengths(data: bytes, count: int) -> Any:
    numpy = numpy_or_none()
    if numpy is None:
        return None
    matrix = numpy.frombuffer(data, numpy.int8).reshape(count, -1).astype(numpy.float32)
    lengths = numpy.sqrt(numpy.vecdot(matrix, matrix))
    # A vector of zeros is like nothing, and its products are 0 already.
    return numpy.where(lengths == 0, 1, lengths)


class Likeness:
    """How much the vectors of some blocks are like one. Only what is like it at all is told."""

    def __init__(self, vector: bytes, blocks: Sequence[Block]) -> None:
        numpy = numpy_or_none()
        self._numpy = numpy
        if numpy is None:
            self._plainly = _plain_cosines(vector, blocks)
        elif blocks:
            seqs = numpy.concatenate([numpy.frombuffer(block.seqs, numpy.int64) for block in blocks])
            # A text may have several vectors, one behind the other: it is as like as the best of its pieces.
            first = numpy.concatenate([[0], numpy.flatnonzero(seqs[1:] != seqs[:-1]) + 1])
            self._seqs = seqs[first]
            self._cosines = numpy.maximum.reduceat(_cosines(numpy, vector, blocks), first)
        else:
            self._seqs, self._cosines = numpy.empty(0, numpy.int64), numpy.empty(0, numpy.float32)

    def of(self, seqs: Collection[int]) -> dict[int, float]:
        """The cosines of these."""
        if self._numpy is None:
            return {seq: self._plainly[seq] for seq in seqs if seq in self._plainly}
        wanted = self._numpy.isin(self._seqs, list(seqs)) & (self._cosines > 0)
        return dict(zip(self._seqs[wanted].tolist(), self._cosines[wanted].tolist(), strict=True))

    def best(self, size: int) -> Iterator[dict[int, float]]:
        """The best first, of equals the newest, in ever larger parts: few ask for more than the first."""
        first = 0
        while part := self._part(first, size):
            yield part
            first, size = first + size, size * GROWTH

    def _part(self, first: int, size: int) -> dict[int, float]:
        numpy = self._numpy
        if numpy is None:
            order = sorted(self._plainly, key=lambda seq: (self._plainly[seq], seq), reverse=True)
            return {seq: self._plainly[seq] for seq in order[first : first + size]}
        until = min(first + size, int(numpy.count_nonzero(self._cosines > 0)))
        if until <= first:
            return {}
        # Everything that is as good as the last one wanted, so that it does not depend on chance which of equals stay.
        least = numpy.partition(self._cosines, len(self._cosines) - until)[len(self._cosines) - until]
        best = numpy.flatnonzero(self._cosines >= least)
        best = best[numpy.lexsort((self._seqs[best], self._cosines[best]))[::-1]][first:until]
        return dict(zip(self._seqs[best].tolist(), self._cosines[best].tolist(), strict=True))


def _cosines(numpy: Any, vector: bytes, blocks: Sequence[Block]) -> Any:
    wanted = numpy.frombuffer(vector, numpy.int8).astype(numpy.float32)
    own = float(numpy.sqrt(numpy.vecdot(wanted, wanted))) or 1.0
    found = []
    for block in blocks:
        matrix = numpy.frombuffer(block.data, numpy.int8).reshape(len(block.seqs), -1)
        # Row by row and not as a matrix: that would wake threads, which beside a busy machine cost more than they save.
        found.append(numpy.vecdot(matrix.astype(numpy.float32), wanted) / (block.lengths * own))
    return numpy.concatenate(found)


def _plain_cosines(vector: bytes, blocks: Sequence[Block]) -> dict[int, float]:
    found: dict[int, float] = {}
    for block in blocks:
        rows = [block.data[at : at + len(vector)] for at in range(0, len(block.data), len(vector))]
        for seq, cosine in zip(block.seqs, similarities(vector, rows), strict=True):
            if cosine > found.get(seq, 0.0):
                found[seq] = cosine
    return found
