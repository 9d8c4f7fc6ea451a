"""Session: a conversation that remembers, fits and survives. Each method names a flow."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, overload

from holdfast.client.files import file_parts
from holdfast.client.shown import SessionShown
from holdfast.client.tool_rules import ToolRules
from holdfast.client.turn import Turn
from holdfast.client.turn_model import LOOPS
from holdfast.client.turn_opening import end_if_free, end_if_over
from holdfast.client.turn_terms import Terms
from holdfast.core.decide.amounts import nano_usd
from holdfast.core.wire.reading import read
from holdfast.errors import InvalidMessage, InvalidValue
from holdfast.flow.compaction import ruling
from holdfast.flow.conversation import branching, conversing, handing, lines, porting, sessions
from holdfast.flow.conversation.porting import Imported
from holdfast.flow.state import searching
from holdfast.flow.turn import turns
from holdfast.ports import Acting, Ports
from holdfast.records.entries import SearchResult
from holdfast.records.frames import Limits
from holdfast.records.ids import check_key, ulid_text
from holdfast.records.lines import SessionState
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult, ToolDef
from holdfast.records.reports import Progress
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.records.usage import Usage


class Session(SessionShown):
    """One line of a session's conversation. Small: it holds names, and the journal holds the rest."""

    __slots__ = ("_acting", "_line", "_own", "_ports", "id", "thread")

    def __init__(self, ports: Ports, acting: Acting, id: str, thread: str = MAIN_THREAD) -> None:
        self._ports, self._acting = ports, acting
        self.id, self.thread = id, thread
        self._own, self._line = sessions.streams_of(id, thread)

    # what it is

    def _state(self) -> SessionState:
        return sessions.session_state(self._ports, self._acting, self.id)

    def _text(self, name: str) -> Any:
        return sessions.session_texts(self._ports, self._acting, self._own, self._state(), (name,)).get(name)

    @property
    def status(self) -> str:
        """open, closing (memory has not taken it yet), ended (it begins anew with the next message) or closed."""
        return self._state().status

    @property
    def model(self) -> str:
        """The model that it is held with; empty if none was named."""
        return self._state().model or ""

    @property
    def system(self) -> str | None:
        """The system prompt."""
        text: str | None = self._text("system")
        return text

    @property
    def title(self) -> str | None:
        """What people call it."""
        text: str | None = self._text("title")
        return text

    @property
    def metadata(self) -> dict[str, Any]:
        """What its application noted about it."""
        return dict(self._text("metadata") or {})

    @property
    def tools(self) -> tuple[ToolDef, ...]:
        """The tools that its model is told about."""
        return sessions.session_tools(self._ports, self._acting, self._state())

    @property
    def threads(self) -> tuple[str, ...]:
        """Every line of it."""
        return self._state().threads

    @property
    def usage(self) -> Usage:
        """What its model calls used, as far as their responses were appended."""
        return sessions.session_usage(self._ports, self._acting, self.id)

    def __len__(self) -> int:
        return lines.line_of(self._ports, self._acting, self._line).messages

    def __bool__(self) -> bool:
        return True

    # saying

    @overload
    def append(
        self,
        message: list[Any],
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> list[Message]: ...

    @overload
    def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message: ...

    def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message | list[Message]:
        """Text, a mapping, a Message or a provider's response; a list of them in one commit.

        `files` are paths, bytes, or (name, bytes) pairs that go with a text. `partial` says that it was cut off.
        `policy` says what may become of it when the conversation is made shorter: pinned, normal, compress_first or
        discard_when_done.
        """
        given = file_parts(message, files) if files else message
        messages = read(given, partial=partial)
        found = self._appended(messages, key=key, pinned=pinned, policy=policy)
        return found if isinstance(message, list) else found[-1]

    def _appended(self, messages: Sequence[Message], **how: Any) -> list[Message]:
        found = conversing.append(self._ports, self._acting, self._line, messages, **how)
        ruling.after_append(self._ports, self._acting, self._line, found)
        return found

    def append_result(
        self,
        call: ToolCallRequest | str,
        result: Any,
        *,
        is_error: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message:
        """What a tool call came to. `call` is the request that `append` gave, or its id, or the provider's."""
        id = call.id or call.provider_id if isinstance(call, ToolCallRequest) else call
        if not isinstance(id, str) or not id:
            raise InvalidMessage("Say which call this answers: a ToolCallRequest, or its id.")
        provider = call.provider_id if isinstance(call, ToolCallRequest) else None
        answer = ToolCallResult(tool_call_id=id, result=result, is_error=is_error, provider_id=provider)
        message = Message(role="tool", tool_results=(answer,))
        return self._appended([message], key=key, policy=policy)[0]

    def open_calls(self) -> list[ToolCallRequest]:
        """Tool calls that wait for a result, oldest first. Until they have one, nothing after them is summarised."""
        return lines.open_calls(self._ports, self._acting, self._line)

    # reading

    def messages(
        self,
        limit: int | None = None,
        *,
        before: Message | str | None = None,
        after: Message | str | None = None,
    ) -> list[Message]:
        """As they were said, oldest first: all, the newest `limit`, or those before or after one of them."""
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidValue(f"limit must be a number of messages, not {limit!r}.")
        if before is not None and after is not None:
            raise InvalidValue("Give before or after, not both.")
        place = self._place(before if before is not None else after)
        sides = {"before": place} if before is not None else {"after": place} if after is not None else {}
        return lines.messages(self._ports, self._acting, self._line, limit=limit, **sides)

    def _place(self, message: Message | str | None) -> lines.Place | None:
        return None if message is None else lines.place_of(self._ports, self._acting, self._line, message)

    def __iter__(self) -> Iterator[Message]:
        return lines.history(self._ports, self._acting, self._line)

    def search(self, query: str, *, limit: int = 5) -> Sequence[SearchResult]:
        """Messages of this line that match a question, best first; each result's `value` is the Message."""
        return searching.search_line(self._ports, self._acting, self._line, query, limit)

    # turns

    def turn(
        self,
        message: Any = None,
        *,
        key: str | None = None,
        if_busy: str = "queue",
        wait: float | None = None,
        tokens: int | None = None,
        limits: Limits | None = None,
        budget: int | None = None,
        budget_usd: float | None = None,
        loops: int = LOOPS,
        if_interrupted: str | Mapping[str, str] = "ask",
        needs_approval: Collection[str] | Callable[[str, Any], bool] = (),
        on_error: str = "leave",
    ) -> Turn:
        """From a user's message to the final reply: `with session.turn("…", key="…") as turn: for step in turn: …`

        New, continued after a crash or already answered: the same code. Without a message it goes on with the turn that
        is live. `tokens` and `budget_usd` bound what it uses and costs, `budget` what its model is shown each time.
        `if_interrupted` says what becomes of tool calls that were torn, `needs_approval` which need a yes.
        """
        terms = Terms(
            messages=tuple(spoken(message)),
            key=None if key is None else check_key(key),
            if_busy=if_busy,
            wait=wait,
            tokens=tokens,
            limits=limits,
            loops=loops,
            cost=None if budget_usd is None else nano_usd(budget_usd, "budget_usd"),
        )
        rules = ToolRules(if_interrupted, needs_approval)
        how: Any = {"loops": loops, "budget": budget, "budget_usd": budget_usd, "on_error": on_error}
        return Turn(self._ports, self._acting, self._line, terms, rules=rules, **how)

    def stop(self, reason: str = "stopped") -> bool:
        """Have the turn that is under way stopped, whoever works on it; False if there is none.

        One that nobody works on has ended when this returns.
        """
        place = turns.place_of_turns(self._line)
        live = turns.live_turn(self._ports, self._acting, place)
        if live is None or not turns.request_stop(self._ports, self._acting, live, reason):
            return False
        end_if_free(self._ports, self._acting, live, reason)
        return True

    # editing

    def rewind(
        self, *, to: Message | str | None = None, before: Message | str | None = None, reason: str | None = None
    ) -> int:
        """Go back: `to` becomes the newest message, or the one that stood before `before`. Gives how many went."""
        if (to is None) == (before is None):
            raise InvalidValue("Say where to go back: to=message keeps it, before=message does not.")
        target: Message | str | None = to
        if before is not None:
            earlier = self.messages(1, before=before)
            target = earlier[0] if earlier else None
        gone = branching.rewind(self._ports, self._acting, self._line, target, reason=reason)
        end_if_over(self._ports, self._acting, self._line)
        return gone

    def fork(self, at: Message | str | None = None, *, thread: str | None = None) -> Session:
        """A new line of this session that goes on after a message, or after the newest. Nothing is copied."""
        name = ulid_text(self._ports.ids.ulid()).lower() if thread is None else thread
        branching.fork(self._ports, self._acting, self._line, at, name)
        return Session(self._ports, self._acting, self.id, name)

    def pin(self, message: Message | str) -> Message:
        """Keep a message in every pack."""
        return branching.pin(self._ports, self._acting, self._line, message)

    def unpin(self, message: Message | str) -> Message:
        """Let a message leave packs again."""
        return branching.pin(self._ports, self._acting, self._line, message, pinned=False)

    # ending

    def close(self) -> None:
        """End it for good: it takes no more messages, and memory is offered all of it."""
        self._end("close", reset=False)
        ruling.forget(self._ports, self._acting, self._own)
        handing.offer(self._ports, self._acting, self._own)

    def reset(self) -> None:
        """End it and begin anew under the same id: the next message has nothing before it."""
        self._end("reset", reset=True)
        handing.offer(self._ports, self._acting, self._own)

    def _end(self, cause: str, *, reset: bool) -> None:
        threads = self.threads
        sessions.end_session(self._ports, self._acting, self.id, cause=cause, reset=reset)
        for thread in threads:
            end_if_over(self._ports, self._acting, Scope.thread(self.id, thread).text)

    # in and out

    def import_messages(
        self,
        given: Any,
        format: str = "openai",
        *,
        strict: bool = False,
        key: str | None = None,
        progress: Progress | None = None,
    ) -> Imported:
        """A list from elsewhere, in one commit. What is broken is repaired and reported; `strict` refuses it."""
        return porting.import_conversation(
            self._ports, self._acting, self.id, self.thread, format, given, strict=strict, key=key, progress=progress
        )

    def export(self, format: str = "openai") -> Any:
        """The whole line: a request's keyword arguments (openai, responses, anthropic) or JSON lines (jsonl)."""
        return porting.export_conversation(self._ports, self._acting, self.id, self.thread, format)

    def __repr__(self) -> str:
        where = "" if self.thread == MAIN_THREAD else f", thread={self.thread!r}"
        return f"Session({self.id!r}{where})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(one.role)}</td><td>{one.tokens or ''}</td><td>{html.escape(_shown(one))}</td></tr>"
            for one in self.messages(20)
        )
        title = html.escape(self.title or self.id)
        return f"<p><b>{title}</b> · {self.status} · {len(self)} messages</p><table>{rows}</table>"


def spoken(message: Any) -> list[Message]:
    """What a turn begins with: something that a person said."""
    if message is None:
        return []
    found = read(message)
    if not found or found[-1].role != "user":
        raise InvalidMessage("A turn begins with a user's message: a text, or a message with the role user.")
    return found


def _shown(message: Message) -> str:
    """A message in one line."""
    calls = ", ".join(f"{call.name}({call.arguments[:60]})" for call in message.tool_calls)
    results = ", ".join(str(result.result)[:120] for result in message.tool_results)
    return " ".join(piece for piece in (message.text[:200], calls, results) if piece)
