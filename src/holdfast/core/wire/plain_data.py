"""Callers' input as plain data, roles, and notes of the problems found while reading.

Input is copied, so that later changes by the caller do not reach a message. Providers' objects are converted by the
`model_dump` they all have, so no SDK is imported; this includes objects inside a dict. `ReadNotes` raises an error at
once if reading is strict, as for appending a message, and else records a repair to report, as for importing a list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.lazy import lazy_module
from holdfast.core.values import exception_text
from holdfast.errors import InvalidMessage, TooLarge
from holdfast.records.messages import ROLES, Message, Repair, ToolDef

if TYPE_CHECKING:
    import dataclasses
else:
    dataclasses = lazy_module(__name__, "dataclasses")

MAX_MESSAGE_NESTING = 48
"""The nesting limit. It leaves room for the levels that an event adds, within the limit of the journal."""
MAX_CALLS = 1_000
MAX_PARTS = 10_000
"""Tool calls and parts of one message."""

EMPTY_REQUEST_TEXT = "[Nothing was said.]"
"""The text of the message in a request that must have one and has none."""
_ROLE_ALIASES = {"human": "user", "ai": "assistant", "model": "assistant", "bot": "assistant"}


def to_plain_data(value: Any, notes: ReadNotes, depth: int = 0) -> Any:
    """Convert a value to dict, list, str, int, float, bool or None; other types are an error or left out."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value, notes)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        notes.report(f"{float(value)} is not a JSON number. Pass null or text instead.", "turned a number into null")
        return None
    if depth > MAX_MESSAGE_NESTING:
        notes.report(
            f"A message is nested deeper than {MAX_MESSAGE_NESTING} levels. Flatten it.", "left out what is too deep"
        )
        return None
    if isinstance(value, Mapping):
        return {_clean_key(key, notes): to_plain_data(item, notes, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_data(item, notes, depth + 1) for item in value]
    if is_record(value):
        try:
            return to_plain_data(dump_record(value), notes, depth + 1)
        except InvalidMessage as error:
            notes.report(str(error), f"left out a {type(value).__name__} that cannot be read")
            return None
    if isinstance(value, bytes | bytearray | memoryview):
        why = (
            "Bytes are not part of a provider's message. Append them as a file, or as a Message with an image or file."
        )
    else:
        why = f"{type(value).__name__} is not plain data. Pass text, a dict, a Message or a provider's whole response."
    notes.report(why, f"left out a {type(value).__name__}")
    return None


def clean_text(text: str, notes: ReadNotes) -> str:
    """Return text that every backend can store: no NUL, no lone surrogates."""
    # Unwrap a subclass of str, such as an enum's member.
    text = text if type(text) is str else str.__str__(text)
    if "\0" not in text and (text.isascii() or is_unicode(text)):
        return text
    notes.report(
        "Text holds a NUL character or a lone surrogate: it is binary data, or was decoded wrongly. "
        "Clean the text, or append the data as a file.",
        "put U+FFFD in the place of characters that are not text",
    )
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_json(text: str) -> bool:
    """Return True if text is one standard JSON value: no NaN, no lone surrogates."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def is_record(value: Any) -> bool:
    """Return True if a value is an object that can be converted to a mapping."""
    if isinstance(value, type):
        return False
    is_model = callable(getattr(value, "model_dump", None))
    return is_model or dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct)


def dump_record(value: Any) -> Any:
    """Convert a provider's object, a dataclass or a record to a mapping."""
    dump = getattr(value, "model_dump", None)
    try:
        if not callable(dump):
            return msgspec.to_builtins(value)
        try:
            # Exclude fields that the provider did not send: some providers refuse their own nulls.
            return dump(mode="json", exclude_unset=True, warnings=False)
        except TypeError:
            return dump()
    except Exception as error:  # noqa: BLE001  it is another's code
        raise InvalidMessage(
            f"{type(value).__name__} cannot be read: {exception_text(error)}. Pass its content as a dict."
        ) from None


def get_field(thing: Any, name: str) -> Any:
    """Return a field of a mapping or an object; None if it is missing."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def read_mapping(item: Any, notes: ReadNotes) -> dict[str, Any] | None:
    """Return a message as plain data; anything but a mapping is reported as malformed."""
    check_lengths(item)
    given = to_plain_data(item, notes)
    if isinstance(given, dict):
        return given
    notes.report(f"A message is a mapping, not a {type(item).__name__}.", "left out: not a mapping")
    return None


def check_lengths(item: Any) -> None:
    """Refuse a message or response that is too long before it is read: each call costs far more than its bytes."""
    choices = get_field(item, "choices")
    if isinstance(choices, list) and choices:
        item = get_field(choices[0], "message")
    for name, limit in (("tool_calls", MAX_CALLS), ("content", MAX_PARTS), ("output", MAX_PARTS)):
        found = get_field(item, name)
        if isinstance(found, list | tuple):
            check_count(name, len(found), limit)


def check_count(name: str, count: int, limit: int = MAX_CALLS) -> None:
    """Refuse a message with too many calls or parts."""
    if count > limit:
        raise TooLarge(f"A message has more than {limit:,} items in {name}. Keep a part of it, or ask the model again.")


def iterate_items(items: Any, notes: ReadNotes) -> Iterable[Any]:
    """Return the items of a list; anything else is reported as malformed."""
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | Mapping):
        return items
    notes.report("Messages come as a list. Put a single one into a list.", "read nothing: not a list")
    return ()


def _clean_key(key: Any, notes: ReadNotes) -> str:
    if isinstance(key, str):
        return clean_text(key, notes)
    notes.report(f"Object keys must be strings, not {type(key).__name__}.", "turned a key into text")
    return clean_text(str(key), notes)


def is_unicode(text: str) -> bool:
    """Return True if text holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class ParsedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's list of messages as read, and the repairs made on the way."""

    messages: list[Message]
    system: str | None = None
    """The prompt given beside the messages (`system`, `instructions`); a system message stays a message."""
    repairs: list[Repair] = []
    tools: tuple[ToolDef, ...] = ()
    model: str | None = None
    indexes: list[int] = []
    """For each message the index of its source item, if that is not its own index."""


class ReadNotes(msgspec.Struct, kw_only=True):
    """The progress of reading and the problems found so far."""

    strict: bool = False
    partial: bool = False
    index: int = 0
    """The index of the current item, for repairs."""
    repairs: list[Repair] = []
    left_out: list[dict[str, Any]] = []
    """Calls of a partial message that were cut off in the middle."""

    def report(self, error: str, done: str, problem: str = "malformed") -> None:
        """Raise InvalidMessage with `error` if reading is strict, else record `done` as the repair of a problem."""
        if self.strict:
            raise InvalidMessage(error)
        repair = Repair(index=self.index, problem=problem, done=done)
        if repair not in self.repairs[-3:]:
            # Report a thousand bad items inside one message only once.
            self.repairs.append(repair)


def drop_blank_prompt(system: str | None) -> str | None:
    """Return the system prompt to send, or None if it is blank: Anthropic refuses a blank one."""
    return system if system and not system.isspace() else None


def read_role(role: Any, notes: ReadNotes, also: tuple[str, ...] = ()) -> str | None:
    """Return a role. An unknown one is refused, or read as the user's, whose text is trusted least."""
    if not isinstance(role, str):
        notes.report(f"A message has no role. Give one of {', '.join(sorted(ROLES))}.", "left out: it has no role")
        return None
    if role in ROLES or role in also:
        return role
    taken = _ROLE_ALIASES.get(role.lower(), "user")
    notes.report(
        f"{role!r:.60} is not a role. Use one of {', '.join(sorted(ROLES))}.",
        f"read {role!r:.60} as {taken}",
        "unknown_role",
    )
    return taken
