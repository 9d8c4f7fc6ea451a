"""Saying a reply's pieces to whoever listens, so that what they have heard is always what counts.

When a reply begins anew, the pieces before it are taken back, but not before there are others: what a person has
seen stays until something takes its place.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.records.calling import Delta
from holdfast.records.messages import Message


class CallersError(Exception):
    """What the listener raised: it is the caller's own, no fault of the model."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Voice:
    """One listener, or none. `shown` is the text that it has heard and not been told to forget."""

    __slots__ = ("_anew", "_heard", "_say", "_texts")

    def __init__(self, say: Callable[[Delta], None] | None) -> None:
        self._say = say
        self._texts: list[str] = []
        self._heard = False
        self._anew = False

    @property
    def shown(self) -> str:
        """What was said and not taken back."""
        return "".join(self._texts)

    def say(self, delta: Delta) -> None:
        """One piece more."""
        if self._anew:
            self._take_back()
        self._heard = True
        if delta.kind == "text":
            self._texts.append(delta.text)
        self._give(delta)

    def begin_anew(self) -> None:
        """The next piece is the first of another attempt."""
        self._anew = self._heard

    def end(self, message: Message) -> None:
        """The reply is whole; what came in one piece is said in one."""
        if self._anew:
            self._take_back()
        if self._heard:
            return
        if message.text:
            self.say(Delta(text=message.text))
        for call in message.tool_calls:
            self.say(Delta(kind="tool", text=call.name))

    def _take_back(self) -> None:
        self._anew, self._heard, self._texts = False, False, []
        self._give(Delta(kind="reset"))

    def _give(self, delta: Delta) -> None:
        if self._say is None:
            return
        try:
            self._say(delta)
        except Exception as error:  # noqa: BLE001  it is the caller's own code
            raise CallersError(error) from None
