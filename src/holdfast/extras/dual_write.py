"""From an unbounded list of messages to a session, without a day of switching over.

`DualWrite` stands where the list stood: what is appended goes to both. Until the session is trusted, the
list is there to fall back on; what could not be stored is stored later, once and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.core.wire.requests import OpenAIRequest
from holdfast.errors import HoldfastError, InvalidValue, OutcomeUnknown, Refused, Unavailable
from holdfast.flow.journal import redact as journal_redact
from holdfast.records.scope import Scope

OnMissing = Literal["error", "fallback"]


class NotStored(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the list that the session refused, and why."""

    index: int
    reason: str


class DualWrite:
    """A list in OpenAI's form and a session beside it.

    `on_missing` says what happens when the journal cannot be had: `error` raises and appends to neither;
    `fallback` goes on with the list alone and catches up as soon as it can. Several lists in one session
    need names of their own.
    """

    def __init__(
        self,
        messages: list[dict[str, Any]],
        hf: Holdfast | Callable[[], Holdfast],
        session: str,
        *,
        on_missing: OnMissing = "error",
        name: str = "list",
        **settings: Any,
    ) -> None:
        if not isinstance(messages, list):
            raise InvalidValue("messages must be the list that the application has used so far.")
        if not isinstance(hf, Holdfast) and not callable(hf):
            raise InvalidValue(f"hf must be a client, or a function that opens one, not {type(hf).__name__}.")
        if on_missing not in ("error", "fallback"):
            raise InvalidValue(f"on_missing must be 'error' or 'fallback', not {on_missing!r}.")
        self.list = messages
        self.refused: list[NotStored] = []
        self._hf, self._id, self._settings = hf, session, settings
        self._name, self._falls_back = name, on_missing == "fallback"
        self._session: Session | None = None
        self._stored = 0
        self.catch_up()

    @property
    def behind(self) -> int:
        """How many entries of the list are not stored yet."""
        return len(self.list) - self._stored

    @property
    def session(self) -> Session:
        """The session, for whatever the list cannot do."""
        if self._session is None:
            found = self._opened(**self._settings)
            self._stored = self._known()
            self._session = found
        return self._session

    def _client(self) -> Holdfast:
        """The client, opened once."""
        if not isinstance(self._hf, Holdfast):
            try:
                self._hf = self._hf()
            except (HoldfastError, OSError) as error:
                # Whatever is wrong with the file, it cannot be had now.
                raise Unavailable(f"The journal cannot be opened: {error}") from error
        return self._hf

    def _opened(self, **settings: Any) -> Session:
        return self._client().session(self._id, **settings)

    def append(self, message: dict[str, Any]) -> None:
        """One more message, in both."""
        self.list.append(message)
        try:
            self.catch_up()
        except OutcomeUnknown:
            raise  # It may be stored: it stays in the list, and its key tells next time.
        except HoldfastError:
            self.list.pop()
            raise

    def catch_up(self) -> bool:
        """Store what is not stored yet, once and in order; False if that has to wait."""
        try:
            session = self.session
            while self._stored < len(self.list):
                self._store(session, self._stored)
                self._stored += 1
        except (Unavailable, OutcomeUnknown):
            if not self._falls_back:
                raise
            return False
        return True

    def _store(self, session: Session, index: int) -> None:
        if not index and self._is_system(session, self.list[index]):
            return
        try:
            session.append(self.list[index], key=f"{self._name}/{index}")
        except Refused as error:
            if not self._falls_back:
                raise
            # The list took it for all its life; the session says why it does not.
            self.refused.append(NotStored(index=index, reason=str(error)))

    def _is_system(self, session: Session, message: Any) -> bool:
        """Whether the list begins with a system prompt that is, or now becomes, the session's own."""
        if not isinstance(message, Mapping) or message.get("role") != "system":
            return False
        text = message.get("content")
        if not isinstance(text, str) or not text:
            return False
        if session.system is None:
            self._opened(system=text)
            return True
        before = session.system
        redact = session._ports.redact
        return before == (text if redact is None else journal_redact.text(redact, text))

    def _known(self) -> int:
        """How many entries an earlier process stored, found by their keys in a few steps."""
        hf, stream = self._client(), Scope.thread(self._id).text
        low, high = 0, len(self.list)
        while low < high:
            middle = (low + high) // 2
            # What was refused has no key: its neighbours tell.
            near = range(middle, min(middle + 8, high))
            if any(hf.journal.happened(stream, f"{self._name}/{index}") for index in near):
                low = middle + 1
            else:
                high = middle
        # The last one is stored again, which its key makes once: if the list was changed, that tells.
        return max(low - 1, 0)

    def to_openai(self, budget: int | None = None) -> OpenAIRequest:
        """Keyword arguments for the next request: a pack that fits, or the whole list if that has to do."""
        if self._falls_back and not self.catch_up():
            return {"messages": list(self.list)}
        return self.session.pack(budget).to_openai()

    def __len__(self) -> int:
        return len(self.list)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.list)
