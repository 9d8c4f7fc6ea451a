"""Export and import of whole journals: plain JSON lines that any program can read, and exact copies up to a cursor.

A line is an object with a `kind`: `journal` first, then `subject`, `artifact` and `event` lines. Bytes are base64.
Facts and content are strings that hold the canonical bytes exactly as they are hashed, so that the chain can be
verified after any number of copies.
"""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.core.journal.chain import genesis_hash, link_hash
from holdfast.core.journal.codec import check_plain, decode_facts, is_intact
from holdfast.core.lazy import convert
from holdfast.errors import Corrupt, HoldfastError, InvalidValue, Refused
from holdfast.flow.journal.read import iterate_stored
from holdfast.ports import Env
from holdfast.ports.capabilities import ARTIFACTS, require
from holdfast.records.batches import Artifact
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.ids import ULID_BYTES, check_id
from holdfast.records.reports import EventQuery, Progress, Subject
from holdfast.records.scope import parse_scope
from holdfast.version import __version__

FORMAT = 1
PAGE = 512
TransferItem = tuple[str, StoredEvent | Subject | Artifact]

_ENCODER = msgspec.json.Encoder(order="sorted")
_ID_FIELDS = ("id", "causation", "correlation")
_BYTE_FIELDS = (*_ID_FIELDS, "salt", "digest", "mac", "hash")
_TEXT_FIELDS = ("facts", "content")
_SHAPES: dict[str, Any] = {"event": StoredEvent, "subject": Subject, "artifact": Artifact}


def read_items(env: Env, until: int | None = None, progress: Progress | None = None) -> Iterator[TransferItem]:
    """Yield exact copies of everything in a journal: subjects, artifacts, then events in order of their cursor."""
    with env.journal.snapshot():
        tenants = list(env.journal.tenants())
        for tenant in tenants:
            for subject in env.journal.subjects(tenant):
                yield tenant, subject
        wanted = None
        if until is not None:
            wanted = {
                (tenant, name)
                for tenant in tenants
                for event in _read_events(env, tenant, until)
                for name in getattr(decode_facts(event.type, event.schema, event.facts), "artifacts", ())
            }
        for tenant, artifact in require(env.journal, ARTIFACTS).artifacts():
            if wanted is None or (tenant, artifact.name.hex()) in wanted:
                yield tenant, artifact
        last = env.journal.position()
        until = last if until is None else min(until, last)
        cursors = [_read_events(env, tenant, until) for tenant in tenants]
        # Tenants are read separately, so that no query ever spans them, and merged by cursor.
        for event in heapq.merge(*cursors, key=lambda event: event.seq):
            yield event.tenant, event
            if progress is not None and event.seq % PAGE == 0:
                progress(event.seq, until)


def _read_events(env: Env, tenant: str, until: int) -> Iterator[StoredEvent]:
    return iterate_stored(env.journal, EventQuery(tenant=tenant, until=until, limit=PAGE))


def check_chains(copies: Iterable[TransferItem]) -> Iterator[TransferItem]:
    """Yield the items unchanged; refuse the first event that does not continue its stream's chain."""
    ends: dict[tuple[str, str], tuple[int, bytes]] = {}
    for tenant, item in copies:
        if isinstance(item, StoredEvent):
            place = (tenant, item.stream)
            version, previous = ends.get(place) or (0, genesis_hash(tenant, item.stream))
            if item.version != version + 1 or link_hash(previous, item) != item.hash or not is_intact(item):
                raise Refused(
                    f"Event {item.seq} ({item.stream} version {item.version}) is not what was written: "
                    "this copy was changed or is incomplete. Nothing was imported."
                )
            ends[place] = (item.version, item.hash)
        yield tenant, item


