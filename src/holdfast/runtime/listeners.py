"""Following a conversation at work: journaled events from any process, and live deltas from this one.

A position is written `<thread version>.<actor version>`, so that a listener that lost its connection can continue
after the last event it saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Self

from msgspec.structs import replace

from holdfast.aio.executor import ThreadPools
from holdfast.errors import InvalidValue
from holdfast.flow.frames.read import content_field, find_frame_row, load_current_state, read_event
from holdfast.flow.journal.read import iterate_events
from holdfast.flow.sessions import read as session_read
from holdfast.flow.turns import turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.ports import Env
from holdfast.records.events.envelope import Event
from holdfast.records.messages import Message
from holdfast.records.reports import EventQuery
from holdfast.runtime.reply import AgentEvent
from holdfast.runtime.tasks import ListenerHub, Notice

TAIL_POLL_SECONDS = 0.2
"""Seconds between polls of the journal, for events that other processes write."""
IDLE_POLL_LIMIT = 1
"""Consecutive idle polls after which a silent driver of this process is no longer waited for."""


class Tail:
    """The journaled part: events written after a position, in order."""

    def __init__(self, env: Env, place: TurnPlace) -> None:
        self._env, self._place = env, place
        self._thread = load_current_state(env, place.thread).version
        self._actor = load_current_state(env, place.actor).version
        self.turn: str | None = None
        """The turn that is followed; None for any turn."""

    def seek(self, after: str | None) -> Self:
        """Move to just after an event, or without one to the start of the live turn."""
        if after is not None:
            parts = after.split(".") if isinstance(after, str) else []
            if len(parts) != 2 or not all(part.isdecimal() and len(part) < 19 for part in parts):
                raise InvalidValue(f"after must be the id of an event that stream or tail gave, not {after!r:.40}.")
            self._thread, self._actor = map(int, parts)
        elif (live := turns.find_live_turn(self._env, self._place)) is not None:
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

    def is_idle(self) -> bool:
        """Return True if nothing more is to come for now: no turn is live, or all of it waits for a person."""
        live = turns.find_live_turn(self._env, self._place)
        view = None if live is None else turns.read_turn(self._env, live)
        return view is None or view.step.next == "wait"

    def read(self, until: tuple[int, int] | None = None, *, quiet: bool = True) -> tuple[list[AgentEvent], bool]:
        """Return new events, up to `until` if given, and (if `quiet`) whether nothing more is to come for now."""
        rests = quiet and self.is_idle()  # Checked first: a turn that ends meanwhile is read the next time.
        streams = {self._place.thread: self._thread, self._place.actor: self._actor}
        unsorted = (event for stream, after in streams.items() for event in self._read_events(stream, after))
        found, told = sorted(unsorted, key=lambda event: event.seq), []
        if until is not None:  # Up to the newest wanted one, over both streams: events written together stay together.
            last = dict(zip(streams, until, strict=True))
            wanted = [number for number, event in enumerate(found) if event.version <= last[event.stream]]
            found = found[: wanted[-1] + 1] if wanted else []
        for event in found:
            if event.stream == self._place.thread:
                self._thread = event.version
            else:
                self._actor = event.version
            shown = self._to_agent_event(event)
            told += [] if shown is None else [replace(shown, id=f"{self._thread}.{self._actor}")]
        return told, rests

    def _to_agent_event(self, event: Event) -> AgentEvent | None:
        """Return an event as listeners receive it; most events are internal."""
        facts: Any = event.facts
        match event.type:
            case "message.appended":
                return _message_event(session_read.decode_messages(self._env, [event])[0], self._tool_names(event))
            case "frame.popped" if facts.parent is None:
                return self._end_event(event)
            case "tool.requested":
                return AgentEvent(kind="tool", name=facts.name, data={"call": facts.call, "attempt": facts.attempt})
            case "frame.suspended" if facts.within is None:
                reason, options = content_field(event, "reason"), content_field(event, "options")
                data = {"question": facts.question, "kind": facts.kind, "options": options}
                return AgentEvent(kind="question", text=reason if isinstance(reason, str) else "", data=data)
            case "question.answered":
                return AgentEvent(kind="answered", data={"question": facts.question, "approved": facts.approved})
        return None

    def _tool_names(self, event: Event) -> dict[str, str]:
        """Return the names of the tools that a message answers, by call: those of the message that called them."""
        if not event.facts.answers or event.facts.round is None:
            return {}
        called = read_event(self._env, event.stream, event.facts.round)
        asked = [] if called is None else session_read.decode_messages(self._env, [called])
        return {call.id: call.name for message in asked for call in message.tool_calls}

    def _end_event(self, event: Event) -> AgentEvent:
        """Return the event for the end of a turn: with its reply and finish reason, or with reason and code."""
        data: dict[str, Any] = {"turn": event.facts.frame}
        error = content_field(event, "error")
        if event.facts.status != "completed":
            data["code"] = turns.stop_code(event.facts.status, event.facts.code)
            return AgentEvent(kind="stopped", text=error if isinstance(error, str) else "", data=data)
        turn = TurnPlace(actor=self._place.actor, thread=self._place.thread, frame=event.facts.frame)
        reply = turns.read_outcome(self._env, turn).message
        return AgentEvent(kind="done", data={**data, "finish": None if reply is None else reply.finish})

    def _read_events(self, stream: str, after: int) -> Iterator[Event]:
        return iterate_events(self._env, EventQuery(tenant=self._env.tenant, stream=stream, after=after))


def _message_event(message: Message, tools: Mapping[str, str]) -> AgentEvent | None:
    kind: Any = {"user": "message", "assistant": "reply", "tool": "result"}.get(message.role)
    if kind is None:
        return None
    data: dict[str, Any] = {"message": message.id, "partial": message.partial, "synthetic": message.synthetic}
    data["calls"] = [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in message.tool_calls]
    names = [tools.get(one.tool_call_id) for one in message.tool_results]
    data["results"] = [
        {"id": one.tool_call_id, "name": name, "result": one.result, "is_error": one.is_error}
        for name, one in zip(names, message.tool_results, strict=True)
    ]
    if kind == "reply":
        data["finish"] = message.finish
    return AgentEvent(kind=kind, text=message.text, name=names[0] if len(set(names)) == 1 else None, data=data)


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
