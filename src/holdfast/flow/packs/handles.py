"""Resolve handles to text, one resolver per kind, and reload the same text for a journaled pack.

A handle may name anything, even something a model made up: a target that is missing, another tenant's, erased or
not text is refused with a reason. Text is always reloaded from its source, so erasing the source erases it here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.entries import check_entry_key
from holdfast.core.journal.codec import decode_event
from holdfast.core.packs.event_text import FILE, KIND_TRUST, capped, event_text, event_trust, message_text
from holdfast.core.packs.fences import lowest
from holdfast.core.values import words
from holdfast.errors import Corrupt, EvidenceFailed, HoldfastError, InvalidValue, NotFound, Refused, Unsupported
from holdfast.flow.frames.read import event_at, raw_id
from holdfast.flow.journal import artifacts, redact
from holdfast.flow.sessions.read import NOW, decoded
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import ERASED, Erased, Event
from holdfast.records.packs import Origin
from holdfast.records.recovery import HandleInfo
from holdfast.records.scope import Scope

__all__ = ["Resolved", "most_trusted", "origin_of", "reload", "resolve"]

MOST_REASON = 400
"""The most characters of a reason: it may quote the target, which may be anything."""


def resolve(ports: Ports, acting: Acting, frame_stream: str, handle: HandleInfo) -> Resolved:
    """Resolve a handle of a frame; raise EvidenceFailed with the reason if it cannot be read.

    `frame_stream` is the frame's stream. Errors of the journal itself are raised unchanged.
    """
    if handle.source_stream is not None and handle.source_version is not None:
        # An inherited handle is resolved as it was where it was first attached.
        frame_stream, handle = handle.source_stream, replace(handle, version=handle.source_version)
    try:
        found = _attached(frame_stream, handle) or _followed_up(ports, acting, frame_stream, handle)
    except (Refused, Unsupported, Corrupt) as error:
        reason = str(error)[:MOST_REASON]
        raise EvidenceFailed(
            f"Evidence {handle.id!r} ({handle.kind}) cannot be read: {reason}",
            handle=handle.id,
            reason=reason,
            erased=isinstance(error, Gone),
        ) from error
    return replace(found, trust=lowest(handle.trust, found.trust))


def most_trusted(ports: Ports, acting: Acting, frame_stream: str, handle: HandleInfo) -> str:
    """Return the highest trust that evidence could have, by its kind and author, even if it cannot be read."""
    by_kind = KIND_TRUST.get(handle.kind, "system")
    target = handle.target
    if handle.body is not None or not isinstance(target, str):
        return lowest(handle.trust, by_kind)
    if handle.kind == "document" and target.startswith(FILE):
        return "external"
    try:
        asked = Asked(ports=ports, acting=acting, stream=frame_stream, handle=handle, target=target)
        event = event_named(asked)
    except (Refused, Unsupported, Corrupt):
        event = None  # The target names no event, so the trust of the handle decides.
    return lowest(handle.trust, by_kind, "system" if event is None else event_trust(event))


def origin_of(frame_stream: str, handle: HandleInfo, found: Resolved) -> Origin:
    """Return the origin for a manifest. Outside text gets its artifact's name once a copy is stored."""
    return Origin(
        kind="evidence",
        stream=found.stream,
        first=found.version,
        last=found.version,
        handle=handle.id,
        handle_stream=frame_stream,
        handle_version=handle.version,
        artifact=found.artifact,
        entry=found.entry,
    )


def reload(ports: Ports, acting: Acting, origin: Origin) -> str | Erased:
    """Reload the exact text that was shown, from its origin; ERASED if it was erased since."""
    if origin.artifact is not None:
        body = artifacts.read(ports, acting, origin.artifact)
        return ERASED if isinstance(body, Erased) else capped(text_of_bytes(body, origin.artifact))
    event = None
    if origin.stream is not None and origin.first is not None:
        event = event_at(ports, acting, origin.stream, origin.first)
    text = None if event is None else text_of(ports, acting, event, origin.entry)
    if text is None:
        raise NotFound(f"What {origin.handle!r:.80} led to is no longer in this journal. Run `holdfast verify`.")
    return text


def _attached(frame_stream: str, handle: HandleInfo) -> Resolved | None:
    """Return the body given with the handle, if any: it is in the handle's own event and takes precedence."""
    if isinstance(handle.body, Erased) or isinstance(handle.target, Erased):
        raise Gone
    if handle.body is None:
        return None
    return Resolved(
        text=capped(handle.body),
        trust=KIND_TRUST.get(handle.kind, "system"),
        stream=frame_stream,
        version=handle.version,
        source="attached text",
    )


