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
from holdfast.core.packs.event_text import cap_text, event_text, message_text
from holdfast.core.trust import FILE_PREFIX, KIND_TRUST, event_trust, lowest_trust
from holdfast.core.values import exception_text
from holdfast.errors import Corrupt, EvidenceFailed, HoldfastError, InvalidValue, NotFound, Refused, Unsupported
from holdfast.flow.frames.calls import outcome_key
from holdfast.flow.frames.read import parse_id, read_event
from holdfast.flow.journal import artifacts, redact
from holdfast.flow.packs.visibility import read_origin
from holdfast.flow.sessions.read import LATEST, decode_messages
from holdfast.ports import Env
from holdfast.ports.capabilities import STATE, require
from holdfast.records.events.envelope import ERASED, Erased, Event
from holdfast.records.packs import Origin
from holdfast.records.recovery import HandleInfo
from holdfast.records.scope import Scope

MAX_REASON_CHARS = 400
"""The most characters of a reason: it may quote the target, which may be anything."""
_OUTCOMES: Final = ("tool.returned", "run.returned", "model.responded", "model.failed")
_INTENTS: Final = ("tool.requested", "run.requested", "model.requested")
_TOOL_TYPES: Final = ("message.appended", *_OUTCOMES)
_WORKER_TYPES: Final = ("worker.signalled", "worker.reported")
_WORKER_PARTS: Final = {"worker_finding": "claim", "worker_learning": "insight"}


class HandleText(msgspec.Struct, frozen=True, kw_only=True):
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


class EvidenceErased(Refused):
    """Its content was erased."""


class HandleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a resolver: a handle of a frame that lives in `stream`, and its target."""

    env: Env
    stream: str
    handle: HandleInfo
    target: str


def resolve_handle(env: Env, frame_stream: str, handle: HandleInfo) -> HandleText:
    """Resolve a handle of a frame; raise EvidenceFailed with the reason if it cannot be read."""
    if handle.source_stream is not None and handle.source_version is not None:
        # An inherited handle is resolved as it was where it was first attached.
        frame_stream, handle = handle.source_stream, replace(handle, version=handle.source_version)
    try:
        found = _resolve_text(env, frame_stream, handle)
    except (Refused, Unsupported, Corrupt) as error:
        reason = str(error)[:MAX_REASON_CHARS]
        raise EvidenceFailed(
            f"Evidence {handle.id!r} ({handle.kind}) cannot be read: {reason}",
            handle=handle.id,
            reason=reason,
            erased=isinstance(error, EvidenceErased),
        ) from error
    return replace(found, trust=lowest_trust(handle.trust, found.trust))


def max_trust(env: Env, frame_stream: str, handle: HandleInfo) -> str:
    """Return the highest trust that evidence could have, by its kind and author, even if it cannot be read."""
    by_kind = KIND_TRUST.get(handle.kind, "system")
    target = handle.target
    if handle.body is not None or not isinstance(target, str):
        return lowest_trust(handle.trust, by_kind)
    if handle.kind == "document" and target.startswith(FILE_PREFIX):
        return "external"
    try:
        event = _find_target_event(HandleRequest(env=env, stream=frame_stream, handle=handle, target=target))
    except (Refused, Unsupported, Corrupt):
        event = None  # The target names no event, so the trust of the handle decides.
    return lowest_trust(handle.trust, by_kind, "system" if event is None else event_trust(event))


def evidence_origin(frame_stream: str, handle: HandleInfo, found: HandleText) -> Origin:
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


def reload_evidence(env: Env, origin: Origin) -> str | Erased:
    """Reload the exact text that was shown, from its origin; ERASED if it was erased since."""
    if origin.artifact is not None:
        body = artifacts.read_artifact(env, origin.artifact)
        return ERASED if isinstance(body, Erased) else cap_text(_check_text(body, f"Artifact {origin.artifact[:12]}"))
    event = read_origin(env, origin)
    text = None if event is None else _read_event_text(env, event, origin.entry)
    if text is None:
        raise NotFound(f"The content of {origin.handle!r:.80} is no longer in this journal. Run `holdfast verify`.")
    return text


def _resolve_text(env: Env, frame_stream: str, handle: HandleInfo) -> HandleText:
    """Return the body given with the handle, which is in its own event and takes precedence, or the target's text."""
    if isinstance(handle.body, Erased) or isinstance(handle.target, Erased):
        raise EvidenceErased
    if handle.body is not None:
        text, trust = cap_text(handle.body), KIND_TRUST.get(handle.kind, "system")
        return HandleText(text=text, trust=trust, stream=frame_stream, version=handle.version, source="attached text")
    resolver = RESOLVERS.get(handle.kind)
    if resolver is None:
        raise Unsupported(f"Evidence of the kind {handle.kind!r:.40} is not known to this release. Upgrade holdfast.")
    target = handle.target
    if handle.kind == "tool_output" and not target:  # The result of the call that it was attached for.
        event = read_event(env, frame_stream, handle.version)
        target = getattr(None if event is None else event.facts, "call", None)
    if not isinstance(target, str) or not target:
        raise InvalidValue("The handle has no target and no body. Attach it again with one of them.")
    return resolver(HandleRequest(env=env, stream=frame_stream, handle=handle, target=target))


