"""Views of a session: its packs, its compaction, and its details. Each method calls a flow.

`session.packs` has the packs that model calls were given and the brief that begins them, `session.compaction` the
rules and the summaries, `session.details` the settings and the state of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.client import pack as client_pack
from holdfast.client.history_tools import MAX_TOKENS, HistoryTools
from holdfast.client.pack import ContextPack
from holdfast.connect import make_summarizer
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.flow.packs import briefs, trace
from holdfast.flow.sessions import append as session_append
from holdfast.flow.sessions import read as session_read
from holdfast.flow.sessions import sessions as sessions_flow
from holdfast.flow.sessions import summaries as session_summaries
from holdfast.ports import Env, Summarizer
from holdfast.records.compaction import BudgetGuard, CompactionConfig, Rule, TelemetryRecorder
from holdfast.records.messages import Message, ToolCallRequest, ToolDef
from holdfast.records.packs import MAIN_ROLE, BriefContext, PackInfo
from holdfast.records.sessions import SessionState, Summary


class _ThreadView:
    """A part of what is known about a thread, read when it is asked for."""

    __slots__ = ("_env", "_session_stream", "_thread_stream")

    def __init__(self, env: Env, session_stream: str, thread_stream: str) -> None:
        self._env, self._session_stream, self._thread_stream = env, session_stream, thread_stream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._thread_stream!r})"


class SessionPacks(_ThreadView):
    """The packs of a thread: those that model calls were given, and the brief that begins each of them."""

    __slots__ = ()

    def list(self, limit: int | None = None) -> list[PackInfo]:
        """Return the packs given to model calls, newest first: all, or the newest `limit`. `pack_at` shows one."""
        return trace.list_packs(self._env, self._thread_stream, limit)

    def begin_model_call(self, pack: ContextPack, *, key: str | None = None) -> str:
        """Journal what a model is about to be shown; return the call's id, for `pack_at`. The next window stays put."""
        return client_pack.begin_packed_call(self._env, pack, frame=None, thread=self._thread_stream, key=key)

    def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> HistoryTools:
        """Return tools for a model to read what its pack left out: `expand`, `search_history` and their executor."""
        return HistoryTools(self._env, self._thread_stream, max_tokens=max_tokens)

    def brief(self, role: str = MAIN_ROLE) -> BriefContext:
        """Return the brief that begins every pack of a role. Each field is the session's own, or the inherited one."""
        return briefs.brief_context(self._env, self._session_stream, role)

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
        """Set the brief of a role in this session, replacing the earlier one. See hf.index.set_brief."""
        briefs.set_brief(
            self._env,
            self._session_stream,
            role,
            system_prompt=system_prompt,
            invariants=invariants,
            working_context=working_context,
            tools=tools,
            key=key,
        )


class SessionCompaction(_ThreadView):
    """The compaction of a thread: its summaries, and the rules of its session in this process."""

    __slots__ = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of this session in this process."""
        return compaction_rules.rules_of(self._env, self._session_stream)

    def add_rule(self, rule: Rule | CompactionConfig | BudgetGuard | TelemetryRecorder | str) -> Callable[[], None]:
        """Apply a rule in this process whenever it is due: a Rule, a CompactionConfig, or a preset by its name.

        A rule of the same name is replaced, and "none" removes the compaction. Returns a function that removes the
        rule. A rule's own actions trigger no rules; async actions need the asyncio client.
        """
        choose = partial(choose_thread_summarizer, self._env, self._thread_stream)
        return compaction_rules.add_rule(self._env, self._session_stream, rule, choose)

    def summaries(self) -> list[Summary]:
        """Return the summaries that replace parts of this thread, oldest first."""
        return session_summaries.list_summaries(self._env, self._thread_stream)

    def expand(self, summary: Summary | str) -> list[Message]:
        """Return the messages that a summary replaces, exactly as they were written."""
        id = summary.id if isinstance(summary, Summary) else summary
        return session_summaries.expand_summary(self._env, self._thread_stream, id)


class SessionDetails(_ThreadView):
    """The status, settings and threads of a session, and the open tool calls of a thread."""

    __slots__ = ("_id",)

    def __init__(self, env: Env, id: str, session_stream: str, thread_stream: str) -> None:
        super().__init__(env, session_stream, thread_stream)
        self._id = id

    @property
    def status(self) -> str:
        """open, closing (not yet taken by memory), ended (the next message starts afresh) or closed."""
        return self._load_state().status

    @property
    def system(self) -> str | None:
        """The system prompt."""
        text: str | None = load_session_text(self._env, self._id, self._session_stream, "system")
        return text

    @property
    def tools(self) -> tuple[ToolDef, ...]:
        """The tools that the model is told about."""
        return sessions_flow.session_tools(self._env, self._load_state())

    @property
    def metadata(self) -> dict[str, Any]:
        """Data that the application noted about the session."""
        return dict(load_session_text(self._env, self._id, self._session_stream, "metadata") or {})

    @property
    def threads(self) -> tuple[str, ...]:
        """The names of all threads of the session."""
        return self._load_state().threads

    def open_calls(self) -> list[ToolCallRequest]:
        """Return tool calls without a result, oldest first. Nothing after an open call is summarised."""
        return session_read.open_calls(self._env, self._thread_stream)

    def _load_state(self) -> SessionState:
        return sessions_flow.session_state(self._env, self._id)


def load_session_text(env: Env, id: str, stream: str, name: str) -> Any:
    """Return a text setting of a session, or None: `system`, `title` or `metadata`."""
    return sessions_flow.session_texts(env, stream, sessions_flow.session_state(env, id), (name,)).get(name)


def choose_thread_summarizer(env: Env, thread_stream: str, given: Any) -> Summarizer:
    """Return the given summarizer, or else the client's, counting as the thread's model does."""
    tokenizer, info = session_append.thread_tokenizer(env, thread_stream)
    return make_summarizer(given if given is not None else env.summarizer, tokenizer.count, info.input_budget)
