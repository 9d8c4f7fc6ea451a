"""Where a window over a conversation begins: as late as it must, and then for as long as it can.

A provider's cache holds the beginning of the last request. A window that slides by a message with every call never
has the same beginning twice. So one that was journaled stays where it is until what follows no longer fits, and
then gives up a part of its share at once. Without a journaled one, it begins at a place that the next call will
choose again, without knowing of this one: at a mark of a grid.
"""

from __future__ import annotations

from collections.abc import Sequence

STRETCHES = 2
"""How many stretches a window holds at least, when nothing was journaled."""


def sticky_start(tokens: Sequence[int], room: int, share: int, before: int, stickiness: float) -> int:
    """The first of the older rounds to show, by what each takes; `len(tokens)` shows none.

    `before` is where the last journaled window began. If it has to move, it leaves `stickiness` of its share free.
    """
    if dense_start(tokens, room) <= before:
        return before
    return dense_start(tokens, room - int(share * stickiness))


def dense_start(tokens: Sequence[int], room: int) -> int:
    """The oldest round from which all up to the newest fit."""
    start = len(tokens)
    while start and tokens[start - 1] <= room:
        room -= tokens[start - 1]
        start -= 1
    return start


def grid_start(tokens: Sequence[int], places: Sequence[int], room: int) -> int:
    """A start that does not depend on earlier packs, and that later ones find again.

    Places are cut into stretches of a power of two, about half as long as what fits. The window begins with the first
    stretch that fits as a whole, so it moves by a stretch at a time.
    """
    densest = dense_start(tokens, room)
    if densest == 0 or densest == len(tokens):
        return densest
    stretch = 1 << max(((places[-1] - places[densest] + 1) // STRETCHES).bit_length() - 1, 0)
    for start in range(densest, len(tokens)):
        if places[start] // stretch != places[start - 1] // stretch:
            return start
    return densest