# events


def _resolve_event(asked: HandleRequest) -> HandleText:
    """Resolve any event by its id or place; a worker's finding or learning must be of a worker's event."""
    event, part = _find_event(asked), _WORKER_PARTS.get(asked.handle.kind)
    if event is None:
        raise NotFound(f"There is no event {asked.target!r:.80}. Check the id and the tenant.")
    if part is not None and event.type not in _WORKER_TYPES:
        raise InvalidValue(f"{asked.target!r:.80} is {event.type}, not a worker's. Attach it as event_ref.")
    return _resolve_event_text(asked, event, part)


def _resolve_tool_output(asked: HandleRequest) -> HandleText:
    """Resolve a message or an outcome by its id, or by its call's id if the outcome is in the frame's stream."""
    found = _find_event(asked)
    if found is None:
        parse_id(asked.target[:80], "call")
        found = _find_outcome(asked, asked.stream, asked.target)
    elif found.type in _INTENTS:
        found = _find_outcome(asked, found.stream, found.facts.call)
    if found.type not in _TOOL_TYPES:
        raise InvalidValue(f"{asked.target!r:.80} is {found.type}, not a tool's result. Attach it as event_ref.")
    return _resolve_event_text(asked, found)


def _find_outcome(asked: HandleRequest, stream: str, call: str) -> Event:
    """Find the outcome of a call: it is journaled under a key made from the call's id."""
    for stored in asked.env.journal.events_by_key(asked.env.tenant, stream, outcome_key(call)):
        event = decode_event(stored)
        if event.type in _OUTCOMES and event.facts.call == call:
            return event
    raise NotFound(
        f"No message and no ended call of this actor is {asked.target!r:.80}. "
        "Name the message, or the event that holds the result."
    )


def _find_event(asked: HandleRequest) -> Event | None:
    """Find an event by its id, or as `stream@version`."""
    env, target = asked.env, asked.target
    stream, at, number = target.rpartition("@")
    if at:
        if not (number.isascii() and number.isdigit() and len(number) <= 15 and int(number)):
            raise InvalidValue(f"{target!r:.80} names no event: write its id, or stream@version.")
        return read_event(env, Scope.of(stream).text, int(number))
    stored = env.journal.event(env.tenant, parse_id(target[:80], "event"))
    return None if stored is None else decode_event(stored)


def _find_target_event(asked: HandleRequest) -> Event | None:
    """Find the event that a target names, erased or not; for an entry its newest change, even its deletion."""
    kind, _, rest = asked.target.partition(":")
    if asked.handle.kind == "event_ref":
        return _find_event(asked)
    if asked.handle.kind != "document" or kind != "state" or "#" not in rest:
        return None
    scope, key = rest.split("#", 1)
    changes = require(asked.env.journal, STATE).revisions(
        asked.env.tenant, Scope.of(scope).text, check_entry_key(key), LATEST, 1
    )
    return decode_event(changes[0]) if changes else None


def _resolve_event_text(asked: HandleRequest, event: Event, part: str | None = None) -> HandleText:
    """Resolve the text of an event; if its body is a message, read that message."""
    trust, facts = event_trust(event), event.facts
    if event.type in _OUTCOMES and getattr(facts, "stream", None) and facts.message:
        message = read_event(asked.env, facts.stream, facts.message)
        if message is None:
            raise NotFound(f"The message that holds {asked.target!r:.80} is not in this journal.")
        event, part = message, facts.call if event.type == "tool.returned" else None
        trust = lowest_trust(trust, event_trust(event))
    text = _read_event_text(asked.env, event, part)
    if isinstance(text, Erased):
        raise EvidenceErased
    if not text:
        raise InvalidValue(f"{event.type} at {event.stream}@{event.version} holds no text.")
    source = f"{event.type} {event.stream}@{event.version}"
    own = lowest_trust(trust, KIND_TRUST.get(asked.handle.kind, "system"))
    return HandleText(text=text, trust=own, stream=event.stream, version=event.version, entry=part, source=source)


