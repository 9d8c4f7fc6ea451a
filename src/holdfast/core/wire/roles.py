"""Roles as they are met in the wild, and what stands where nobody said anything."""

from __future__ import annotations

from typing import Any

from holdfast.core.wire.notes import Notes
from holdfast.records.messages import ROLES

NOTHING_SAID = "[Nothing was said.]"
"""Stands where a request must have a message and there is none."""

_OTHER_NAMES = {"human": "user", "ai": "assistant", "model": "assistant", "bot": "assistant"}


def prompt_of(system: str | None) -> str | None:
    """The system prompt that is sent. A blank one says nothing, and Anthropic refuses it."""
    return system if system and not system.isspace() else None


def read_role(role: Any, notes: Notes, also: tuple[str, ...] = ()) -> str | None:
    """A role; what is none is refused, or taken as the user's, whose words are trusted least."""
    if not isinstance(role, str):
        notes.wrong(
            "malformed",
            f"A message has no role. Give one of {', '.join(sorted(ROLES))}.",
            "left out: it has no role",
        )
        return None
    if role in ROLES or role in also:
        return role
    taken = _OTHER_NAMES.get(role.lower(), "user")
    notes.wrong(
        "unknown_role",
        f"{role!r:.60} is not a role. Use one of {', '.join(sorted(ROLES))}.",
        f"read {role!r:.60} as {taken}",
    )
    return taken
