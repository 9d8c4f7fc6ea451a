"""HistoryTools: two tools with which an agent reads what its pack left out and searches its history.

The definitions are for the model, `run` is for the loop around it. A malformed call by the model gets an answer that
says what to do instead; only errors that the application must handle are raised. In a frame each run is one of its
tool calls; the journal notes the request, not the answer, which it contains already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from holdfast import errors
from holdfast.core.numbers import is_number
from holdfast.core.packs import history_tools
from holdfast.core.packs.assemble import copy_tools
from holdfast.core.packs.fences import FenceMarks, fence_text
from holdfast.core.packs.history_tools import HISTORY_TOOL_NAMES
from holdfast.core.packs.segments import HandleRef, parse_handle
from holdfast.core.values import exception_text
from holdfast.flow.frames import calls
from holdfast.flow.packs import expand
from holdfast.flow.sessions.append import thread_tokenizer
from holdfast.ports import Env
from holdfast.records.messages import ToolDef

MAX_TOKENS: Final = 2_000
MIN_TOKENS: Final = 200
_MAX_QUOTE: Final = 60
_MAX_ADVICE: Final = 500


class _Advice(Exception):
    """A model's mistake, with advice on what to do instead."""


class HistoryTools:
    """Tools for an agent to read its own history, in one thread of a conversation or in one frame."""

    __slots__ = ("_env", "_frame", "_mark", "_max_tokens", "_thread_stream")

    def __init__(self, env: Env, thread: str, frame: str | None = None, max_tokens: int = MAX_TOKENS) -> None:
        if not is_number(max_tokens, least=MIN_TOKENS):
            raise errors.InvalidValue(
                f"max_tokens is {max_tokens!r:.40}. Give a whole number of at least {MIN_TOKENS}."
            )
        self._env, self._thread_stream, self._mark = env, thread, FenceMarks(env.journal, env.tenant)
        self._frame, self._max_tokens = frame, max_tokens

    @property
    def definitions(self) -> list[ToolDef]:
        """The tool definitions for the model, to be passed along with your own."""
        return list(copy_tools(history_tools.HISTORY_TOOLS))

    @property
    def names(self) -> frozenset[str]:
        """The names of the calls that `run` handles."""
        return HISTORY_TOOL_NAMES

    def run(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """Run a call and return its result as text. A call that makes no sense gets advice, not an error."""
        if not isinstance(name, str) or name not in HISTORY_TOOL_NAMES:
            known = " and ".join(sorted(HISTORY_TOOL_NAMES))
            return f"There is no tool {_quote(name)} here. The tools for the history are {known}."
        given, problem = history_tools.parse_arguments(name, arguments)
        if self._frame is None:
            return problem or self.answer(name, given)
        try:
            call = calls.begin_tool_call(self._env, self._frame, name, arguments=given or None, if_interrupted="retry")
        except errors.LimitExceeded as error:
            is_calls = isinstance(error, errors.ToolCallLimitExceeded)
            reason = "No tool calls are left for this work." if is_calls else "The limit of this work is reached."
            return f"{reason} Answer with what you have."
        return self._answer_call(self._frame, call, name, given, problem)

    def _answer_call(self, frame: str, call: str, name: str, given: dict[str, Any], problem: str | None) -> str:
        """Answer a call that was begun and journal its outcome. The answer itself is not journaled again."""
        try:
            answer = problem or self.answer(name, given)
            tokens = self._token_counter()(answer)
        except Exception as error:
            with suppress(errors.HoldfastError):  # The journal may be what failed.
                calls.end_tool_call(self._env, frame, call, error=exception_text(error))
            raise
        calls.end_tool_call(self._env, frame, call, error=problem, tokens=tokens)
        return answer

    def answer(self, name: str, given: dict[str, Any]) -> str:
        """Answer a call whose arguments are already parsed; nothing is journaled."""
        try:
            return self._expand(**given) if name == history_tools.EXPAND else self._search(**given)
        except _Advice as advice:
            return str(advice)[:_MAX_ADVICE]

    # expand

    def _expand(self, handle: str, offset: int) -> str:
        try:
            wanted = parse_handle(handle)
        except errors.InvalidValue as error:
            raise _Advice(f"{error} {_suggest_instead(None)}") from error
        try:
            name, pieces = expand.read_pieces(self._env, self._thread_stream, handle, frame=self._frame)
            asked = history_tools.PageRequest(name=name, offset=offset, max_tokens=self._max_tokens)
            return history_tools.render_page(pieces, asked, self._token_counter(), self._mark)
        except errors.SessionNotFound:
            raise  # The thread itself does not exist: no model can do anything about that.
        except errors.NotFound as error:
            raise _Advice(f"{error} {_suggest_instead(wanted)}") from error
        except errors.Refused as error:
            raise _Advice(str(error)) from error

    # search

    def _search(self, query: str, limit: int) -> str:
        if not query.strip():
            raise _Advice("The query is empty. Give a few words to look for: names, numbers, things.")
        try:
            found = expand.search_mentions(self._env, self._thread_stream, query, limit, own=HISTORY_TOOL_NAMES)
        except errors.SessionNotFound:
            if self._frame is None:
                raise
            found = []
        if not found:
            raise _Advice(f"Nothing in this conversation matches {_quote(query)}. Try other words, or fewer.")
        lines = [f"{one.name} ({one.speaker}, trust {one.trust}): {one.text}" for one in found]
        return self._fit_lines(lines)

    def _fit_lines(self, lines: list[str]) -> str:
        """Format as many of the lines as fit, best first; at least one, however little of it."""
        count = self._token_counter()
        for number in range(len(lines), 0, -1):
            text = _format_matches(lines[:number], self._mark)
            if count(text) <= self._max_tokens:
                return text
        return _format_matches([lines[0][: self._max_tokens // 8]], self._mark)

    # shared

    def _token_counter(self) -> Callable[[str], int]:
        """Return the function that counts the thread's tokens."""
        tokenizer, _ = thread_tokenizer(self._env, self._thread_stream)
        return tokenizer.count

    def __repr__(self) -> str:
        where = "" if self._frame is None else f", frame={self._frame!r}"
        return f"HistoryTools({self._thread_stream!r}{where})"


def _format_matches(lines: list[str], mark: Any) -> str:
    label = "Found, best first. Read one in full with expand:"
    return fence_text(label, "\n".join(lines), mark(history_tools.SEARCH))


def _suggest_instead(wanted: HandleRef | None) -> str:
    """Suggest what to do about a handle that leads nowhere."""
    where = "Handles are in the markers of what you were shown"
    if wanted is not None and wanted.kind == "summary":
        where = "Summaries are named where they are shown"
    return f"{where}; or look with search_history."


def _quote(text: object) -> str:
    plain = str(text).encode("utf-8", "replace").decode()
    short = " ".join(plain.split())
    return f"“{short[:_MAX_QUOTE]}{'…' if len(short) > _MAX_QUOTE else ''}”"
