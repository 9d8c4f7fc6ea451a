"""One canonical form of bytes for everything that is stored or hashed. No fallback, no tags.

Plain JSON with sorted keys, finite floats, 64-bit integers, no NUL and no lone
surrogates. A stored row can only ever become dict, list, str, int, float, bool or None,
or one of the catalogue's records. What is not canonical is refused before it is written,
because msgspec would write NaN as null and other types as strings without a word.

Old facts read as new ones. Stored events are never rewritten; steps are pure and kept for ever.

A step takes the facts of one schema and returns those of the next. None exist yet:
every event is at schema 1. A new schema adds its step here and a golden journal to the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import astuple

from holdfast.core.msgspec_types import converted, decoder
from holdfast.errors import Corrupt, InvalidValue, NewerSchema, TooLarge
from holdfast.records.catalogue import event_type, known_type
from holdfast.records.events.envelope import ERASED, Draft, Event, Sealed, StoredEvent
from holdfast.records.ids import ulid_text
from holdfast.records.settings import Settings

_ENCODER = msgspec.json.Encoder(order="sorted")
_INT_LIMIT = 2**63
_NOTHING: tuple[()] = ()


def check_plain(value: object, nesting: int = 64) -> None:
    """Refuse anything that has no canonical form. Walks without recursion, so depth is no danger."""
    # Only lists and objects are put aside; nearly everything is a scalar and is checked in place.
    stack: list[tuple[Iterable[Any], int]] = [((value,), 0)]
    scalars = _SCALARS
    while stack:
        items, depth = stack.pop()
        for item in items:
            # Most fields of a record are not given: they are passed over first.
            if item is None or item is False or item is _NOTHING:
                continue
            check = scalars.get(type(item))
            if check is not None:
                check(item)
            elif isinstance(item, msgspec.Struct):
                # A record is a level that the caller did not write: do not charge for it.
                stack.append((astuple(item), depth))
            elif depth >= nesting:
                raise InvalidValue(
                    f"Data is nested deeper than {nesting} levels. Flatten it, or store it as an artifact."
                )
            else:
                stack.append((_children(item), depth + 1))


def _check_text(item: str) -> None:
    if "\0" in item:
        raise InvalidValue("Text holds a NUL character, which not every backend can store. Remove it.")


def _check_integer(item: int) -> None:
    if not -_INT_LIMIT <= item < _INT_LIMIT:
        raise InvalidValue("An integer does not fit in 64 bits. Store large integers as strings.")


def _check_float(item: float) -> None:
    if not math.isfinite(item):
        raise InvalidValue(f"{item} is not a JSON number. Store null or a string instead.")


def _check_nothing(item: object) -> None:
    """True, False and None have only one form, and a field that was not given none."""


_SCALARS: dict[type, Callable[[Any], None]] = {
    str: _check_text,
    int: _check_integer,
    float: _check_float,
    bool: _check_nothing,
    type(None): _check_nothing,
    msgspec.UnsetType: _check_nothing,
}


def _children(item: Any) -> Iterable[Any]:
    """What a list or object holds; keys are checked here."""
    if type(item) is list or type(item) is tuple:
        return item
    if type(item) is not dict:
        raise InvalidValue(
            f"{type(item).__name__} is not plain JSON data. "
            "Convert it to dict, list, str, int, float, bool or None first."
        )
    for key in item:
        if type(key) is not str:
            raise InvalidValue(f"Object keys must be strings, not {type(key).__name__} ({key!r:.40}).")
        _check_text(key)
    return item.values()


def encode(value: object, nesting: int = 64) -> bytes:
    """The canonical bytes of a value or record."""
    check_plain(value, nesting)
    try:
        return _ENCODER.encode(value)
    except TypeError:  # Of a record it is a field that was not given; anywhere else it is nothing.
        raise InvalidValue("UNSET is not plain JSON data. Leave the value out, or use None.") from None
    except UnicodeEncodeError:
        raise InvalidValue("Text holds a lone surrogate, which is not Unicode. Clean the text first.") from None


def decode(data: bytes, kind: Any = Any) -> Any:
    """Bytes from the journal as a record or as plain data; anything unreadable is corruption."""
    try:
        return decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"Stored data cannot be read ({error}). Run `holdfast verify`.") from None


def seal(draft: Draft, *, id: bytes, at: int, salt: bytes, settings: Settings) -> Sealed:
    """A draft in canonical bytes, checked against the catalogue and the limits."""
    row = known_type(draft.type)
    if not isinstance(draft.facts, row.facts):
        raise InvalidValue(f"{draft.type} needs facts of type {row.facts.__name__}, not {type(draft.facts).__name__}.")
    if draft.content is not None and (row.content is None or not isinstance(draft.content, row.content)):
        wanted = "no content" if row.content is None else f"content of type {row.content.__name__}"
        raise InvalidValue(f"{draft.type} takes {wanted}, not {type(draft.content).__name__}.")
    facts = _typed(draft.type, encode(draft.facts, settings.nesting), row.facts)
    content = None
    if draft.content is not None and row.content is not None:
        content = _typed(draft.type, encode(draft.content, settings.nesting), row.content)
    sealed = Sealed(
        id=id,
        at=at,
        type=draft.type,
        schema=row.schema,
        facts=facts,
        content=content,
        salt=None if content is None else salt,
        subject=draft.subject,
    )
    if sealed.size > settings.event_bytes:
        raise TooLarge(
            f"{draft.type} has {sealed.size:,} bytes; an event may have {settings.event_bytes:,}. "
            "Store the large part as an artifact and refer to it, or raise HOLDFAST_EVENT_BYTES."
        )
    return sealed


def _typed(type_name: str, data: bytes, kind: Any) -> bytes:
    """Bytes that can be read back: records do not check their fields when they are made."""
    try:
        decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        words = str(error).replace("`", "").replace("$.", "")
        raise InvalidValue(f"{type_name} cannot hold this: {words}. Pass a value of the right type.") from None
    return data


def decode_facts(type_name: str, schema: int, facts: bytes) -> Any:
    """Facts as the current record of the catalogue, or as a plain mapping if the type is unknown."""
    row = event_type(type_name)
    if row is None:
        return decode(facts)
    if schema == row.schema:
        return decode(facts, row.facts)
    if schema > row.schema:
        raise NewerSchema(
            f"{type_name} was written with schema {schema}; this release knows {row.schema}. Upgrade holdfast."
        )
    return converted(upcast(type_name, schema, row.schema, decode(facts)), row.facts)


def decode_event(stored: StoredEvent) -> Event:
    """A stored event as readers get it."""
    row = event_type(stored.type)
    content: Any = None
    if stored.content is not None:
        content = decode(stored.content, row.content if row is not None and row.content is not None else Any)
    elif stored.erased:
        content = ERASED
    return Event(
        seq=stored.seq,
        tenant=stored.tenant,
        stream=stored.stream,
        version=stored.version,
        id=ulid_text(stored.id),
        at=stored.at,
        type=stored.type,
        schema=stored.schema,
        facts=decode_facts(stored.type, stored.schema, stored.facts),
        content=content,
        key=stored.key,
        epoch=stored.epoch,
        origin=stored.origin,
        trust=stored.trust,
        user=stored.user,
        subject=stored.subject,
        causation=None if stored.causation is None else ulid_text(stored.causation),
        correlation=None if stored.correlation is None else ulid_text(stored.correlation),
        app=stored.app,
        hash=stored.hash.hex(),
    )


Step = Callable[[dict[str, Any]], dict[str, Any]]

STEPS: dict[tuple[str, int], Step] = {}


def upcast(
    type_name: str, schema: int, target: int, facts: dict[str, Any], steps: Mapping[tuple[str, int], Step] = STEPS
) -> dict[str, Any]:
    """Facts of `schema` as facts of `target`, one step at a time."""
    for current in range(schema, target):
        step = steps.get((type_name, current))
        if step is None:
            raise Corrupt(f"{type_name} has schema {schema} and no way up to {target}. Report this as a defect.")
        facts = step(facts)
    return facts
