"""Who listens to which conversation in this process, and what is said in it right now.

What is said is passed on in order with how far the journal is, so that nobody hears a reply before its pieces. Nothing
of it is kept once the reply is in the journal.
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.flow.turn.writing import Place
from holdfast.runtime.reply import AgentEvent

Heard = AgentEvent | tuple[int, int] | None
"""Something that is said, versions up to which the journal has news, or nothing: look."""


class Hub:
    """Who listens to which conversation in this process."""

    def __init__(self) -> None:
        self._ears: dict[tuple[str, str], set[asyncio.Queue[Heard]]] = {}
        self._said: dict[tuple[str, str], list[str]] = {}
        self._reached: dict[tuple[str, str], tuple[int, int]] = {}

    def wrote(self, place: tuple[str, str], until: tuple[int, int]) -> None:
        """The journal has news, up to these versions of the line and of the actor. In order with what is told."""
        self._reached[place] = until
        self._said.pop(place, None)  # It is in the journal now, with the reply that it belongs to.
        for ear in self._ears.get(place, ()):
            ear.put_nowait(until)

    def tell(self, place: tuple[str, str], kind: str, data: dict[str, Any]) -> None:
        """Something happened just now. Must be called on the loop that the listeners are on."""
        if kind == "delta" and data.get("kind") == "text":
            self._said.setdefault(place, []).append(str(data.get("text", "")))
        elif kind in ("reset", "over"):
            self._said.pop(place, None)
        if kind == "over":
            self._reached.pop(place, None)
        ears = self._ears.get(place)
        if ears:
            event = None if kind == "over" else _live(kind, data)
            for ear in ears:
                ear.put_nowait(event)

    def listen(self, place: tuple[str, str], *, again: bool = False) -> asyncio.Queue[Heard]:
        """From now on; begins with how far the journal is, and what was said of the reply that is on its way.

        Who listens again may have heard a part of that, so it is told that the reply begins anew.
        """
        ear: asyncio.Queue[Heard] = asyncio.Queue()
        said = "".join(self._said.get(place, ()))
        if said or place in self._reached:
            ear.put_nowait(self._reached.get(place))
        if said and again:
            ear.put_nowait(AgentEvent(kind="reset"))
        if said:
            ear.put_nowait(AgentEvent(kind="delta", text=said, data={"kind": "text"}))
        self._ears.setdefault(place, set()).add(ear)
        return ear

    def reached(self, place: tuple[str, str]) -> tuple[int, int] | None:
        """How far the journal may be read before what is said next; None if nobody works on it here."""
        return self._reached.get(place)

    def leave(self, place: tuple[str, str], ear: asyncio.Queue[Heard]) -> None:
        """Listen no longer."""
        ears = self._ears.get(place, set())
        ears.discard(ear)
        if not ears:
            self._ears.pop(place, None)


class Begun:
    """A turn that somebody wants to hear: known, and listened to, from the moment that it is worked on."""

    def __init__(self, hub: Hub, place: tuple[str, str]) -> None:
        self._hub, self._place = hub, place
        self.turn: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self.ear: asyncio.Queue[Heard] | None = None

    def now(self, turn: Place) -> None:
        """It is worked on from now on."""
        if not self.turn.done():
            self.ear = self._hub.listen(self._place)
            self.turn.set_result(turn)

    def leave(self) -> None:
        """Nobody listens any more."""
        self.turn.cancel()
        if self.ear is not None:
            self._hub.leave(self._place, self.ear)


def _live(kind: str, data: dict[str, Any]) -> AgentEvent:
    rest = {name: value for name, value in data.items() if name not in ("text", "name")}
    known: Any = kind
    return AgentEvent(kind=known, text=str(data.get("text", "")), name=data.get("name"), data=rest)
