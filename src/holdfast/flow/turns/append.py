"""Append to two streams at once: messages to a thread, and their meaning to the turn they belong to.

A message's text is stored only in the thread; the turn's events name its version. Either both are written, or
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.frames.stack import add_clock_events
from holdfast.core.journal.fold import fold_facts
from holdfast.core.sessions.tokens import framing_of
from holdfast.errors import Conflict
from holdfast.flow.journal.append import ChangeResult, States, decide_and_append
from holdfast.flow.sessions import append
from holdfast.flow.sessions.append import MessagePreparer
from holdfast.flow.sessions.read import session_stream
from holdfast.ports import Env
from holdfast.records.batches import Artifact
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.messages import Message
from holdfast.records.sessions import ThreadState


class TurnPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a turn: its frame, the stream the frame lives in, and the thread it answers in."""

    actor: str
    thread: str
    frame: str = ""
    started: int = 0
    """The version of the message that began the turn."""


class MessageBatch(msgspec.Struct, frozen=True):
    """Messages about to be written: their versions and ids, and the state of their thread before them."""

    versions: tuple[int, ...]
    ids: tuple[str, ...]
    facts: tuple[Any, ...]
    """A `MessageAppended` for each message."""
    messages: tuple[Message, ...]
    """The same messages, redacted."""
    thread: ThreadState


class DraftBuilder(msgspec.Struct):
    """A stream's state while drafts are collected; each draft is decided on the state after the previous ones."""

    state: StreamState
    now: int
    drafts: list[Draft] = []

    def add(self, drafts: Sequence[Draft]) -> None:
        """Add drafts and fold them into the state."""
        for draft in drafts:
            self.drafts.append(draft)
            self.state = fold_facts(self.state, draft.type, draft.facts, self.state.version + 1, self.now)


def add_facts(draft: Draft, **facts: Any) -> Draft:
    """Return a draft with more facts than its rule knows."""
    return replace(draft, facts=replace(draft.facts, **facts))


Decide = Callable[[StreamState, MessageBatch], Sequence[Draft]]


class ConversationOver(Conflict):
    """The subject of a turn is gone: the conversation ended, or was rewound to before the turn began."""


def is_conversation_over(thread: ThreadState | None, started: int) -> bool:
    """Return True if the turn that a message began has nothing left to answer."""
    return thread is None or thread.ended or thread.floor >= started or thread.newest < started


def append_to_turn(
    env: Env,
    place: TurnPlace,
    messages: Sequence[Message],
    decide: Decide,
    *,
    key: str | None = None,
    release: int | None = None,
    call: str | None = None,
    placed: Sequence[Artifact] = (),
) -> tuple[list[Message], ChangeResult]:
    """Append messages and the turn's events in one append; return the messages as stored.

    `release` also gives back the lease of that epoch if the turn ends. A key that was used before returns no messages.
    """
    tokenizer, info = append.thread_tokenizer(env, place.thread)
    preparer = MessagePreparer(env, tokenizer, framing_of(info.provider, info.name), place.frame, call)
    prepared = preparer.prepare(messages)
    ids = tuple([ulid_text(env.ids.ulid()) for _ in messages])
    written: list[MessageBatch] = []

    def run(states: States) -> dict[str, list[Draft]]:
        if messages and place.started and is_conversation_over(states[place.thread].thread, place.started):
            raise ConversationOver(f"{place.thread} has ended, or was rewound, since this turn began in it.")
        before, said, anew = append.draft_messages(env, place.thread, states[place.thread], prepared.entries)
        said = [replace(draft, id=id) for draft, id in zip(said, ids, strict=True)]
        first = states[place.thread].version + len(before) + 1
        versions, facts = tuple(range(first, first + len(said))), tuple([draft.facts for draft in said])
        thread = states[place.thread].thread or ThreadState()
        speech = MessageBatch(versions, ids, facts, prepared.messages, thread)
        written[:] = [speech]
        own = add_clock_events(states[place.actor], decide(states[place.actor], speech), env.clock.now_ms())
        popped: list[Any] = [draft.facts for draft in own if draft.type == "frame.popped"]
        if release is not None and place.frame in [facts.frame for facts in popped]:
            own += env.leases.draft_release(env.tenant, place.actor, release)
        # Messages come first, so that a subscriber sees the reply before the end of the turn.
        drafts = {place.thread: [*before, *said], place.actor: own}
        return {**drafts, session_stream(place.thread): anew} if anew else drafts

    def needs(states: States) -> Sequence[str]:
        thread = states[place.thread].thread
        return (session_stream(place.thread),) if messages and thread is not None and thread.ended else ()

    here = (env.tenant, place.actor)
    # Another thread must not use a lease that is being released.
    lock = nullcontext() if release is None else env.leases.lock(*here)
    streams, bodies = (place.actor, place.thread), (*prepared.artifacts, *placed)
    with env.observers.defer(), lock:
        changed = decide_and_append(
            env, streams, run, key=key, same=lambda _: True, needs=needs, artifacts=bodies, tries=append.APPEND_TRIES
        )
        if release is not None and "lease.released" in [name for name, _ in changed.facts]:
            env.leases.remove_user(*here, release)
    _forget_ended(env, place, [facts.frame for name, facts in changed.facts if name == "frame.popped"])
    if changed.repeated or not messages:
        return [], changed
    facts, first = written[0].facts, written[0].versions[0]
    return append.build_stored_messages(place.thread, prepared, facts, ids, first, changed.at), changed


def _forget_ended(env: Env, place: TurnPlace, ended: Sequence[str]) -> None:
    """Drop what is cached for frames that have ended: they are hardly asked for again."""
    for frame in ended:
        env.states.frame_streams.drop((env.tenant, frame))
    if env.transients.kept and place.frame in ended:
        _clear_transients(env, place)


def _clear_transients(env: Env, place: TurnPlace) -> None:
    """Remove the transient entries of an ended turn: its thread's, and its session's after the last turn there."""
    env.transients.clear_below((env.tenant, place.thread))
    if not env.leases.holds_below(env.tenant, place.actor.rpartition("/")[0], but=place.actor):
        env.transients.clear((env.tenant, session_stream(place.thread)))
