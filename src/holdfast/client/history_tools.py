"""HistoryTools: two tools for an agent, to read what its pack left out and to search what was said before.

The definitions are for the model, `run` is for the loop around it. Whatever a model writes into a call, it gets an
answer that says what to do instead; only what the application has to deal with is raised. In a frame each run is
one of its tool calls; the journal notes what was asked for, and not the answer, which is in the journal already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from holdfast.core.packs.fences import fenced, marks
from holdfast.core.packs.handles import Name, parse_handle
from holdfast.core.packs.history_tools import EXPAND, HISTORY_TOOLS, NAMES, SEARCH, Page, as_meant, page
from holdfast.core.packs.views import tools_of
from holdfast.core.values import words
from holdfast.errors import (
    HoldfastError,
    InvalidValue,
    LimitExceeded,
    NotFound,
    Refused,
    SessionNotFound,
    ToolCallLimitExceeded,
)
from holdfast.flow.frames import calls
from holdfast.flow.packs import expand
from holdfast.flow.sessions.append import counting
from holdfast.ports import Acting, Ports
from holdfast.records.messages import ToolDef

MAX_TOKENS: Final = 2_000
FEWEST_TOKENS: Final = 200
_SHOWN: Final = 60
_ADVICE: Final = 500


class _Advice(Exception):
    """A model's mistake, with what it should do instead."""


class HistoryTools:
    """What an agent may use to walk its own past, in one line of conversation or in one frame."""

    __slots__ = ("_acting", "_frame", "_line", "_max_tokens", "_ports")

    def __init__(
        self, ports: Ports, acting: Acting, line: str, frame: str | None = None, max_tokens: int = MAX_TOKENS
    ) -> None:
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < FEWEST_TOKENS:
            raise InvalidValue(f"max_tokens is {max_tokens!r:.40}. Give a whole number of at least {FEWEST_TOKENS}.")
        self._ports, self._acting, self._line = ports, acting, line
        self._frame, self._max_tokens = frame, max_tokens

    @property
    def definitions(self) -> list[ToolDef]:
        """The tools as a model is told about them: put them beside your own."""
        return list(tools_of(HISTORY_TOOLS))

    @property
    def names(self) -> frozenset[str]:
        """Which calls are for `run`."""
        return NAMES

    def run(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """What a call gives, as the text of its result. A call that makes no sense gets advice, not an error."""
        if not isinstance(name, str) or name not in NAMES:
            known = " and ".join(sorted(NAMES))
            return f"There is no tool {_quoted(name)} here. The tools for the history are {known}."
        given, problem = as_meant(name, arguments)
        if self._frame is None:
            return problem or self.answer(name, given)
        try:
            call = calls.begin_tool(
                self._ports, self._acting, self._frame, name, arguments=given or None, if_interrupted="retry"
            )
        except LimitExceeded as error:
            return _no_more(error)
        return self._noted(self._frame, call, name, given, problem)

    def _noted(self, frame: str, call: str, name: str, given: dict[str, Any], problem: str | None) -> str:
        """An answer as the outcome of a call that was begun. What it says is not written down a second time."""
        try:
            answer = problem or self.answer(name, given)
            tokens = self._counter()(answer)
        except Exception as error:
            with suppress(HoldfastError):  # The journal may be what failed.
                calls.end_tool(self._ports, self._acting, frame, call, error=words(error))
            raise
        calls.end_tool(self._ports, self._acting, frame, call, error=problem, tokens=tokens)
        return answer

    def answer(self, name: str, given: dict[str, Any]) -> str:
        """What a call gives whose arguments are as they were meant; nothing is journaled."""
        try:
            return self._expand(**given) if name == EXPAND else self._search(**given)
        except _Advice as advice:
            return str(advice)[:_ADVICE]

    # expand

    def _expand(self, handle: str, offset: int) -> str:
        wanted = _named(handle)
        try:
            reading = expand.read(self._ports, self._acting, self._line, handle, frame=self._frame)
            asked = Page(name=reading.id, offset=offset, max_tokens=self._max_tokens)
            return page(reading.pieces, asked, self._counter(), self._mark)
        except SessionNotFound:
            raise  # The line itself is not there: no model can do anything about that.
        except NotFound as error:
            raise _Advice(f"{error} {_instead(wanted)}") from error
        except Refused as error:
            raise _Advice(str(error)) from error

    # search

    def _search(self, query: str, limit: int) -> str:
        if not query.strip():
            raise _Advice("The query is empty. Give a few words to look for: names, numbers, things.")
        try:
            found = expand.mentions(self._ports, self._acting, self._line, query, limit, own=NAMES)
        except SessionNotFound:
            if self._frame is None:
                raise
            found = []
        if not found:
            raise _Advice(f"Nothing in this conversation matches {_quoted(query)}. Try other words, or fewer.")
        lines = [f"{one.name} ({one.who}, trust {one.trust}): {one.snippet}" for one in found]
        return self._within(lines)

    def _within(self, lines: list[str]) -> str:
        """As many of the lines as fit, best first; one at least, however little of it."""
        count = self._counter()
        for number in range(len(lines), 0, -1):
            text = _listed(lines[:number], self._mark)
            if count(text) <= self._max_tokens:
                return text
        return _listed([lines[0][: self._max_tokens // 8]], self._mark)

    # what both need

    def _counter(self) -> Callable[[str], int]:
        """How the line's tokens are counted."""
        tokenizer, _ = counting(self._ports, self._acting, self._line)
        return tokenizer.count

    def _mark(self, id: str) -> str:
        return marks(self._ports.journal.secret, self._acting.tenant)(id)

    def __repr__(self) -> str:
        where = "" if self._frame is None else f", frame={self._frame!r}"
        return f"HistoryTools({self._line!r}{where})"


def _listed(lines: list[str], mark: Any) -> str:
    label = "Found, best first. Read one in full with expand:"
    return fenced(label, "\n".join(lines), mark(SEARCH))


def _named(handle: str) -> Name:
    try:
        return parse_handle(handle)
    except InvalidValue as error:
        raise _Advice(f"{error} {_instead(None)}") from error


def _instead(wanted: Name | None) -> str:
    """What to do when a name leads nowhere."""
    where = "Handles are in the markers of what you were shown"
    if wanted is not None and wanted.kind == "summary":
        where = "Summaries are named where they are shown"
    return f"{where}; or look with search_history."


def _no_more(error: HoldfastError) -> str:
    if isinstance(error, ToolCallLimitExceeded):
        return "No tool calls are left for this work. Answer with what you have."
    return "The limit of this work is reached. Answer with what you have."


def _quoted(text: object) -> str:
    plain = str(text).encode("utf-8", "replace").decode()
    short = " ".join(plain.split())
    return f"“{short[:_SHOWN]}{'…' if len(short) > _SHOWN else ''}”"