def _read_event_text(env: Env, event: Event, part: str | None) -> str | Erased | None:
    """Return an event's text: a function of the event alone, so that it can be reloaded."""
    if event.type != "message.appended":
        text = event_text(event, part)
        return cap_text(text) if isinstance(text, str) else text
    (message,) = decode_messages(env, [event])
    return ERASED if message.erased else cap_text(message_text(message, part))


# artifacts, documents and the web


def _resolve_artifact(asked: HandleRequest) -> HandleText:
    body = artifacts.read_artifact(asked.env, asked.target)
    if isinstance(body, Erased):
        raise EvidenceErased
    name = bytes.fromhex(asked.target).hex()
    text = cap_text(_check_text(body, f"Artifact {name[:12]}"))
    return HandleText(text=text, trust=KIND_TRUST["artifact"], artifact=name, source=f"artifact {name[:12]}")


def _check_text(given: bytes | str, what: str) -> str:
    """Return a text that can be stored; refuse anything that is not UTF-8."""
    try:
        text = given.decode() if isinstance(given, bytes) else given.encode().decode()
    except UnicodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidValue(f"{what} is not UTF-8 text. Attach a text that was made from it.")
    return text


def _resolve_document(asked: HandleRequest) -> HandleText:
    kind, _, rest = asked.target.partition(":")
    if kind == "state" and "#" in rest:
        return _resolve_entry(asked, *rest.split("#", 1))
    if kind != "file" or not rest:
        raise InvalidValue(f"{asked.target!r:.80} is not a document. Write state:SCOPE#KEY, or file:PATH.")
    documents = asked.env.documents
    if documents is None:
        raise Unsupported("This client reads no files. Open it with documents=DocumentRoot(folder).")
    return _read_outside(asked, lambda: documents.read(rest), f"file {rest}")


def _resolve_entry(asked: HandleRequest, given: str, key: str) -> HandleText:
    """Resolve an entry of `hf.state`. Transient entries are not found, as they could not be read again later."""
    env, tenant = asked.env, asked.env.tenant
    scope, key = Scope.of(given).text, check_entry_key(key)
    stored = require(env.journal, STATE).entry(tenant, scope, key)
    if stored is None:
        newest = require(env.journal, STATE).revisions(tenant, scope, key, LATEST, 1)
        if newest and newest[0].erased:
            raise EvidenceErased
        raise NotFound(f"{key!r:.80} of {scope} has no stored value. Check the key and the scope.")
    event = decode_event(stored)
    expires = event.facts.expires_at
    if expires is not None and expires <= env.clock.now_ms():
        raise NotFound(f"The time of {key!r:.80} of {scope} is over. Write it again, or detach it.")
    return replace(_resolve_event_text(asked, event), entry=key, source=f"state {scope}#{key}")


def _resolve_url(asked: HandleRequest) -> HandleText:
    fetcher, url = asked.env.fetcher, asked.target
    if fetcher is None:
        raise Unsupported(
            "This client fetches nothing from the web. Attach the text as body, or open it with "
            "fetcher=HttpsFetcher(hosts=[…])."
        )
    return _read_outside(asked, lambda: fetcher.fetch(url), url)


def _read_outside(asked: HandleRequest, read: Callable[[], str], source: str) -> HandleText:
    """Read text through a caller's document or fetch port: any error becomes a reason, and the text is redacted."""
    try:
        text = read()
    except HoldfastError as error:
        raise Refused(str(error)) from error
    except Exception as error:
        raise Refused(exception_text(error)) from error
    if not isinstance(text, str):
        raise InvalidValue(f"{source:.80} came as {type(text).__name__}, not as text.")
    if asked.env.redact is not None:
        text = redact.redact_text(asked.env.redact, text)
    text = cap_text(_check_text(text, f"{source:.80}"))
    return HandleText(text=text, trust="external", outside=True, source=source)


RESOLVERS: Final[dict[str, Callable[[HandleRequest], HandleText]]] = {
    "event_ref": _resolve_event,
    "tool_output": _resolve_tool_output,
    "worker_finding": _resolve_event,
    "worker_learning": _resolve_event,
    "artifact": _resolve_artifact,
    "document": _resolve_document,
    "url": _resolve_url,
}
