"""Journal packs: each is written when a model is about to be called, with the origin of every piece.

A pack belongs to the thread it shows and names the pack before it, so the last ones are found at once. Its id is
its event's id, and a call's id is its request's: both are found by point reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.frames import calls
from holdfast.core.frames.stack import add_clock_events
from holdfast.core.journal.codec import encode
from holdfast.core.packs.manifest import RENDERER_VERSION, count_steady, list_pieces
from holdfast.core.packs.segments import WINDOW_PART
from holdfast.errors import Conflict, InvalidValue, SessionClosed
from holdfast.flow.frames.lifecycle import check_live, match_event
from holdfast.flow.frames.read import find_frame_stream, frame_thread, load_current_state, read_event
from holdfast.flow.journal import artifacts, telemetry
from holdfast.flow.journal.append import States, decide_and_append, redact_as_configured
from holdfast.ports import Env
from holdfast.records.events.calls import CallContent, ContextPacked, ModelRequested, OmittedPiece, PackedPiece
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.events.sessions import ThreadOpened, TokensCounted
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.packs import AssembledPack, WindowKey
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.settings import Settings

PACKED = "context.packed"
SUMMED = "summary.made"
MODEL_CALLED = "model.requested"
LOOK_BACK = 16
"""The most packs searched for the last one of a kind."""


class PackOutdated(Conflict):
    """A pack lacks what was said since it was made."""


def last_pack(
    env: Env, thread: str, state: StreamState, window: WindowKey, newest: Event | None = None
) -> ContextPacked | None:
    """Return the thread's last journaled pack with this role, layout, tokenizer and budget."""
    for event in islice(iter_packs(env, thread, state, newest), LOOK_BACK + 1):
        facts: ContextPacked = event.facts
        if (facts.role, facts.layout, facts.tokenizer, facts.asked) == msgspec.structs.astuple(window):
            return facts
    return None


def find_window_piece(facts: ContextPacked) -> PackedPiece | None:
    """Return the piece of a pack that is a summary of what is older than its window."""
    return next((one for one in facts.manifest if one.kind == "summary" and one.part == WINDOW_PART), None)


def has_erasure_since(env: Env, cursor: int) -> bool:
    """Return True if anything was erased after the journal stood at a cursor."""
    newest = EventQuery(tenant=env.tenant, stream=Scope.GLOBAL.text, types=("subject.erased",), backwards=True, limit=1)
    return any(event.seq > cursor for event in env.journal.read(newest))


def iter_packs(env: Env, thread: str, state: StreamState | None = None, newest: Event | None = None) -> Iterator[Event]:
    """Iterate over a thread's packs, newest first, each read on demand; `newest` may be passed in if loaded."""
    known = load_current_state(env, thread) if state is None else state
    at = 0 if known.thread is None else known.thread.packed
    while at:
        event = newest if newest is not None and newest.version == at else read_event(env, thread, at)
        if event is None or event.type != PACKED:
            return
        yield event
        at = event.facts.before


def begin_call(
    env: Env,
    packed: AssembledPack,
    digest: str,
    *,
    frame: str | None,
    model: str | None = None,
    if_interrupted: str = "retry",
    request: Any = None,
    key: str | None = None,
    newest: int | None = None,
) -> str:
    """Journal a pack and the start of a model call with it; return the call's id.

    `digest` names the content shown, and `newest` is the version of the last message at that time.
    """
    thread, actor = packed.metadata.scope, _check_pack(env, packed, frame)
    model, pack_id = model or packed.model, ulid_text(env.ids.ulid())
    call = pack_id if frame is None else ulid_text(env.ids.ulid())
    facts = _pack_facts(env, packed, digest, pack_id, call, frame)
    content = redact_as_configured(env, None if request is None else CallContent(arguments=request))
    streams = (actor,) if actor == thread else (actor, thread)

    def decide(states: States) -> dict[str, list[Draft]]:
        shown = _pack_drafts(env, states[thread], facts, packed, newest)
        if frame is None:
            return {thread: shown}
        state, now = states[actor], env.clock.now_ms()
        check_live(env, state, frame)
        intent = ModelRequested(
            call=call, frame=frame, model=model, pack=pack_id, context_hash=facts.digest, if_interrupted=if_interrupted
        )
        asked = calls.begin_call(state, intent, content, now)
        return {actor: add_clock_events(state, asked, now), thread: shown}

    same = match_event(PACKED, digest=facts.digest)
    if frame is not None:
        # Do not compare the content shown: a retry after a crash continues the same call, even with new messages.
        same = match_event(MODEL_CALLED, content, frame=frame, model=model, if_interrupted=if_interrupted)
    placed = [artifacts.prepare_artifact(env, body) for name, body in packed.pins if name in facts.artifacts]
    changed = decide_and_append(env, streams, decide, key=key, same=same, artifacts=placed)
    made = str(changed.last_facts(PACKED if frame is None else MODEL_CALLED).call)
    if made == call and frame is not None:  # A call outside of frames has no journaled end.
        telemetry.begin_span(env, call, frame=frame, model=model, conversation=thread, packed=packed)
    return made


