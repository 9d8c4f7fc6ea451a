"""Making packs at the edge: one way for sessions, frames and `hf.index`, now or as of a moment in the past."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.client.pack import ContextPack
from holdfast.core.pack.pieces import digest
from holdfast.errors import InvalidValue, NotFound
from holdfast.flow.compaction import ruling
from holdfast.flow.context import packed as journaled
from holdfast.flow.context import packing, rebuilt, seeing
from holdfast.flow.context.asked import Asked
from holdfast.flow.context.seeing import Seen
from holdfast.flow.conversation import porting
from holdfast.ports import Acting, Ports
from holdfast.records.packs import MAIN_ROLE, CompactionLevel, Packed

STICKINESS = 0.4
"""How much of its share a window gives up when it has to move."""


def asked_for(
    budget: int | None = None,
    *,
    role: str = MAIN_ROLE,
    query: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    force_exclude: bool = False,
    min_compaction: str = "none",
    tokenizer: str | None = None,
    layout: str = "stable",
    stickiness: float | None = None,
    max_messages: int | None = None,
    recall: int | None = None,
) -> Asked:
    """What a caller wants, as a record; refuses what cannot be wanted."""
    for name, value in (("include", include), ("exclude", exclude)):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InvalidValue(f"{name} must be a list of handles, each by its id.")
    if min_compaction not in tuple(CompactionLevel):
        raise InvalidValue(f"min_compaction must be one of {', '.join(CompactionLevel)}, not {min_compaction!r}.")
    return Asked(
        budget=budget,
        role=role,
        query=query,
        include=tuple(include),
        exclude=tuple(exclude),
        force_exclude=bool(force_exclude),
        min_compaction=CompactionLevel(min_compaction),
        tokenizer=tokenizer,
        layout=layout,  # type: ignore[arg-type]  # checked where it is used
        stickiness=_stickiness(stickiness, max_messages),
        max_messages=max_messages,
        recall=recall,
    )


def _stickiness(given: float | None, max_messages: int | None) -> float:
    """Who asks for a number of messages wants that number, and not a window that stays put."""
    return given if given is not None else STICKINESS if max_messages is None else 0.0


def pack_line(ports: Ports, acting: Acting, line: str, asked: Asked, as_of: int | None) -> ContextPack:
    """A pack of a session's line."""
    return _made(ports, acting, lambda then: seeing.seen_in(line), asked, as_of)


def pack_frame(ports: Ports, acting: Acting, frame: str, asked: Asked, as_of: int | None) -> ContextPack:
    """A pack of what a frame sees."""
    return _made(ports, acting, lambda then: seeing.seen_by(then, acting, frame), asked, as_of)


def pack_turn(ports: Ports, acting: Acting, frame: str, started: int, budget: int | None) -> ContextPack:
    """A pack of what a live turn sees, which this message began."""
    return _made(ports, acting, lambda then: seeing.seen_by(then, acting, frame, turn=started), asked_for(budget), None)


def _made(ports: Ports, acting: Acting, seen: Callable[[Ports], Seen], asked: Asked, as_of: int | None) -> ContextPack:
    if as_of is None:
        return wrapped(ports, acting, packing.pack(ports, acting, seen(ports), asked))
    if ports.past is None:
        raise NotFound("This journal cannot be looked at as it was. Open it with holdfast.open.")
    then = ports.past(ports, acting, as_of)
    made = packing.pack(then, acting, seen(then), asked)
    marked = replace(made, metadata=replace(made.metadata, reconstructed=True))
    return wrapped(then, acting, marked)


def wrapped(ports: Ports, acting: Acting, made: Packed) -> ContextPack:
    """A pack as callers get it."""
    return ContextPack(
        made,
        journal=ports.journal,
        tenant=acting.tenant,
        load=lambda message: porting.with_bodies(ports, acting, message),
        name=lambda one: digest(ports.journal.secret, acting.tenant, one),
    )


def pack_at(ports: Ports, acting: Acting, call: str, session: str | None = None) -> ContextPack:
    """The pack that a call was given, again; of one session only, if its stream is named."""
    return wrapped(ports, acting, rebuilt.pack_at(ports, acting, call, session))


def begin_call(
    ports: Ports,
    acting: Acting,
    pack: ContextPack,
    *,
    frame: str | None,
    line: str | None = None,
    model: str | None = None,
    if_interrupted: str = "retry",
    request: Any = None,
    key: str | None = None,
    newest: int | None = None,
) -> str:
    """Journal a pack and that a model is about to be called with it; gives the call's id."""
    if not isinstance(pack, ContextPack):
        raise InvalidValue(f"pack must be what pack() gave, not {type(pack).__name__}.")
    if pack._tenant != acting.tenant:
        raise InvalidValue("This pack was made for another tenant. Make one with this view's own pack().")
    if pack._journal is not ports.journal and pack._journal.secret != ports.journal.secret:
        raise InvalidValue("This pack was made from another journal. Make one with this client's own pack().")
    made = pack._packed
    if line is not None and made.metadata.scope != line:
        raise InvalidValue(f"This pack shows {made.metadata.scope}, not {line}. Make one with this session's pack().")
    ruling.before_call(ports, acting, made.metadata.scope, made)
    return journaled.begin(
        ports,
        acting,
        made,
        pack.digest,
        frame=frame,
        model=model,
        if_interrupted=if_interrupted,
        request=request,
        key=key,
        newest=newest,
    )