def _followed_up(ports: Ports, acting: Acting, frame_stream: str, handle: HandleInfo) -> Resolved:
    resolver = RESOLVERS.get(handle.kind)
    if resolver is None:
        raise Unsupported(f"Evidence of the kind {handle.kind!r:.40} is not known to this release. Upgrade holdfast.")
    target = handle.target
    if handle.kind == "tool_output" and not target:
        target = _call_of(ports, acting, frame_stream, handle)
    if not isinstance(target, str) or not target:
        raise InvalidValue("It names no target and has no body. Attach it again with one of them.")
    return resolver(Asked(ports=ports, acting=acting, stream=frame_stream, handle=handle, target=target))


def _call_of(ports: Ports, acting: Acting, frame_stream: str, handle: HandleInfo) -> str | None:
    """Return the id of the call that a handle was attached for."""
    event = event_at(ports, acting, frame_stream, handle.version)
    call: str | None = getattr(None if event is None else event.facts, "call", None)
    return call


_OUTCOMES: Final = ("tool.returned", "run.returned", "model.responded", "model.failed")
_INTENTS: Final = ("tool.requested", "run.requested", "model.requested")
_OF_TOOLS: Final = ("message.appended", *_OUTCOMES)
_OF_WORKERS: Final = ("worker.signalled", "worker.reported")
_WORKERS_WORD: Final = {"worker_finding": "claim", "worker_learning": "insight"}


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a handle, and the place to reload it from."""

    text: str
    trust: str
    stream: str | None = None
    version: int | None = None
    """The version of the event that holds it."""
    artifact: str | None = None
    outside: bool = False
    """True if it came from a file or the web, so that a copy must be stored to show it again."""
    entry: str | None = None
    """The part of the event: the key of an entry, one call of several, a worker's claim or insight."""
    source: str


class Gone(Refused):
    """Its content was erased."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a resolver: a handle of a frame that lives in `stream`, and its target."""

    ports: Ports
    acting: Acting
    stream: str
    handle: HandleInfo
    target: str


# events


def _event(asked: Asked) -> Resolved:
    return _told(asked, _named(asked))


def _tool_output(asked: Asked) -> Resolved:
    """Resolve a message or an outcome by its id, or by its call's id if the outcome is in the frame's stream."""
    found = _stored(asked)
    if found is None:
        raw_id(asked.target[:80], "call")
        found = _outcome(asked, asked.stream, asked.target)
    elif found.type in _INTENTS:
        found = _outcome(asked, found.stream, found.facts.call)
    if found.type not in _OF_TOOLS:
        raise InvalidValue(f"{asked.target!r:.80} is {found.type}, not what a tool gave. Attach it as event_ref.")
    return _told(asked, found)


def _outcome(asked: Asked, stream: str, call: str) -> Event:
    """Find the outcome of a call: it is journaled under a key made from the call's id."""
    for stored in asked.ports.journal.by_key(asked.acting.tenant, stream, f"{call}/end"):
        event = decode_event(stored)
        if event.type in _OUTCOMES and event.facts.call == call:
            return event
    raise NotFound(
        f"No message and no ended call of this actor is {asked.target!r:.80}. "
        "Name the message, or the event that holds the result."
    )


def _from_worker(asked: Asked) -> Resolved:
    event = _named(asked)
    if event.type not in _OF_WORKERS:
        raise InvalidValue(f"{asked.target!r:.80} is {event.type}, not a worker's. Attach it as event_ref.")
    return _told(asked, event, _WORKERS_WORD[asked.handle.kind])


def _named(asked: Asked) -> Event:
    found = _stored(asked)
    if found is None:
        raise NotFound(f"There is no event {asked.target!r:.80}. Check the id and the tenant.")
    return found


def _stored(asked: Asked) -> Event | None:
    """Find an event by its id, or as `stream@version`."""
    ports, acting, target = asked.ports, asked.acting, asked.target
    stream, at, number = target.rpartition("@")
    if at:
        if not (number.isascii() and number.isdigit() and len(number) <= 15 and int(number)):
            raise InvalidValue(f"{target!r:.80} names no event: write its id, or stream@version.")
        return event_at(ports, acting, Scope.of(stream).text, int(number))
    stored = ports.journal.event(acting.tenant, raw_id(target[:80], "event"))
    return None if stored is None else decode_event(stored)


def event_named(asked: Asked) -> Event | None:
    """Find the event that a target names, erased or not; None if there is none or it names something else.

    For an entry this is the newest change, which may be its deletion.
    """
    kind, _, rest = asked.target.partition(":")
    if asked.handle.kind == "event_ref":
        return _stored(asked)
    if asked.handle.kind != "document" or kind != "state" or "#" not in rest:
        return None
    scope, key = rest.split("#", 1)
    changes = asked.ports.journal.revisions(asked.acting.tenant, Scope.of(scope).text, check_entry_key(key), NOW, 1)
    return decode_event(changes[0]) if changes else None


