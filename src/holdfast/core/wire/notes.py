"""What was wrong while reading: an error at once where reading is strict, else a repair to report.

One reader serves both: importing a list takes what can be taken and says what it did, appending
a message takes all of it or nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidMessage
from holdfast.records.messages import Message, Repair, ToolDef


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider's list of messages says, and what had to be repaired to say it."""

    messages: list[Message]
    system: str | None = None
    """What was given beside the messages (`system`, `instructions`); a system message stays a message."""
    repairs: list[Repair] = []
    tools: tuple[ToolDef, ...] = ()
    model: str | None = None
    indexes: list[int] = []
    """Which item of the given list each message comes from, if that is not its own place."""


class Notes:
    """Where reading stands and what it has found wrong so far."""

    __slots__ = ("index", "left_out", "partial", "repairs", "strict")

    def __init__(self, *, strict: bool = False, partial: bool = False) -> None:
        self.strict = strict
        self.partial = partial
        self.index = 0
        """Which item is being read; repairs name it."""
        self.repairs: list[Repair] = []
        self.left_out: list[dict[str, Any]] = []
        """Calls of a partial message that were cut off in the middle."""

    def wrong(self, problem: str, error: str, done: str) -> None:
        """Something is not as it should be: `error` is said if that ends the reading, else `done` was done."""
        if self.strict:
            raise InvalidMessage(error)
        repair = Repair(index=self.index, problem=problem, done=done)
        if repair not in self.repairs[-3:]:
            # A list of a thousand bad items inside one message is one thing to report.
            self.repairs.append(repair)

    def take_left_out(self) -> list[dict[str, Any]]:
        """The calls that were cut off since the last message."""
        taken, self.left_out = self.left_out, []
        return taken
