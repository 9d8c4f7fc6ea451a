"""The token budget of one frame: granted, used, reserved for a purpose, lent to live children.

Only arithmetic. Lending and settling keep one sum: what a frame and everything below it may
spend together never exceeds what the frame was granted, unless work that was already done
turned out to be dearer. That is an overdraft, and it is shown.
"""

from __future__ import annotations

import msgspec


class TokenBudget(msgspec.Struct, frozen=True, kw_only=True):
    """`granted` is None for a root without a limit: then everything is counted and nothing refused."""

    granted: int | None = None
    used: int = 0
    reserved: int = 0
    lent: int = 0
    released: int = 0
    """What a suspended frame gave back until it goes on."""

    @property
    def available(self) -> int | None:
        """What may still be spent, reserved or lent; never negative. None if there is no limit."""
        if self.granted is None:
            return None
        return max(0, self.granted - self.used - self.reserved - self.lent - self.released)

    @property
    def overdraft(self) -> int:
        """By how much the work cost more than was granted."""
        return 0 if self.granted is None else max(0, self.used + self.reserved + self.lent - self.granted)

    @property
    def unused(self) -> int:
        """What a suspended frame does not need meanwhile: its grant less what is spent or lent."""
        return 0 if self.granted is None else max(0, self.granted - self.used - self.lent)

    def affords(self, amount: int) -> bool:
        """Whether so much is available. Exactly all of it is."""
        return self.available is None or amount <= self.available
