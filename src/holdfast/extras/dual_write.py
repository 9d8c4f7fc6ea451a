"""`DualWrite`: migrate from an unbounded list of messages to a session, without a switch-over day.

`DualWrite` takes the place of the list: every append goes to both. Until the session is trusted, the list is there to
fall back on; a message that could not be stored is stored later, once and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.core.wire.openai_chat import OpenAIRequest
from holdfast.errors import HoldfastError, InvalidValue, OutcomeUnknown, Refused, Unavailable
from holdfast.flow.journal import redact as journal_redact
from holdfast.records.ids import check_key, own_key
from holdfast.records.scope import Scope

OnMissing = Literal["error", "fallback"]


class RefusedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the list that the session refused, and the reason."""

    index: int
    reason: str


class DualWrite:
    """A list in OpenAI's format and a session kept in step with it.

    `on_missing` decides what happens when the journal is unavailable: `error` raises and appends to neither; `fallback`
    continues with the list alone and catches up as soon as possible. Several lists in one session need distinct names.
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
        self.refused: list[RefusedEntry] = []
        self._hf, self._id, self._settings = hf, session, settings
        self._name, self._falls_back = check_key(name), on_missing == "fallback"
        self._session: Session | None = None
        self._stored = 0
        self.catch_up()

    @property
    def behind(self) -> int:
        """The number of entries of the list that are not stored yet."""
        return len(self.list) - self._stored

    @property
    def session(self) -> Session:
        """The session, for everything that the list cannot do."""
        if self._session is None:
            found = self._open_session(**self._settings)
            self._stored = self._count_stored()
            self._session = found
        return self._session

    def _get_client(self) -> Holdfast:
        """Return the client, opening it on first use."""
        if not isinstance(self._hf, Holdfast):
            try:
                self._hf = self._hf()
            except (HoldfastError, OSError) as error:
                # Any error from the file means that the journal is unavailable now.
                raise Unavailable(f"The journal cannot be opened: {error}") from error
        return self._hf

    def _open_session(self, **settings: Any) -> Session:
        return self._get_client().session(self._id, **settings)

    def append(self, message: dict[str, Any]) -> None:
        """Append a message to the list and the session."""
        self.list.append(message)
        try:
            self.catch_up()
        except OutcomeUnknown:
            raise  # It may be stored: it stays in the list, and its key settles it next time.
        except HoldfastError:
            self.list.pop()
            raise

    def catch_up(self) -> bool:
        """Store all entries that are not stored yet, once and in order; return False if that has to wait."""
        try:
            session = self.session
            while self._stored < len(self.list):
                self._store_entry(session, self._stored)
                self._stored += 1
        except (Unavailable, OutcomeUnknown):
            if not self._falls_back:
                raise
            return False
        return True

    def _store_entry(self, session: Session, index: int) -> None:
        if not index and self._is_system_prompt(session, self.list[index]):
            return
        try:
            session.append(self.list[index], key=self._entry_key(index))
        except Refused as error:
            if not self._falls_back:
                raise
            # The list has always accepted this entry: note why the session does not, and go on.
            self.refused.append(RefusedEntry(index=index, reason=str(error)))

    def _entry_key(self, index: int) -> str:
        return own_key("list", self._name, index)

    def _is_system_prompt(self, session: Session, message: Any) -> bool:
        """Return True if the list begins with a system prompt that is, or now becomes, the session's own."""
        if not isinstance(message, Mapping) or message.get("role") != "system":
            return False
        text = message.get("content")
        if not isinstance(text, str) or not text:
            return False
        if session.details.system is None:
            self._open_session(system=text)
            return True
        before = session.details.system
        redact = self._get_client().env.redact
        return before == (text if redact is None else journal_redact.redact_text(redact, text))

    def _count_stored(self) -> int:
        """Count the entries that an earlier process stored, by a binary search over their keys."""
        hf, stream = self._get_client(), Scope.thread(self._id).text
        low, high = 0, len(self.list)
        while low < high:
            middle = (low + high) // 2
            # A refused entry has no key, so its neighbours are checked as well.
            near = range(middle, min(middle + 8, high))
            if any(hf.journal.events_by_key(stream, self._entry_key(index)) for index in near):
                low = middle + 1
            else:
                high = middle
        # The last entry is stored again, which its key makes harmless and which detects a changed list.
        return max(low - 1, 0)

    def to_openai(self, budget: int | None = None) -> OpenAIRequest:
        """Return keyword arguments for the next request: a pack, or the whole list if the journal is unavailable."""
        if self._falls_back and not self.catch_up():
            return {"messages": list(self.list)}
        return self.session.pack(budget).to_openai()

    def __len__(self) -> int:
        return len(self.list)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.list)