def _told(asked: Asked, event: Event, part: str | None = None) -> Resolved:
    """Resolve the text of an event; if its body is a message, read that message."""
    trust, facts = event_trust(event), event.facts
    if event.type in _OUTCOMES and getattr(facts, "stream", None) and facts.message:
        message = event_at(asked.ports, asked.acting, facts.stream, facts.message)
        if message is None:
            raise NotFound(f"The message that holds {asked.target!r:.80} is not in this journal.")
        event, part = message, facts.call if event.type == "tool.returned" else None
        trust = lowest(trust, event_trust(event))
    text = text_of(asked.ports, asked.acting, event, part)
    if isinstance(text, Erased):
        raise Gone
    if not text:
        raise InvalidValue(f"{event.type} at {event.stream}@{event.version} holds no text.")
    source = f"{event.type} {event.stream}@{event.version}"
    own = lowest(trust, KIND_TRUST.get(asked.handle.kind, "system"))
    return Resolved(text=text, trust=own, stream=event.stream, version=event.version, entry=part, source=source)


def text_of(ports: Ports, acting: Acting, event: Event, part: str | None) -> str | Erased | None:
    """Return an event's text: a function of the event alone, so that it can be reloaded."""
    if event.type != "message.appended":
        text = event_text(event, part)
        return capped(text) if isinstance(text, str) else text
    (message,) = decoded(ports, acting, [event])
    return ERASED if message.erased else capped(message_text(message, part))


# artifacts, documents and the web


def _artifact(asked: Asked) -> Resolved:
    name = asked.target
    body = artifacts.read(asked.ports, asked.acting, name)
    if isinstance(body, Erased):
        raise Gone
    name = bytes.fromhex(name).hex()
    text = capped(text_of_bytes(body, name))
    return Resolved(text=text, trust=KIND_TRUST["artifact"], artifact=name, source=f"artifact {name[:12]}")


def text_of_bytes(body: bytes, name: str) -> str:
    """Decode an artifact as text; refuse bytes that are not UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise _not_text(f"Artifact {name[:12]}") from None
    return _storable(text, f"Artifact {name[:12]}")


def _storable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _not_text(what) from None
    if "\0" in text:
        raise _not_text(what)
    return text


def _not_text(what: str) -> InvalidValue:
    return InvalidValue(f"{what} is not UTF-8 text. Attach a text that was made from it.")


def _document(asked: Asked) -> Resolved:
    kind, _, rest = asked.target.partition(":")
    if kind == "state" and "#" in rest:
        return _entry(asked, *rest.split("#", 1))
    if kind != "file" or not rest:
        raise InvalidValue(f"{asked.target!r:.80} is no document. Write state:SCOPE#KEY, or file:PATH.")
    documents = asked.ports.documents
    if documents is None:
        raise Unsupported("This client reads no files. Open it with documents=DocumentRoot(folder).")
    return _outside(asked, lambda: documents.read(rest), f"file {rest}")


def _entry(asked: Asked, given: str, key: str) -> Resolved:
    """Resolve an entry of `hf.state`. Transient entries are not found, as they could not be read again later."""
    ports, tenant = asked.ports, asked.acting.tenant
    scope, key = Scope.of(given).text, check_entry_key(key)
    stored = ports.journal.entry(tenant, scope, key)
    if stored is None:
        newest = ports.journal.revisions(tenant, scope, key, NOW, 1)
        if newest and newest[0].erased:
            raise Gone
        raise NotFound(f"{key!r:.80} of {scope} has no stored value. Check the key and the scope.")
    event = decode_event(stored)
    expires = event.facts.expires_at
    if expires is not None and expires <= ports.clock.now_ms():
        raise NotFound(f"The time of {key!r:.80} of {scope} is over. Write it again, or detach it.")
    return replace(_told(asked, event), entry=key, source=f"state {scope}#{key}")


def _url(asked: Asked) -> Resolved:
    fetcher, url = asked.ports.fetcher, asked.target
    if fetcher is None:
        raise Unsupported(
            "This client fetches nothing from the web. Attach the text as body, or open it with "
            "fetcher=HttpsFetcher(hosts=[…])."
        )
    return _outside(asked, lambda: fetcher.fetch(url), url)


def _outside(asked: Asked, read: Callable[[], str], source: str) -> Resolved:
    """Read text through a caller's document or fetch port: any error becomes a reason, and the text is redacted."""
    try:
        text = read()
    except HoldfastError as error:
        raise Refused(str(error)) from error
    except Exception as error:
        raise Refused(words(error)) from error
    if not isinstance(text, str):
        raise InvalidValue(f"{source:.80} came as {type(text).__name__}, not as text.")
    if asked.ports.redact is not None:
        text = redact.text(asked.ports.redact, text)
    text = capped(_storable(text, f"{source:.80}"))
    return Resolved(text=text, trust="external", outside=True, source=source)


RESOLVERS: Final[dict[str, Callable[[Asked], Resolved]]] = {
    "event_ref": _event,
    "tool_output": _tool_output,
    "worker_finding": _from_worker,
    "worker_learning": _from_worker,
    "artifact": _artifact,
    "document": _document,
    "url": _url,
}
