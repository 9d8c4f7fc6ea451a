"""Following a conversation at work: journaled events from any process, and live deltas from this one.

A position is written `<thread version>.<actor version>`, so that a listener that lost its connection can continue
after the last event it saw. Deltas are relayed only within the process that receives them, in order with journal
positions, so that no listener receives a reply before its deltas. They are dropped once the reply is in the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

from holdfast.aio.executor import ThreadPools
from holdfast.core.journal.codec import decode_event
from holdfast.errors import InvalidValue
from holdfast.flow.frames.read import content_field, find_frame_row, load_current_state
from holdfast.flow.sessions import read as session_read
from holdfast.flow.turns import outcome, turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.ports import Env
from holdfast.records.events.envelope import Event
from holdfast.records.messages import Message
from holdfast.records.reports import EventQuery
from holdfast.runtime.reply import AgentEvent

TAIL_POLL_SECONDS = 0.2
"""Seconds between polls of the journal, for events that other processes write."""
IDLE_POLL_LIMIT = 1
"""Consecutive idle polls after which a silent driver of this process is no longer waited for."""
PAGE_SIZE = 256


class Tail:
    """The journaled part: events written after a position, in order."""

    def __init__(self, env: Env, place: TurnPlace) -> None:
        self._env, self._place = env, place
        self._thread, self._actor = self._current_versions()
        self.turn: str | None = None
        """The turn that is followed; None for any turn."""

    def _current_versions(self) -> tuple[int, int]:
        """Return the current versions of the conversation."""
        streams = self._place.thread, self._place.actor
        thread, actor = (load_current_state(self._env, stream).version for stream in streams)
        return thread, actor

    def seek(self, after: str | None) -> Self:
        """Move to just after an event, or without one to the start of the live turn."""
        live = turns.find_live_turn(self._env, self._place) if after is None else None
        if after is not None:
            self._thread, self._actor = _parse_position(after)
        elif live is not None:
            self._thread, self._actor = self._versions_before(live)
        return self

    def follow_turn(self, turn: TurnPlace, *, again: bool = False) -> None:
        """Follow one turn to its end: from its beginning if that is new, or if `again` is set."""
        self.turn = turn.frame
        if again or turn.started > self._thread:
            self._thread, self._actor = self._versions_before(turn)

    def _versions_before(self, turn: TurnPlace) -> tuple[int, int]:
        _, row = find_frame_row(self._env, turn.frame)
        return turn.started - 1, int(row["pushed_version"] or 1) - 1

    @property
    def id(self) -> str:
        """The current position."""
        return f"{self._thread}.{self._actor}"

    def is_idle(self) -> bool:
        """Return True if nothing more is to come for now: no turn is live, or all of it waits for a person."""
        live = turns.find_live_turn(self._env, self._place)
        view = None if live is None else turns.read_turn(self._env, live)
        return view is None or view.step.next == "wait"

    def read(self, until: tuple[int, int] | None = None, *, quiet: bool = True) -> tuple[list[AgentEvent], bool]:
        """Return new events, up to `until` if given, and (if `quiet`) whether nothing more is to come for now."""
        rests = quiet and self.is_idle()  # Checked first: a turn that ends meanwhile is read the next time.
        found = [
            *self._read_events(self._place.thread, self._thread),
            *self._read_events(self._place.actor, self._actor),
        ]
        told = []
        for event in self._select_until(sorted(found, key=lambda event: event.seq), until):
            if event.stream == self._place.thread:
                self._thread = event.version
            else:
                self._actor = event.version
            told += [self._with_id(one) for one in self._to_agent_events(event)]
        return told, rests

    def _select_until(self, found: list[Event], until: tuple[int, int] | None) -> list[Event]:
        """Return the events up to the newest wanted one, over both streams: events written together stay together."""
        if until is None:
            return found
        last = {self._place.thread: until[0], self._place.actor: until[1]}
        wanted = [number for number, event in enumerate(found) if event.version <= last[event.stream]]
        return found[: wanted[-1] + 1] if wanted else []

    def _to_agent_events(self, event: Event) -> Iterator[AgentEvent]:
        if event.type == "message.appended":
            yield from _message_events(session_read.decode_messages(self._env, [event])[0])
        elif event.type == "frame.popped" and event.facts.parent is None:
            yield self._end_event(event)
        else:
            yield from _turn_events(event)

    def _end_event(self, event: Event) -> AgentEvent:
        """Return the event for the end of a turn: with its reply and finish reason, or with the reason it stopped."""
        data: dict[str, Any] = {"turn": event.facts.frame}
        error = content_field(event, "error")
        if event.facts.status != "completed":
            return AgentEvent(kind="stopped", text=error if isinstance(error, str) else "", data=data)
        turn = TurnPlace(actor=self._place.actor, thread=self._place.thread, frame=event.facts.frame)
        reply = outcome.read_outcome(self._env, turn).message
        return AgentEvent(kind="done", data={**data, "finish": None if reply is None else reply.finish})

    def _with_id(self, event: AgentEvent) -> AgentEvent:
        return AgentEvent(kind=event.kind, id=self.id, text=event.text, name=event.name, data=event.data)

    def _read_events(self, stream: str, after: int) -> Iterator[Event]:
        while page := self._env.journal.read(
            EventQuery(tenant=self._env.tenant, stream=stream, after=after, limit=PAGE_SIZE)
        ):
            yield from map(decode_event, page)
            if len(page) < PAGE_SIZE:
                return
            after = page[-1].version


def _parse_position(after: object) -> tuple[int, int]:
    parts = after.split(".") if isinstance(after, str) else []
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise InvalidValue(f"after must be the id of an event that stream or tail gave, not {after!r:.40}.")
    return int(parts[0]), int(parts[1])


def _turn_events(event: Event) -> Iterator[AgentEvent]:
    """Yield an event of a turn as listeners receive it; most events are internal."""
    facts: Any = event.facts
    if event.type == "tool.requested":
        yield AgentEvent(kind="tool", name=facts.name, data={"call": facts.call, "attempt": facts.attempt})
    elif event.type == "frame.suspended" and facts.within is None:
        reason = content_field(event, "reason")
        yield AgentEvent(
            kind="question",
            text=reason if isinstance(reason, str) else "",
            data={"question": facts.question, "kind": facts.kind, "options": content_field(event, "options")},
        )
    elif event.type == "question.answered":
        yield AgentEvent(kind="answered", data={"question": facts.question, "approved": facts.approved})


def _message_events(message: Message) -> Iterator[AgentEvent]:
    kind: Any = {"user": "message", "assistant": "reply", "tool": "result"}.get(message.role)
    if kind is None:
        return
    data: dict[str, Any] = {"message": message.id, "partial": message.partial, "synthetic": message.synthetic}
    data["calls"] = [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in message.tool_calls]
    data["results"] = [
        {"id": one.tool_call_id, "result": one.result, "is_error": one.is_error} for one in message.tool_results
    ]
    if kind == "reply":
        data["finish"] = message.finish
    yield AgentEvent(kind=kind, text=message.text, data=data)


async def follow(
    hub: ListenerHub,
    threads: ThreadPools,
    tail: Tail,
    place: tuple[str, str],
    ear: asyncio.Queue[Notice],
    running: asyncio.Future[Any] | None = None,
) -> AsyncIterator[AgentEvent]:
    """Yield events until the turn has ended or waits; with `running`, until that future is done."""
    try:
        heard: Notice = None if ear.empty() else ear.get_nowait()
        silent = 0
        while True:
            over = (running is not None and running.done() and ear.empty()) or silent > IDLE_POLL_LIMIT
            until = None if over else heard or hub.get_versions(place)
            assert not isinstance(until, AgentEvent), "what is said comes after how far the journal is"
            told, rests = await threads.run(tail.read, until, quiet=heard is None)
            for event in told:
                yield event
                if event.data.get("turn") is not None and event.data["turn"] == tail.turn:
                    return
            if (over or (running is None and rests and until is None)) and ear.empty():
                return
            # The journal says that nothing is left to do, and no driver speaks: nothing is at work any more.
            silent = silent + 1 if running is None and rests and not told and ear.empty() else 0
            heard = await _next_notice(ear, running)
            while isinstance(heard, AgentEvent):
                yield heard
                heard = None if ear.empty() else ear.get_nowait()
    finally:
        hub.stop_listening(place, ear)


async def _next_notice(ear: asyncio.Queue[Notice], running: asyncio.Future[Any] | None) -> Notice:
    """Return the next notice; None after a timeout, or when the work is done."""
    waiting = asyncio.ensure_future(ear.get())
    others: list[asyncio.Future[Any]] = [waiting] if running is None else [waiting, running]
    try:
        await asyncio.wait(others, timeout=TAIL_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        waiting.cancel()


Notice = AgentEvent | tuple[int, int] | None
"""A live event, the versions up to which the journal has news, or None: poll."""


class ListenerHub:
    """The listeners of this process, by conversation."""

    def __init__(self) -> None:
        self._ears: dict[tuple[str, str], set[asyncio.Queue[Notice]]] = {}
        self._said: dict[tuple[str, str], list[str]] = {}
        self._reached: dict[tuple[str, str], tuple[int, int]] = {}

    def publish_versions(self, place: tuple[str, str], until: tuple[int, int]) -> None:
        """Announce that the journal has news up to these versions of the thread and the actor, in order with deltas."""
        self._reached[place] = until
        self._said.pop(place, None)  # The reply with these deltas is in the journal now.
        for ear in self._ears.get(place, ()):
            ear.put_nowait(until)

    def publish_event(self, place: tuple[str, str], kind: str, data: dict[str, Any]) -> None:
        """Relay a live event to the listeners. Must be called on their event loop."""
        if kind == "delta" and data.get("kind") == "text":
            self._said.setdefault(place, []).append(str(data.get("text", "")))
        elif kind in ("reset", "over"):
            self._said.pop(place, None)
        if kind == "over":
            self._reached.pop(place, None)
        ears = self._ears.get(place)
        if ears:
            event = None if kind == "over" else _live_event(kind, data)
            for ear in ears:
                ear.put_nowait(event)

    def listen(self, place: tuple[str, str], *, again: bool = False) -> asyncio.Queue[Notice]:
        """Add a listener; it first receives the journal's position and the deltas of the reply in progress.

        With `again`, it may know a part of those deltas, so a reset comes first.
        """
        ear: asyncio.Queue[Notice] = asyncio.Queue()
        said = "".join(self._said.get(place, ()))
        if said or place in self._reached:
            ear.put_nowait(self._reached.get(place))
        if said and again:
            ear.put_nowait(AgentEvent(kind="reset"))
        if said:
            ear.put_nowait(AgentEvent(kind="delta", text=said, data={"kind": "text"}))
        self._ears.setdefault(place, set()).add(ear)
        return ear

    def get_versions(self, place: tuple[str, str]) -> tuple[int, int] | None:
        """Return how far the journal may be read before the next live event; None if nothing is at work here."""
        return self._reached.get(place)

    def stop_listening(self, place: tuple[str, str], ear: asyncio.Queue[Notice]) -> None:
        """Remove a listener."""
        ears = self._ears.get(place, set())
        ears.discard(ear)
        if not ears:
            self._ears.pop(place, None)


class TurnListener:
    """A turn that is to be followed: announced, and listened to, from the moment it starts."""

    def __init__(self, hub: ListenerHub, place: tuple[str, str]) -> None:
        self._hub, self._place = hub, place
        self.turn: asyncio.Future[TurnPlace] = asyncio.get_running_loop().create_future()
        self.ear: asyncio.Queue[Notice] | None = None

    def announce(self, turn: TurnPlace) -> None:
        """Announce that work on the turn has started."""
        if not self.turn.done():
            self.ear = self._hub.listen(self._place)
            self.turn.set_result(turn)

    def stop_listening(self) -> None:
        """Stop listening."""
        self.turn.cancel()
        if self.ear is not None:
            self._hub.stop_listening(self._place, self.ear)


def _live_event(kind: str, data: dict[str, Any]) -> AgentEvent:
    rest = {name: value for name, value in data.items() if name not in ("text", "name")}
    known: Any = kind
    return AgentEvent(kind=known, text=str(data.get("text", "")), name=data.get("name"), data=rest)
