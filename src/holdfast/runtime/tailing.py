"""Hearing a conversation while it is worked on: what is in the journal, from any process, and what is said right now.

A place in it is written `<line version>.<actor version>`, so that whoever lost the connection goes on behind the last
thing that it saw. Pieces of a reply are passed on within the process that hears them and are not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

from holdfast.aio.threads import Threads
from holdfast.core.codec import decode_event
from holdfast.errors import InvalidValue
from holdfast.flow.conversation import lines
from holdfast.flow.stack.showing import current, field
from holdfast.flow.turn import spoken, turns
from holdfast.flow.turn.writing import Place
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import Event
from holdfast.records.ids import ulid_bytes
from holdfast.records.messages import Message
from holdfast.records.reports import Query
from holdfast.runtime.hub import Heard, Hub
from holdfast.runtime.reply import AgentEvent

LOOK = 0.2
"""Seconds between looks at the journal, for what other processes write."""
SILENT = 1
"""Looks in a row at a conversation that rests, with nobody heard, until those are not waited for who work on it."""
PAGE = 256


class Tail:
    """The journaled part: what was written after a place, in order."""

    def __init__(self, ports: Ports, acting: Acting, place: Place) -> None:
        self._ports, self._acting, self._place = ports, acting, place
        self._line, self._actor = self._now()
        self.turn: str | None = None
        """The turn that is listened to; None for whatever comes."""

    def _now(self) -> tuple[int, int]:
        """Where the conversation stands."""
        streams = self._place.line, self._place.actor
        line, actor = (current(self._ports, self._acting, stream).version for stream in streams)
        return line, actor

    def go_to(self, after: str | None) -> Self:
        """Behind an event; without one to where the turn began that is under way."""
        live = turns.live_turn(self._ports, self._acting, self._place) if after is None else None
        if after is not None:
            self._line, self._actor = _parsed(after)
        elif live is not None:
            self._line, self._actor = self._before(live)
        return self

    def note(self, turn: Place, *, again: bool = False) -> None:
        """Listen to this turn: from its beginning if that is news, or wanted again, and not beyond its end."""
        self.turn = turn.frame
        if again or turn.started > self._line:
            self._line, self._actor = self._before(turn)

    def _before(self, turn: Place) -> tuple[int, int]:
        found = self._ports.journal.find(self._acting.tenant, "frames", "frame_id", ulid_bytes(turn.frame), b"", 1)
        return turn.started - 1, int(found[0][1]["pushed_version"] or 1) - 1

    @property
    def id(self) -> str:
        """The place that was reached."""
        return f"{self._line}.{self._actor}"

    def rests(self) -> bool:
        """Whether nothing more is to come for now: no turn is under way, or all of it waits for a person."""
        live = turns.live_turn(self._ports, self._acting, self._place)
        view = None if live is None else turns.look(self._ports, self._acting, live)
        return view is None or view.step.next == "wait"

    def read(self, until: tuple[int, int] | None = None, *, quiet: bool = True) -> tuple[list[AgentEvent], bool]:
        """What is new, up to some versions if they are given; if it is quiet, whether nothing is to come for now."""
        rests = quiet and self.rests()  # Looked at first: what ends meanwhile is read the next time.
        found = [*self._events(self._place.line, self._line), *self._events(self._place.actor, self._actor)]
        told = []
        for event in self._up_to(sorted(found, key=lambda event: event.seq), until):
            if event.stream == self._place.line:
                self._line = event.version
            else:
                self._actor = event.version
            told += [self._named(one) for one in self._told(event)]
        return told, rests

    def _up_to(self, found: list[Event], until: tuple[int, int] | None) -> list[Event]:
        """Those up to the newest that is wanted, over both streams: what was written together is told together."""
        if until is None:
            return found
        last = {self._place.line: until[0], self._place.actor: until[1]}
        wanted = [number for number, event in enumerate(found) if event.version <= last[event.stream]]
        return found[: wanted[-1] + 1] if wanted else []

    def _told(self, event: Event) -> Iterator[AgentEvent]:
        if event.type == "message.appended":
            yield from _said(lines.decoded(self._ports, self._acting, [event])[0])
        elif event.type == "frame.popped" and event.facts.parent is None:
            yield self._ended(event)
        else:
            yield from _told(event)

    def _ended(self, event: Event) -> AgentEvent:
        """The end of a turn: with a reply, and why that ended, or without one, and why."""
        data: dict[str, Any] = {"turn": event.facts.frame}
        error = field(event, "error")
        if event.facts.status != "completed":
            return AgentEvent(kind="stopped", text=error if isinstance(error, str) else "", data=data)
        turn = Place(actor=self._place.actor, line=self._place.line, frame=event.facts.frame)
        reply = spoken.outcome(self._ports, self._acting, turn).message
        return AgentEvent(kind="done", data={**data, "finish": None if reply is None else reply.finish})

    def _named(self, event: AgentEvent) -> AgentEvent:
        return AgentEvent(kind=event.kind, id=self.id, text=event.text, name=event.name, data=event.data)

    def _events(self, stream: str, after: int) -> Iterator[Event]:
        while page := self._ports.journal.read(
            Query(tenant=self._acting.tenant, stream=stream, after=after, limit=PAGE)
        ):
            yield from map(decode_event, page)
            if len(page) < PAGE:
                return
            after = page[-1].version


def _parsed(after: object) -> tuple[int, int]:
    parts = after.split(".") if isinstance(after, str) else []
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 19 for part in parts):
        raise InvalidValue(f"after must be the id of an event that stream or tail gave, not {after!r:.40}.")
    return int(parts[0]), int(parts[1])


def _told(event: Event) -> Iterator[AgentEvent]:
    """An event of a turn as listeners hear it; most say nothing to them."""
    facts: Any = event.facts
    if event.type == "tool.requested":
        yield AgentEvent(kind="tool", name=facts.name, data={"call": facts.call, "attempt": facts.attempt})
    elif event.type == "frame.suspended" and facts.within is None:
        reason = field(event, "reason")
        yield AgentEvent(
            kind="question",
            text=reason if isinstance(reason, str) else "",
            data={"question": facts.question, "kind": facts.kind, "options": field(event, "options")},
        )
    elif event.type == "question.answered":
        yield AgentEvent(kind="answered", data={"question": facts.question, "approved": facts.approved})


def _said(message: Message) -> Iterator[AgentEvent]:
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


async def following(
    hub: Hub,
    threads: Threads,
    tail: Tail,
    place: tuple[str, str],
    ear: asyncio.Queue[Heard],
    running: asyncio.Future[Any] | None = None,
) -> AsyncIterator[AgentEvent]:
    """What happens, until the turn has ended or waits; with `running` until that is done."""
    try:
        heard: Heard = None if ear.empty() else ear.get_nowait()
        silent = 0
        while True:
            over = (running is not None and running.done() and ear.empty()) or silent > SILENT
            until = None if over else heard or hub.reached(place)
            assert not isinstance(until, AgentEvent), "what is said comes after how far the journal is"
            told, rests = await threads.run(tail.read, until, quiet=heard is None)
            for event in told:
                yield event
                if event.data.get("turn") is not None and event.data["turn"] == tail.turn:
                    return
            if (over or (running is None and rests and until is None)) and ear.empty():
                return
            # The journal says that nobody has anything to do: who says nothing either is not at work any more.
            silent = silent + 1 if running is None and rests and not told and ear.empty() else 0
            heard = await _heard(ear, running)
            while isinstance(heard, AgentEvent):
                yield heard
                heard = None if ear.empty() else ear.get_nowait()
    finally:
        hub.leave(place, ear)


async def _heard(ear: asyncio.Queue[Heard], running: asyncio.Future[Any] | None) -> Heard:
    """The next thing that is said or written; nothing if some time has passed, or the work is done."""
    waiting = asyncio.ensure_future(ear.get())
    others: list[asyncio.Future[Any]] = [waiting] if running is None else [waiting, running]
    try:
        await asyncio.wait(others, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        waiting.cancel()
