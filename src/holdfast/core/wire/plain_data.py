"""What callers hand over as plain data: copied, so that later changes of theirs do not reach a message.

Providers' objects are taken apart by the `model_dump` they all have, so no SDK is imported, and
also where they stand inside a dict, as in `{"role": "assistant", "content": response.content}`.

What was wrong while reading: an error at once where reading is strict, else a repair to report.

One reader serves both: importing a list takes what can be taken and says what it did, appending
a message takes all of it or nothing.

Roles as they are met in the wild, and what stands where nobody said anything.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core.values import words
from holdfast.errors import InvalidMessage
from holdfast.records.messages import ROLES, Message, Repair, ToolDef

DEEPEST = 48
"""Leaves room for the levels that an event adds, within the nesting that the journal takes."""


def plain(value: Any, notes: Notes, depth: int = 0) -> Any:
    """Dict, list, str, int, float, bool or None; what is none of these is an error or left out."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value, notes)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _number(float(value), notes)
    if depth > DEEPEST:
        notes.wrong(
            "malformed", f"A message is nested deeper than {DEEPEST} levels. Flatten it.", "left out what is too deep"
        )
        return None
    if isinstance(value, Mapping):
        return {_key(key, notes): plain(item, notes, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, notes, depth + 1) for item in value]
    if is_record(value):
        return plain(_apart(value, notes), notes, depth + 1)
    notes.wrong("malformed", _refusal(value), f"left out a {type(value).__name__}")
    return None


def clean_text(text: str, notes: Notes) -> str:
    """Text that every backend can store: no NUL, no lone surrogates."""
    # The plain string under a subclass of str, such as an enum's member.
    text = text if type(text) is str else str.__str__(text)
    if "\0" not in text and (text.isascii() or _is_unicode(text)):
        return text
    notes.wrong(
        "malformed",
        "Text holds a NUL character or a lone surrogate: it is binary data, or was decoded wrongly. "
        "Clean the text, or append the data as a file.",
        "put U+FFFD in the place of characters that are not text",
    )
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_record(value: Any) -> bool:
    """Whether a value is an object that can be taken apart."""
    if isinstance(value, type):
        return False
    return callable(getattr(value, "model_dump", None)) or dataclasses.is_dataclass(value) or _is_struct(value)


def dumped(value: Any) -> Any:
    """A provider's object, a dataclass or a record as a mapping."""
    dump = getattr(value, "model_dump", None)
    try:
        if not callable(dump):
            return msgspec.to_builtins(value)
        try:
            # What the provider did not send is not sent back to it: some refuse their own nulls.
            return dump(mode="json", exclude_unset=True, warnings=False)
        except TypeError:
            return dump()
    except Exception as error:  # noqa: BLE001  it is another's code
        raise InvalidMessage(
            f"{type(value).__name__} cannot be read: {words(error)}. Pass its content as a dict."
        ) from None


def listed(items: Any, notes: Notes) -> Iterable[Any]:
    """Items that can be gone through; anything but a list is one malformed item."""
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | Mapping):
        return items
    notes.wrong("malformed", "Messages come as a list. Put a single one into a list.", "read nothing: not a list")
    return ()


def _apart(value: Any, notes: Notes) -> Any:
    try:
        return dumped(value)
    except InvalidMessage as error:
        notes.wrong("malformed", str(error), f"left out a {type(value).__name__} that cannot be read")
        return None


def _key(key: Any, notes: Notes) -> str:
    if isinstance(key, str):
        return clean_text(key, notes)
    notes.wrong("malformed", f"Object keys must be strings, not {type(key).__name__}.", "turned a key into text")
    return clean_text(str(key), notes)


def _number(value: float, notes: Notes) -> float | None:
    if math.isfinite(value):
        return value
    notes.wrong("malformed", f"{value} is not a JSON number. Pass null or text instead.", "turned a number into null")
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_struct(value: Any) -> bool:
    return isinstance(value, msgspec.Struct)


def _refusal(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return (
            "Bytes are not part of a provider's message. Append them as a file, or as a Message with an image or file."
        )
    return f"{type(value).__name__} is not plain data. Pass text, a dict, a Message or a provider's whole response."


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
