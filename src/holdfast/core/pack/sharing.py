"""Sharing room among those that want some: the small ones get what they want, the large ones as much as each other."""

from __future__ import annotations

from collections.abc import Mapping


def evenly(wanted: Mapping[int, int], room: int) -> dict[int, int]:
    """How much each may take of `room`, by how much it wants. Nobody gets more than that."""
    shares: dict[int, int] = {}
    left = max(room, 0)
    for number, (nth, want) in enumerate(sorted(wanted.items(), key=lambda one: (one[1], one[0]))):
        shares[nth] = min(want, left // (len(wanted) - number))
        left -= shares[nth]
    return shares
