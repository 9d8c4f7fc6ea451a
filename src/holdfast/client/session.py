"""Session: a conversation that remembers, fits and survives. Each method names a flow.

What a session's model is shown: its brief, packs and why they are so, and the conversation made shorter.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, overload

from holdfast.client import pack as client_pack
from holdfast.client.files import file_parts
from holdfast.client.history_tools import MAX_TOKENS, HistoryTools
from holdfast.client.pack import ContextPack
from holdfast.client.turn import Turn
from holdfast.client.turn_model import LOOPS
from holdfast.connect import summarizer_for
from holdfast.core.frames.budgets import nano_usd
from holdfast.core.wire.read import read
from holdfast.errors import InvalidMessage, InvalidValue
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.flow.compaction import sessions
from holdfast.flow.compaction import summaries as compaction_summaries
from holdfast.flow.packs import briefs, trace
from holdfast.flow.sessions import append as session_append
from holdfast.flow.sessions import branch, handover, import_export
from holdfast.flow.sessions import read as session_read
from holdfast.flow.sessions import sessions as sessions_flow
from holdfast.flow.sessions.import_export import Imported
from holdfast.flow.state import search as state_search
from holdfast.flow.turns import turns
from holdfast.flow.turns.open import Terms, end_if_free, end_if_over
from holdfast.flow.turns.tool_rules import ToolRules
from holdfast.ports import Acting, Ports, Summarizer
from holdfast.records.compaction import KEEP, SUMMARY_TOKENS, BudgetGuard, CompactionConfig, Rule, TelemetryRecorder
from holdfast.records.entries import SearchResult
from holdfast.records.frames import Limits
from holdfast.records.ids import check_key, ulid_text
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult, ToolDef
from holdfast.records.packs import MAIN_ROLE, BriefContext, PackInfo, Trace
from holdfast.records.reports import Progress
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.records.sessions import SessionState, Summary
from holdfast.records.usage import Usage


class SessionShown:
    """What a conversation is shown as, and how it is made shorter. Nothing of it is lost."""

    _ports: Ports
    _acting: Acting
    _line: str
    _own: str

    # the brief

    def brief(self, role: str = MAIN_ROLE) -> BriefContext:
        """What every pack of a role begins with. Each field is the session's own, or what holds everywhere."""
        return briefs.context_of(self._ports, self._acting, self._own, role)

    def set_brief(
        self,
        role: str = MAIN_ROLE,
        *,
        system_prompt: str | None = None,
        invariants: Sequence[str] | None = None,
        working_context: Any = None,
        tools: Sequence[Any] | None = None,
        key: str | None = None,
    ) -> None:
        """The brief of a role in this session, in place of the one that it had. See hf.index.set_brief."""
        briefs.set_brief(
            self._ports,
            self._acting,
            self._own,
            role,
            system_prompt=system_prompt,
            invariants=invariants,
            working_context=working_context,
            tools=tools,
            key=key,
        )

    # packs

    def pack(
        self,
        budget: int | None = None,
        *,
        role: str = MAIN_ROLE,
        query: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        force_exclude: bool = False,
        min_compaction: str = "none",
        tokenizer: str | None = None,
        layout: str = "stable",
        stickiness: float | None = None,
        max_messages: int | None = None,
        recall: int | None = None,
        as_of: int | None = None,
    ) -> ContextPack:
        """The best that fits a budget, by default the model's window: valid for every provider, and able to say why.

        A read: nothing is journaled. `as_of` makes it from the journal as it was at a cursor.
        """
        asked = client_pack.asked_for(
            budget,
            role=role,
            query=query,
            include=include,
            exclude=exclude,
            force_exclude=force_exclude,
            min_compaction=min_compaction,
            tokenizer=tokenizer,
            layout=layout,
            stickiness=stickiness,
            max_messages=max_messages,
            recall=recall,
        )
        return client_pack.pack_line(self._ports, self._acting, self._line, asked, as_of)

    def pack_at(self, call: str) -> ContextPack:
        """The pack that a model call was given, exactly as it was shown; what was erased since says so.

        Calls of this session: of its threads, and of frames that work for it.
        """
        return client_pack.pack_at(self._ports, self._acting, call, self._own)

    def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> HistoryTools:
        """Tools with which a model reads what its pack left out: `expand` and `search_history`, and their executor."""
        return HistoryTools(self._ports, self._acting, self._line, max_tokens=max_tokens)

    def packs(self, limit: int | None = None) -> list[PackInfo]:
        """The packs that model calls were given, newest first: all, or the newest `limit`. `pack_at` shows one."""
        return trace.packs(self._ports, self._acting, self._line, limit)

    def why(self, text: str) -> Trace:
        """The way of a fact through the packs: where it was said, which showed it, where it left, and what to do.

        It is looked for by its words, whatever their case and blanks. A read: no later pack is another for it.
        """
        return trace.why(self._ports, self._acting, self._line, text)

    def begin_model_call(self, pack: ContextPack, *, key: str | None = None) -> str:
        """Journal what a model is about to be shown; gives the call's id, for `pack_at`. The next window stays put."""
        return client_pack.begin_call(self._ports, self._acting, pack, frame=None, line=self._line, key=key)

    # making shorter

    def compact(
        self,
        keep: int = KEEP,
        *,
        strategy: str = "summarise_oldest",
        summarizer: Summarizer | Callable[..., str] | None = None,
        max_tokens: int = SUMMARY_TOKENS,
        whole: bool = False,
        store: bool | str = False,
    ) -> Summary | None:
        """Let a summary stand for all but the newest `keep` rounds; None if there is nothing to summarise.

        Nothing is removed, and messages that arrive meanwhile stay. `strategy` says what becomes of the older ones,
        `whole` replaces earlier summaries as well, `store` writes what is covered to the state, to be found again.
        A summary is cut to `max_tokens`; one that would take as much as what it stands for is SummaryFailed.
        """
        config = CompactionConfig(strategy=strategy, keep=keep, summary_tokens=max_tokens, store=store)
        chosen = self._summarizer(summarizer)
        return sessions.fold(self._ports, self._acting, self._line, config, chosen, whole=whole)

    def add_rule(self, rule: Rule | CompactionConfig | BudgetGuard | TelemetryRecorder | str) -> Callable[[], None]:
        """Have this done whenever it is due, in this process: a Rule, a CompactionConfig, or a preset by its name.

        A rule of the same name is replaced, and "none" takes the compaction away. Returns what undoes it. What a rule
        does itself is no occasion for rules, and what must be awaited is for the asyncio client.
        """
        return compaction_rules.add(self._ports, self._acting, self._own, rule, self._summarizer)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that this process has for it."""
        return compaction_rules.rules_of(self._ports, self._acting, self._own)

    def _summarizer(self, given: Any) -> Summarizer:
        tokenizer, _ = session_append.counting(self._ports, self._acting, self._line)
        return summarizer_for(given if given is not None else self._ports.summarizer, tokenizer.count)

    def summaries(self) -> list[Summary]:
        """The summaries that stand for parts of this line, oldest first."""
        return compaction_summaries.summaries(self._ports, self._acting, self._line)

    def expand(self, summary: Summary | str) -> list[Message]:
        """The messages that a summary stands for, exactly as they were said."""
        id = summary.id if isinstance(summary, Summary) else summary
        return compaction_summaries.expand(self._ports, self._acting, self._line, id)


class Session(SessionShown):
    """One line of a session's conversation. Small: it holds names, and the journal holds the rest."""

    __slots__ = ("_acting", "_line", "_own", "_ports", "id", "thread")

    def __init__(self, ports: Ports, acting: Acting, id: str, thread: str = MAIN_THREAD) -> None:
        self._ports, self._acting = ports, acting
        self.id, self.thread = id, thread
        self._own, self._line = sessions_flow.streams_of(id, thread)

    # what it is

    def _state(self) -> SessionState:
        return sessions_flow.session_state(self._ports, self._acting, self.id)

    def _text(self, name: str) -> Any:
        return sessions_flow.session_texts(self._ports, self._acting, self._own, self._state(), (name,)).get(name)

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
        return sessions_flow.session_tools(self._ports, self._acting, self._state())

    @property
    def threads(self) -> tuple[str, ...]:
        """Every line of it."""
        return self._state().threads

    @property
    def usage(self) -> Usage:
        """What its model calls used, as far as their responses were appended."""
        return sessions_flow.session_usage(self._ports, self._acting, self.id)

    def __len__(self) -> int:
        return session_read.line_of(self._ports, self._acting, self._line).messages

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
        found = session_append.append(self._ports, self._acting, self._line, messages, **how)
        compaction_rules.after_append(self._ports, self._acting, self._line, found)
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
        return session_read.open_calls(self._ports, self._acting, self._line)

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
        return session_read.messages(self._ports, self._acting, self._line, limit=limit, **sides)

    def _place(self, message: Message | str | None) -> session_read.Place | None:
        return None if message is None else session_read.place_of(self._ports, self._acting, self._line, message)

    def __iter__(self) -> Iterator[Message]:
        return session_read.history(self._ports, self._acting, self._line)

    def search(self, query: str, *, limit: int = 5) -> Sequence[SearchResult]:
        """Messages of this line that match a question, best first; each result's `value` is the Message."""
        return state_search.search_line(self._ports, self._acting, self._line, query, limit)

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
        gone = branch.rewind(self._ports, self._acting, self._line, target, reason=reason)
        end_if_over(self._ports, self._acting, self._line)
        return gone

    def fork(self, at: Message | str | None = None, *, thread: str | None = None) -> Session:
        """A new line of this session that goes on after a message, or after the newest. Nothing is copied."""
        name = ulid_text(self._ports.ids.ulid()).lower() if thread is None else thread
        branch.fork(self._ports, self._acting, self._line, at, name)
        return Session(self._ports, self._acting, self.id, name)

    def pin(self, message: Message | str) -> Message:
        """Keep a message in every pack."""
        return branch.pin(self._ports, self._acting, self._line, message)

    def unpin(self, message: Message | str) -> Message:
        """Let a message leave packs again."""
        return branch.pin(self._ports, self._acting, self._line, message, pinned=False)

    # ending

    def close(self) -> None:
        """End it for good: it takes no more messages, and memory is offered all of it."""
        self._end("close", reset=False)
        compaction_rules.forget(self._ports, self._acting, self._own)
        handover.offer(self._ports, self._acting, self._own)

    def reset(self) -> None:
        """End it and begin anew under the same id: the next message has nothing before it."""
        self._end("reset", reset=True)
        handover.offer(self._ports, self._acting, self._own)

    def _end(self, cause: str, *, reset: bool) -> None:
        threads = self.threads
        sessions_flow.end_session(self._ports, self._acting, self.id, cause=cause, reset=reset)
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
        return import_export.import_conversation(
            self._ports, self._acting, self.id, self.thread, format, given, strict=strict, key=key, progress=progress
        )

    def export(self, format: str = "openai") -> Any:
        """The whole line: a request's keyword arguments (openai, responses, anthropic) or JSON lines (jsonl)."""
        return import_export.export_conversation(self._ports, self._acting, self.id, self.thread, format)

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