def export_lines(env: Env, until: int | None = None, progress: Progress | None = None) -> Iterator[bytes]:
    """Yield a journal as JSON lines, without line ends."""
    secret = _encode_base64(env.journal.secret)
    yield _ENCODER.encode({"kind": "journal", "format": FORMAT, "holdfast": __version__, "secret": secret})
    for tenant, item in read_items(env, until, progress):
        yield _ENCODER.encode(_encode_item(tenant, item))


def _encode_item(tenant: str, item: StoredEvent | Subject | Artifact) -> dict[str, Any]:
    if isinstance(item, Subject):
        return {"kind": "subject", "tenant": tenant, "id": item.id, "name": item.name}
    if isinstance(item, Artifact):
        line = {"kind": "artifact", "tenant": tenant, "name": item.name.hex(), "size": item.size, "at": item.at}
        return {**line, "erased": item.erased, "body": _encode_base64(item.body)}
    fields = {name: getattr(item, name) for name in item.__struct_fields__}
    for name in _BYTE_FIELDS:
        fields[name] = _encode_base64(fields[name])
    try:
        for name in _TEXT_FIELDS:
            fields[name] = None if fields[name] is None else fields[name].decode()
    except UnicodeDecodeError:
        raise Corrupt(f"Event {item.seq} holds bytes that are not text. Run `holdfast verify`.") from None
    return {"kind": "event", **fields}


def parse_lines(lines: Iterable[bytes]) -> tuple[bytes, Iterator[TransferItem]]:
    """Return the secret and the items of an export; refuse an invalid one, naming the line."""
    numbered = enumerate(lines, 1)
    first = next(numbered, None)
    header = {} if first is None else _parse_object(*first)
    if header.get("kind") != "journal":
        raise Refused("This is not a journal's export: its first line must have the kind 'journal'.")
    if header.get("format") != FORMAT:
        raise Refused(
            f"This export has format {header.get('format')!r}; this release reads {FORMAT}. Upgrade holdfast."
        )
    return _decode_base64(header.get("secret"), 1), (
        _parse_item(_parse_object(number, line), number) for number, line in numbered if line.strip()
    )


def _parse_object(number: int, line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue(f"Line {number} is not JSON ({error}). Nothing was imported.") from None
    if not isinstance(found, dict):
        raise InvalidValue(f"Line {number} is not a JSON object. Nothing was imported.")
    return found


def _parse_item(line: dict[str, Any], number: int) -> TransferItem:
    kind = line.pop("kind", None)
    shape = _SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise InvalidValue(f"Line {number} has the unknown kind {kind!r:.40}. Nothing was imported.")
    try:
        check_plain(line)
        for field in _BYTE_FIELDS:
            if line.get(field) is not None and kind == "event":
                line[field] = _decode_base64(line[field], number)
                if field in _ID_FIELDS and len(line[field]) != ULID_BYTES:
                    raise InvalidValue(f"{field} has {len(line[field])} bytes, and an id has {ULID_BYTES}")
        if kind == "artifact":
            line["name"] = bytes.fromhex(line["name"])
            line["body"] = None if line["body"] is None else _decode_base64(line["body"], number)
        if kind == "event":
            line.update({field: None if line[field] is None else line[field].encode() for field in _TEXT_FIELDS})
        tenant = check_id(line["tenant"] if kind == "event" else line.pop("tenant"), "tenant")
        # Bytes are decoded above: msgspec must not take them for base64 text a second time.
        item: StoredEvent | Subject | Artifact = convert(line, shape, builtin_types=(bytes,))
        if isinstance(item, StoredEvent):
            parse_scope(item.stream)
            # Rows are made of facts, so these are held to the rules of an append; how deep they go is a setting.
            check_plain(decode_facts(item.type, item.schema, item.facts), nesting=len(item.facts))
    except (AttributeError, HoldfastError, KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"Line {number} cannot be read ({error!s:.200}). Nothing was imported.") from None
    return tenant, item


def _encode_base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode("ascii")


def _decode_base64(text: Any, number: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise InvalidValue(f"Line {number} holds bytes that are not base64. Nothing was imported.") from None
