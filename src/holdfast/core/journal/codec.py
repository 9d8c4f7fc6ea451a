"""The canonical byte form of everything that is stored or hashed. No fallbacks, no type tags.

Plain JSON with sorted keys, finite floats, 64-bit integers, no NUL and no lone surrogates. A stored row can only
become dict, list, str, int, float, bool or None, or one of the catalogue's records. Non-canonical data is refused
before it is written, because msgspec would silently write NaN as null and other types as strings.

Stored events are never rewritten: facts of an older schema are upcast when they are read, one pure step per schema.
No step exists yet. A new schema adds its step here and a golden journal to the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, NoReturn

import msgspec
from msgspec.structs import astuple

from holdfast.core.lazy import convert, decoder
from holdfast.errors import Corrupt, InvalidValue, NewerSchema, TooLarge
from holdfast.records.catalogue import CATALOGUE, event_type
from holdfast.records.entries import EntryEvent
from holdfast.records.events.envelope import ERASED, Draft, Event, SealedEvent, StoredEvent
from holdfast.records.ids import ulid_text
from holdfast.records.settings import Settings

_ENCODER = msgspec.json.Encoder(order="sorted")
_INT_LIMIT = 2**63
_EMPTY: tuple[()] = ()
_KEY_TYPES = frozenset((str,))
SALT_BYTES = 16
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))
_INNER_REST, _OUTER_REST = b"\x36" * (64 - SALT_BYTES), b"\x5c" * (64 - SALT_BYTES)
RESTORE = "Run `holdfast verify` and restore from a backup."
_NUL_TEXT = "Text holds a NUL character, which not every backend can store. Remove it."


def check_plain(value: object, nesting: int = 64, *others: object) -> None:
    """Refuse any value without a canonical form. Iterative, so deep nesting cannot overflow the stack."""
    # Only lists and objects go on the stack; nearly everything is a scalar and is checked in place.
    stack: list[tuple[Iterable[Any], int]] = [((value, *others), 0)]
    while stack:
        level, depth = stack.pop()
        for item in level:
            # Most fields of a record are unset: skip them first.
            if item is None or item is False or item is _EMPTY or item is True or item is msgspec.UNSET:
                continue
            kind = type(item)
            if kind is str:
                if "\0" in item:
                    raise InvalidValue(_NUL_TEXT)
            elif kind is int:
                if not -_INT_LIMIT <= item < _INT_LIMIT:
                    raise InvalidValue("An integer does not fit in 64 bits. Store large integers as strings.")
            elif kind is float:
                if not math.isfinite(item):
                    raise InvalidValue(f"{item} is not a JSON number. Store null or a string instead.")
            elif isinstance(item, msgspec.Struct):
                # A record is a level that the caller did not write: do not count it.
                stack.append((astuple(item), depth))
            elif depth >= nesting:
                raise InvalidValue(
                    f"Data is nested deeper than {nesting} levels. Flatten it, or store it as an artifact."
                )
            else:
                keyed = kind is dict and _KEY_TYPES.issuperset(map(type, item)) and "\0" not in "".join(item)
                items = item.values() if keyed else item if kind is list or kind is tuple else _refuse(item)
                stack.append((items, depth + 1))


def _refuse(item: Any) -> NoReturn:
    """Refuse data that is not plain, or an object for the key that is wrong."""
    if type(item) is not dict:
        raise InvalidValue(
            f"{type(item).__name__} is not plain JSON data. "
            "Convert it to dict, list, str, int, float, bool or None first."
        )
    for key in item:
        if type(key) is not str:
            raise InvalidValue(f"Object keys must be strings, not {type(key).__name__} ({key!r:.40}).")
    raise InvalidValue(_NUL_TEXT)


def encode(value: object, nesting: int = 64) -> bytes:
    """Return the canonical bytes of a value or record."""
    check_plain(value, nesting)
    try:
        return _ENCODER.encode(value)
    except (TypeError, UnicodeEncodeError) as error:
        raise _encoding_refusal(error) from None


def _encoding_refusal(error: TypeError | UnicodeEncodeError) -> InvalidValue:
    if isinstance(error, TypeError):  # UNSET is allowed as a field of a record, and nowhere else.
        return InvalidValue("UNSET is not plain JSON data. Leave the value out, or use None.")
    return InvalidValue("Text holds a lone surrogate, which is not Unicode. Clean the text first.")


def decode(data: bytes, kind: Any = Any) -> Any:
    """Decode bytes from the journal to a record or plain data; raise Corrupt if they are unreadable."""
    try:
        return decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"Stored data cannot be read ({error}). Run `holdfast verify`.") from None


def inner_hash(salt: bytes, content: bytes) -> bytes:
    """Return the inner hash of HMAC-SHA256 of content under its salt: the digest by which reads check content.

    HMAC is spelled out because a salt is used only once: creating an HMAC object for each costs several times as much
    as the two hashes that it consists of. A test compares it with `hmac`.
    """
    return sha256(salt.translate(_INNER) + _INNER_REST + content).digest()


def outer_hash(salt: bytes, digest: bytes) -> bytes:
    """Return the HMAC-SHA256 of content from its inner hash: the MAC that stands for content in the chain."""
    return sha256(salt.translate(_OUTER) + _OUTER_REST + digest).digest()


def read_content(stored: StoredEvent | EntryEvent) -> bytes | None:
    """Return the bytes of an event's content; raise Corrupt if they are not what was written."""
    content, salt = stored.content, stored.salt
    if content is None or salt is None:
        intact = content is salt
    else:  # As `inner_hash` does, without the call: a pack reads many messages.
        intact = sha256(salt.translate(_INNER) + _INNER_REST + content).digest() == stored.digest
    if not intact:
        place = f"{stored.stream} version {stored.version} (tenant {stored.tenant})"
        raise Corrupt(f"The content of {place} is not what was written. {RESTORE}")
    return content


