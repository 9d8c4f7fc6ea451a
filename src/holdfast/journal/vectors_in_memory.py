"""Vectors of the journal in memory, by stream, embedder and event."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[str, str, str]
"""Tenant, stream and embedder."""


class MemoryVectors:
    """Used under the journal's lock."""

    def __init__(self) -> None:
        self._kept: dict[Place, dict[int, tuple[bytes, bytes]]] = {}

    def newest(self, place: Place) -> int:
        """The last event that has a vector; 0 if none has."""
        return max(self._kept.get(place, ()), default=0)

    def known(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Vectors by the digests of their texts."""
        kept = (rows for place, rows in self._kept.items() if (place[0], place[2]) == (tenant, embedder))
        return {digest: vector for rows in kept for digest, vector in rows.values() if digest in digests}

    def keep(self, place: Place, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Note (seq, digest, vector)."""
        self._kept.setdefault(place, {}).update({seq: (digest, vector) for seq, digest, vector in rows})

    def after(self, place: Place, seq: int) -> list[tuple[int, bytes]]:
        """Vectors of a stream in order, after one event."""
        return sorted((one, vector) for one, (_, vector) in self._kept.get(place, {}).items() if one > seq)

    def drop(self, tenant: str, seqs: Sequence[int]) -> None:
        """Forget some."""
        for place, kept in self._kept.items():
            for seq in seqs if place[0] == tenant else ():
                kept.pop(seq, None)