def _check_pack(env: Env, packed: AssembledPack, frame: str | None) -> str:
    """Refuse a pack of the past, and one that was not made for this call; return the stream of the call."""
    if packed.metadata.reconstructed or packed.metadata.pack_id is not None:
        raise InvalidValue("This pack is of the past. Make one with pack() for a new call.")
    made_for, thread = packed.metadata.frame_id, packed.metadata.scope
    if frame is None:
        if made_for is not None:
            raise InvalidValue(f"This pack was made for frame {made_for}. Journal it with hf.index.begin_model_call.")
        return thread
    stream = find_frame_stream(env, frame)
    within = parse_scope(stream).get("session")
    # A frame outside any session may work for one; a frame within a session works for that session only.
    session_s = made_for is None and (within is None or frame_thread(env, frame) == thread)
    if made_for != frame and not session_s:
        raise InvalidValue(f"This pack shows {thread}, which is not what frame {frame} sees. Make one for this frame.")
    return stream


def _pack_drafts(
    env: Env, state: StreamState, facts: ContextPacked, packed: AssembledPack, newest: int | None
) -> list[Draft]:
    """Return the events for the thread: the pack, and the token counts and the summary that were made for it."""
    if newest is not None and state.thread is not None and state.thread.newest != newest:
        raise PackOutdated("Messages were appended after this pack was made. Make another one.")
    if state.thread is not None and state.thread.ended and not state.thread.fresh:
        raise SessionClosed(f"{packed.metadata.scope} has ended: no model is called for it any more.")
    drafts = [] if state.thread is not None else [Draft(type="thread.opened", facts=ThreadOpened(private=True))]
    fresh = packed.fresh.get(packed.metadata.scope, ())
    if fresh:
        counted = TokensCounted(
            tokenizer=packed.kept_as,
            versions=tuple(version for version, _ in fresh),
            counts=tuple(tokens for _, tokens in fresh),
        )
        drafts.append(Draft(type="tokens.counted", facts=counted))
    pieces = facts.manifest
    if packed.made is not None:
        if has_erasure_since(env, packed.metadata.log_seq):
            raise PackOutdated("Somebody was erased after this pack was made, and its summary may repeat their words.")
        named = replace(packed.made.facts, summary=ulid_text(env.ids.ulid()))
        drafts.append(replace(packed.made, facts=named))
        at = state.version + len(drafts)
        place = {"first": at, "last": at}
        pieces = tuple(one if one.kind != "summary" or one.first else replace(one, **place) for one in pieces)
    before = 0 if state.thread is None else state.thread.packed
    linked = replace(facts, before=before, manifest=pieces)
    return [*drafts, Draft(type=PACKED, facts=linked, id=facts.pack)]


def _pack_facts(env: Env, packed: AssembledPack, digest: str, pack: str, call: str, frame: str | None) -> ContextPacked:
    summary = packed.token_summary
    manifest = _list_pieces(packed)
    stream, start = packed.window_start or (None, None)
    return ContextPacked(
        pack=pack,
        call=call,
        frame=frame,
        digest=digest,
        level=summary.compaction_level.value,
        layout=packed.metadata.layout,
        tokenizer=packed.tokenizer,
        exact=packed.exact,
        renderer=RENDERER_VERSION,
        settings=settings_digest(env.settings),
        budget=summary.budget,
        asked=packed.window.budget,
        used=summary.used,
        role=packed.metadata.role,
        model=packed.model,
        at_seq=packed.metadata.log_seq,
        window_stream=stream,
        window_start=start,
        cached_tokens=packed.cached_tokens,
        limited_by=packed.limited_by,
        breakdown={name: value for name, value in msgspec.structs.asdict(summary.breakdown).items() if value},
        manifest=manifest,
        left_out=tuple(
            OmittedPiece(id=one.id, kind=one.kind, why=one.reason, tokens=one.tokens)
            for one in packed.decisions
            if one.outcome == "omitted" and one.kind != "conversation"
        ),
        shown=packed.conversation.message_count,
        truncated=packed.conversation.truncated_count,
        questions=tuple(one.id for one in packed.decisions if one.reason == "question"),
        stable=packed.stable,
        artifacts=tuple(
            dict.fromkeys(piece.artifact for piece in manifest if piece.artifact is not None and is_copy(piece))
        ),
    )


def _list_pieces(packed: AssembledPack) -> tuple[PackedPiece, ...]:
    """List the pieces of a pack; those of the segments that the last journaled pack began with are known."""
    hints, segments, end = packed.hints, packed.segments, count_steady(packed)
    if hints is None:
        return list_pieces(segments, packed.follows)
    usable = [known for known in hints.pieces if len(known[0]) <= end and segments[: len(known[0])] == known[0]]
    listed, pieces = usable[-1] if usable else ((), ())
    base = hints.run.base
    # What stands before the questions of a turn is known to the next turn as well.
    ends = [end] if base is None else [hints.run_at + len(base.segments), end]
    kept = usable[:-1] if usable else []
    for until in [one for one in ends if one >= len(listed)]:
        pieces = list_pieces(segments[len(listed) : until], packed.follows, pieces)
        listed = segments[:until]
        kept.append((listed, pieces))
    hints.pieces = tuple(kept[-2:])
    return list_pieces(segments[end:], packed.follows, pieces)


def is_copy(piece: PackedPiece) -> bool:
    """Return True if a piece is a copy of outside text. Other artifacts are not held: erasure removes them."""
    return piece.kind == "evidence" and piece.artifact is not None and piece.part != "artifact"


@lru_cache(maxsize=16)
def settings_digest(settings: Settings) -> str:
    """Return a short digest of the settings."""
    return hashlib.sha256(encode(msgspec.to_builtins(settings))).hexdigest()[:16]