def is_intact(stored: StoredEvent) -> bool:
    """Return True if an event's content is what was written, or if it has none."""
    try:
        read_content(stored)
    except Corrupt:
        return False
    return True


def seal_draft(draft: Draft, *, id: bytes, at: int, salt: bytes, settings: Settings) -> SealedEvent:
    """Encode a draft to canonical bytes, checked against the catalogue and the limits."""
    row = CATALOGUE.get(draft.type) or event_type(draft.type)
    if row is None:
        raise InvalidValue(
            f"{draft.type!r} is not an event of the catalogue. An application's own events begin with 'app.'."
        )
    if not isinstance(draft.facts, row.facts):
        raise InvalidValue(f"{draft.type} needs facts of type {row.facts.__name__}, not {type(draft.facts).__name__}.")
    if draft.content is not None and (row.content is None or not isinstance(draft.content, row.content)):
        wanted = "no content" if row.content is None else f"content of type {row.content.__name__}"
        raise InvalidValue(f"{draft.type} takes {wanted}, not {type(draft.content).__name__}.")
    check_plain(draft.facts, settings.nesting, draft.content)  # Both at once: this runs for every event.
    try:
        facts = _ENCODER.encode(draft.facts)
        content = None if draft.content is None else _ENCODER.encode(draft.content)
        # Bytes that cannot be read back are refused: records do not check their fields on construction.
        facts_record = decoder(row.facts).decode(facts)
        content_record = None if content is None else decoder(row.content).decode(content)
    except msgspec.ValidationError as error:
        words = str(error).replace("`", "").replace("$.", "")
        raise InvalidValue(f"{draft.type} cannot hold this: {words}. Pass a value of the right type.") from None
    except (TypeError, UnicodeEncodeError) as error:
        raise _encoding_refusal(error) from None
    size = len(facts) + len(content or b"")
    if size > settings.event_bytes:
        raise TooLarge(
            f"{draft.type} has {size:,} bytes; an event may have {settings.event_bytes:,}. "
            "Store the large part as an artifact and refer to it, or raise HOLDFAST_EVENT_BYTES."
        )
    return SealedEvent(
        id=id,
        at=at,
        type=draft.type,
        schema=row.schema,
        facts=facts,
        content=content,
        salt=None if content is None else salt,
        digest=None if content is None else inner_hash(salt, content),
        subject=draft.subject,
        facts_record=facts_record,
        content_record=content_record,
    )


def decode_facts(type_name: str, schema: int, facts: bytes) -> Any:
    """Decode facts to the current record of the catalogue, or to a plain mapping if the type is unknown."""
    row = CATALOGUE.get(type_name) or event_type(type_name)
    if row is None or schema == row.schema:
        return decode(facts, Any if row is None else row.facts)
    if schema > row.schema:
        raise NewerSchema(
            f"{type_name} was written with schema {schema}; this release knows {row.schema}. Upgrade holdfast."
        )
    return convert(upcast_facts(type_name, schema, row.schema, decode(facts)), row.facts)


def decode_event(stored: StoredEvent) -> Event:
    """Decode a stored event for readers; raise Corrupt if its content is not what was written."""
    row = CATALOGUE.get(stored.type) or event_type(stored.type)
    content: Any = read_content(stored)
    if content is not None:
        content = decode(content, row.content if row is not None and row.content is not None else Any)
    elif stored.mac is not None:  # Erasure removes the content and leaves its digest.
        content = ERASED
    if row is not None and row.schema == stored.schema:  # As nearly all are.
        facts = decode(stored.facts, row.facts)
    else:
        facts = decode_facts(stored.type, stored.schema, stored.facts)
    return Event(
        seq=stored.seq,
        tenant=stored.tenant,
        stream=stored.stream,
        version=stored.version,
        id=ulid_text(stored.id),
        at=stored.at,
        type=stored.type,
        schema=stored.schema,
        facts=facts,
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


UpcastStep = Callable[[dict[str, Any]], dict[str, Any]]

UPCAST_STEPS: dict[tuple[str, int], UpcastStep] = {}


def upcast_facts(
    type_name: str,
    schema: int,
    target: int,
    facts: dict[str, Any],
    steps: Mapping[tuple[str, int], UpcastStep] = UPCAST_STEPS,
) -> dict[str, Any]:
    """Convert facts of `schema` to facts of `target`, one step at a time."""
    for current in range(schema, target):
        step = steps.get((type_name, current))
        if step is None:
            raise Corrupt(f"{type_name} has schema {schema} and no way up to {target}. Report this as a defect.")
        facts = step(facts)
    return facts
