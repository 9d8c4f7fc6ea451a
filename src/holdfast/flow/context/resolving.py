"""What evidence leads to, by the kind of its handle, and the same text again for a pack that was journaled.

A handle may name anything, also something that a model made up: what is not there, not this tenant's, erased
or not text is refused with a reason. A text is told again from where it came from, so that what was erased
there is erased here.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.fencing import lowest
from holdfast.core.telling import FILE, KIND_TRUST, capped, event_trust
from holdfast.errors import Corrupt, EvidenceFailed, InvalidValue, NotFound, Refused, Unsupported
from holdfast.flow import artifacts
from holdfast.flow.context.resolvers import RESOLVERS, Asked, Gone, Resolved, event_named, text_of, text_of_bytes
from holdfast.flow.stack.showing import event_at
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import ERASED, Erased
from holdfast.records.packs import Origin
from holdfast.records.resume import HandleInfo

__all__ = ["Resolved", "most_trusted", "origin_of", "reload", "resolve"]

MOST_REASON = 400
"""Characters of a reason: it may repeat what was named, and that may be anything."""


def resolve(ports: Ports, acting: Acting, frame_stream: str, handle: HandleInfo) -> Resolved:
    """What a handle of a frame leads to; EvidenceFailed, with the reason, if it cannot be read.

    `frame_stream` is where the frame lives. What the journal itself cannot do now is raised as it is.
    """
    if handle.source_stream is not None and handle.source_version is not None:
        # It was inherited: what it names is meant as it was where it was first attached.
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
    """How far evidence could be trusted at most, also where it cannot be read: by its kind, and by who wrote it."""
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
        event = None  # It names nothing: then it is what whoever attached it says.
    return lowest(handle.trust, by_kind, "system" if event is None else event_trust(event))


def origin_of(frame_stream: str, handle: HandleInfo, found: Resolved) -> Origin:
    """Where it came from, for a manifest. What is from outside has its artifact's name once a copy is kept."""
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
    """The very text that was shown, from where it came from; ERASED if it was erased since."""
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
    """A body that was given with the handle: it is in the handle's own event, whatever else is named there."""
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
    """The call that a handle was attached for."""
    event = event_at(ports, acting, frame_stream, handle.version)
    call: str | None = getattr(None if event is None else event.facts, "call", None)
    return call
