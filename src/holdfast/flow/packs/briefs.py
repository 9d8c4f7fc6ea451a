"""Briefs: set for a scope and a role, looked up field by field, and reloaded from the origin of each piece.

A brief is an entry of `hf.state` under a reserved key, so it is versioned and erased like any other entry.
A session's `system` and `tools` settings count as its main brief.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.journal.codec import decode_event
from holdfast.core.lazy import decoder
from holdfast.core.packs import briefs
from holdfast.core.packs.briefs import Brief, BriefPiece, choose_pieces
from holdfast.core.packs.fences import FenceMarks
from holdfast.core.trust import lowest_trust
from holdfast.errors import Corrupt, InvalidValue
from holdfast.flow.frames.read import content_field, iter_ancestors, load_current_state
from holdfast.flow.journal import artifacts
from holdfast.flow.packs.visibility import BRIEF_PREFIX, brief_scopes, has_briefs, is_thread, read_origin
from holdfast.flow.state import write
from holdfast.flow.state.journal_store import internal_storage
from holdfast.ports import Env
from holdfast.ports.capabilities import STATE, require
from holdfast.records.events.envelope import ERASED
from holdfast.records.ids import check_id
from holdfast.records.messages import ToolDef
from holdfast.records.packs import MAIN_ROLE, BriefContext, Origin
from holdfast.records.recovery import FrameInfo
from holdfast.records.scope import Address, Scope, parse_scope
from holdfast.records.sessions import SessionState

# setting


def set_brief(
    env: Env,
    scope: Address,
    role: str,
    *,
    system_prompt: str | None = None,
    invariants: Sequence[str] | None = None,
    working_context: Any = None,
    tools: Sequence[Any] | None = None,
    key: str | None = None,
) -> None:
    """Replace the brief of a role in a scope; with nothing given, remove it."""
    where, name = Scope.of(scope), BRIEF_PREFIX + check_id(role, "role")
    if is_thread(where):
        raise InvalidValue(f"{where} is a thread, and threads have the brief of their session. Set it there.")
    value = briefs.check_brief(
        system_prompt=system_prompt, invariants=invariants, working_context=working_context, tools=tools
    )
    if value:
        write.write_entry(internal_storage(env), where, name, write.EntryWrite(value=value, once=key))
    else:
        write.delete_entry(internal_storage(env), where, name, once=key)


# looking up


def brief_context(env: Env, scope: Address, role: str) -> BriefContext:
    """Return the brief that applies in a scope, limited to content trusted to instruct a model."""
    stream = Scope.of(scope).text
    session = parse_scope(stream).get("session")
    own = None if session is None else Scope.session(session).text
    return load_brief(env, session=own, scopes=brief_scopes(stream), role=role).context


def load_brief(
    env: Env, *, session: str | None, scopes: Sequence[str], role: str = MAIN_ROLE, frame: FrameInfo | None = None
) -> Brief:
    """Load the brief for a role. `session` and `scopes` are streams, `scopes` nearest first.

    Each field comes from the nearest scope that sets it for the role, else from the nearest that sets it for main.
    """
    roles = tuple(dict.fromkeys((check_id(role, "role"), MAIN_ROLE)))
    state = None if session is None else load_current_state(env, session)
    there = [scope for scope in scopes if scope != session or state is None or state.version]
    entries = {scope: _load_entries(env, scope, roles) for scope in there}
    found: list[BriefPiece] = []
    for one in roles:
        for scope in there:
            if one in entries[scope]:
                found.append(entries[scope][one])
            if scope == session and one == MAIN_ROLE and state is not None and state.session is not None:
                found += _session_pieces(env, scope, state.session)
    pieces = [*map(_note_taken_fields, choose_pieces(found))]
    if frame is not None and frame.inputs is not None and frame.inputs is not ERASED:
        place = next(iter_ancestors(env, frame.id))
        given = _load_piece(env, Origin(kind="brief", part="inputs", stream=place.stream, first=place.goal))
        pieces += [] if given.erased or given.fields[briefs.INPUTS_FIELD] is None else [given]
    return briefs.render_brief(pieces, FenceMarks(env.journal, env.tenant))


def _note_taken_fields(piece: BriefPiece) -> BriefPiece:
    """Note in an entry's origin which fields are taken from it: this could not be told once the entry is erased."""
    taken = ",".join(sorted(piece.fields))
    return replace(piece, origin=replace(piece.origin, cut=taken)) if piece.origin.part == "entry" else piece


def _load_entries(env: Env, scope: str, roles: Sequence[str]) -> dict[str, BriefPiece]:
    """Load a scope's briefs for some roles, with a single read if it has none."""
    if len(roles) > 1 and not has_briefs(env, scope):
        return {}
    found, now = {}, env.clock.now_ms()
    for role in roles:
        stored = require(env.journal, STATE).entry(env.tenant, scope, BRIEF_PREFIX + role)
        if stored is None:
            continue
        event = decode_event(stored)
        if event.facts.expires_at is None or event.facts.expires_at > now:
            origin = Origin(kind="brief", part="entry", stream=event.stream, first=event.version, entry=event.facts.key)
            found[role] = BriefPiece(origin=origin, trust=event.trust, fields=briefs.brief_fields(event.content.value))
    return found


def _session_pieces(env: Env, session: str, known: SessionState) -> list[BriefPiece]:
    """Return the session's system prompt and tools, leaving out erased ones."""
    found = []
    if known.system is not None:
        found.append(_load_piece(env, Origin(kind="brief", part="system", stream=session, first=known.system)))
    if known.tools is not None:
        found.append(_load_piece(env, Origin(kind="brief", part="tools", stream=session, artifact=known.tools)))
    return [piece for piece in found if not piece.erased]


# loading again


def reload_brief(env: Env, origins: Sequence[Origin]) -> Brief:
    """Reload a brief from the origins of its pieces, ignoring later changes; erased pieces are marked."""
    return briefs.render_brief([_load_piece(env, origin) for origin in origins], FenceMarks(env.journal, env.tenant))


def _load_piece(env: Env, origin: Origin) -> BriefPiece:
    if origin.part == "tools":
        body = artifacts.read_artifact(env, str(origin.artifact))
        tools = decoder(tuple[ToolDef, ...]).decode(body) if isinstance(body, bytes) else None
        fields = briefs.make_erased_fields(["tools"]) if tools is None else {"tools": tools}
        return BriefPiece(origin=origin, trust="system", fields=fields, erased=tools is None)
    event = read_origin(env, origin)
    trust = "external" if event is None else event.trust
    said: dict[str, Any] = {}
    match origin.part:
        case "entry":
            names = (origin.cut or "").split(",")
            found = briefs.brief_fields(content_field(event, "value"))
            said = {name: item for name, item in found.items() if name in names}
        case "system":
            names, text = ["system_prompt"], content_field(event, "system")
            said = {"system_prompt": text} if isinstance(text, str) else {}
        case "inputs":
            # Inputs may come from anywhere, so they are trusted at most as a user's, whoever pushed the frame.
            names, trust = [briefs.INPUTS_FIELD], lowest_trust(trust, "user")
            if event is not None and event.content is not None and event.content is not ERASED:
                said = {briefs.INPUTS_FIELD: content_field(event, briefs.INPUTS_FIELD)}
        case _:
            raise Corrupt(
                f"A brief has no part {origin.part!r}: this pack was written by a later release, or is damaged."
            )
    return BriefPiece(origin=origin, trust=trust, fields=said or briefs.make_erased_fields(names), erased=not said)
