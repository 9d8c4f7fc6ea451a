"""Session: a conversation that remembers, fits and survives. Each method calls a flow.

A session appends, reads, packs, takes turns, forks and rewinds. Compaction removes nothing: summaries stand in for
older rounds in later packs. `session_views.py` has the rest: the history of its packs, its compaction, its details.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from holdfast.client import pack as client_pack
from holdfast.client.files import add_files
from holdfast.client.options import AppendOptions, PackOptions, SummarizerChoice, TurnOptions, refuse_unknown
from holdfast.client.pack import ContextPack
from holdfast.core.frames.budgets import to_nano_usd
from holdfast.core.lazy import lazy_module
from holdfast.core.numbers import is_number
from holdfast.core.wire.read import read_input
from holdfast.errors import InvalidMessage, InvalidValue
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.flow.compaction import threads as compaction_threads
from holdfast.flow.sessions import append as session_append
from holdfast.flow.sessions import branch
from holdfast.flow.sessions import read as session_read
from holdfast.flow.sessions import sessions as sessions_flow
from holdfast.flow.turns import turns
from holdfast.flow.turns.limits import LOOPS, ModelLimits
from holdfast.flow.turns.open import end_conversation, end_if_free, end_if_over
from holdfast.ports import Env
from holdfast.records.compaction import DEFAULT_KEEP_ROUNDS, DEFAULT_SUMMARY_TOKENS, CompactionConfig
from holdfast.records.entries import SearchResult
from holdfast.records.ids import SessionId, check_key, ulid_text
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult
from holdfast.records.packs import Trace
from holdfast.records.reports import Progress
from holdfast.records.scope import MAIN_THREAD
from holdfast.records.sessions import Summary
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    import html

    from holdfast.client.session_views import SessionCompaction, SessionDetails, SessionPacks
    from holdfast.client.state import StoreChoice
    from holdfast.client.turn import Turn
    from holdfast.flow.sessions.import_export import ImportReport
else:
    html = lazy_module(__name__, "html")


class Session:
    """One thread of a session. Small: it holds names, and the journal holds the rest."""

    __slots__ = ("_env", "_session_stream", "_thread_stream", "id", "thread")

    def __init__(self, env: Env, id: str, thread: str = MAIN_THREAD) -> None:
        self._env = env
        self.id, self.thread = SessionId(id), thread
        self._session_stream, self._thread_stream = sessions_flow.streams_of(id, thread)

    # properties

    @property
    def model(self) -> str:
        """The model of the conversation; empty if none was named."""
        return sessions_flow.session_state(self._env, self.id).model or ""

    @property
    def title(self) -> str | None:
        """The title, for people."""
        from holdfast.client.session_views import load_session_text

        text: str | None = load_session_text(self._env, self.id, self._session_stream, "title")
        return text

    @property
    def usage(self) -> Usage:
        """The usage of the session's model calls, as far as their responses were appended, and of its summaries."""
        return sessions_flow.session_usage(self._env, self.id)

    @property
    def details(self) -> SessionDetails:
        """The status, settings and threads of the session, and the open tool calls of this thread."""
        from holdfast.client.session_views import SessionDetails

        return SessionDetails(self._env, self.id, self._session_stream, self._thread_stream)

    @property
    def packs(self) -> SessionPacks:
        """The packs that model calls were given, and the brief that begins each of them."""
        from holdfast.client.session_views import SessionPacks

        return SessionPacks(self._env, self._session_stream, self._thread_stream)

    @property
    def compaction(self) -> SessionCompaction:
        """The summaries of this thread, and the rules of the session in this process."""
        from holdfast.client.session_views import SessionCompaction

        return SessionCompaction(self._env, self._session_stream, self._thread_stream)

    def __len__(self) -> int:
        return session_read.thread_state(self._env, self._thread_stream).messages

    def __bool__(self) -> bool:
        return True

    # writing

    @overload
    def append(self, message: list[Any], **options: Unpack[AppendOptions]) -> list[Message]: ...

    @overload
    def append(self, message: Any, **options: Unpack[AppendOptions]) -> Message: ...

    def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message | list[Message]:
        """Append text, a mapping, a Message or a provider's response; append a list of them in one commit.

        `files` are paths, bytes, or (name, bytes) pairs that go with a text. `partial` marks a message that was cut
        off. `policy` decides how compaction may treat the message: pinned, normal, compress_first or discard_when_done.
        """
        messages = read_input(add_files(message, files) if files else message, partial=partial)
        found, _ = session_append.append_to_thread(self._env, self._thread_stream, messages, key=key, policy=policy)
        compaction_rules.fire_rules(self._env, self._thread_stream, found)
        return found if isinstance(message, list) else found[-1]

    def append_result(
        self,
        call: ToolCallRequest | str,
        result: Any,
        *,
        is_error: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message:
        """Append the result of a tool call. `call` is the request from `append`, its id, or the provider's id."""
        id = call.id or call.provider_id if isinstance(call, ToolCallRequest) else call
        if not isinstance(id, str) or not id:
            raise InvalidMessage("Say which call this answers: a ToolCallRequest, or its id.")
        provider = call.provider_id if isinstance(call, ToolCallRequest) else None
        answer = ToolCallResult(tool_call_id=id, result=result, is_error=is_error, provider_id=provider)
        message = Message(role="tool", tool_results=(answer,))
        found, _ = session_append.append_to_thread(self._env, self._thread_stream, [message], key=key, policy=policy)
        compaction_rules.fire_rules(self._env, self._thread_stream, found)
        return found[0]

    # reading

    def messages(
        self, limit: int | None = None, *, before: Message | str | None = None, after: Message | str | None = None
    ) -> list[Message]:
        """Return messages as written, oldest first: all, the newest `limit`, or those before or after one of them."""
        if limit is not None and not is_number(limit, least=0):
            raise InvalidValue(f"limit must be a number of messages, not {limit!r}.")
        if before is not None and after is not None:
            raise InvalidValue("Give before or after, not both.")
        sides = {
            side: session_read.find_place(self._env, self._thread_stream, message)
            for side, message in (("before", before), ("after", after))
            if message is not None
        }
        return session_read.read_messages(self._env, self._thread_stream, limit=limit, **sides)

    def __iter__(self) -> Iterator[Message]:
        return session_read.iter_messages(self._env, self._thread_stream)

    def search(self, query: str, *, limit: int = 5) -> Sequence[SearchResult]:
        """Search the messages of this thread; return the best matches first, each with the Message as its `value`."""
        from holdfast.flow.state.search import search_journal

        return search_journal(self._env, self._thread_stream, query, limit)

    # packs

    def pack(self, budget: int | None = None, **options: Unpack[PackOptions]) -> ContextPack:
        """Return the best context that fits a budget, by default the model's window; valid for every provider.

        A read: nothing is journaled. Options are those of `PackOptions`; `as_of` builds the pack from the journal as it
        was at a cursor.
        """
        asked = client_pack.make_pack_request("pack", budget, options)
        return client_pack.pack_thread(self._env, self._thread_stream, asked, options.get("as_of"))

    def pack_at(self, call: str) -> ContextPack:
        """Return the pack that a model call was given, exactly as it was shown; erased content is marked as such.

        Covers calls of this session: of its threads, and of frames that work for it.
        """
        return client_pack.pack_at(self._env, call, self._session_stream)

    def why(self, text: str) -> Trace:
        """Trace a fact through the packs: where it was said, which packs showed it, where it left, and the remedy.

        The fact is matched by its words, ignoring case and whitespace. A read: later packs are unaffected.
        """
        from holdfast.flow.packs.trace import trace_fact

        return trace_fact(self._env, self._thread_stream, text)

    def compact(
        self,
        keep: int = DEFAULT_KEEP_ROUNDS,
        *,
        strategy: str = "summarise_oldest",
        summarizer: SummarizerChoice | None = None,
        max_tokens: int = DEFAULT_SUMMARY_TOKENS,
        whole: bool = False,
        store: StoreChoice = False,
    ) -> Summary | None:
        """Show a summary in place of all but the newest `keep` rounds; return None if there is nothing to summarise.

        Nothing is removed, and messages that arrive meanwhile stay. `strategy` decides how older rounds are shortened,
        `whole` replaces earlier summaries as well, `store` also writes the covered messages to the state or to another
        store, where they can be found. A summary is cut to `max_tokens`; one that is no smaller than what it replaces
        raises SummaryFailed.
        """
        from holdfast.client.session_views import choose_thread_summarizer

        config = CompactionConfig(strategy=strategy, keep=keep, summary_tokens=max_tokens, store=store)
        chosen = choose_thread_summarizer(self._env, self._thread_stream, summarizer)
        return compaction_threads.compact_thread(self._env, self._thread_stream, config, chosen, whole=whole)

    # turns

    def turn(self, message: Any = None, *, key: str | None = None, **options: Unpack[TurnOptions]) -> Turn:
        """Return a turn, from a user's message to the final reply: `with session.turn("…", key="…") as turn: …`

        The same code begins a turn, continues it after a crash, and returns a finished one. Without a message it
        continues the live turn. Options are those of `TurnOptions`: `tokens` and `budget_usd` limit what the turn uses
        and costs, `budget` what the model is shown each time, `if_interrupted` decides what happens to interrupted
        tool calls, `needs_approval` which calls need approval.
        """
        from holdfast.client.turn import Turn, read_turn_messages
        from holdfast.flow.turns.engine import TurnEngine
        from holdfast.flow.turns.tool_calls import ToolRules

        refuse_unknown(options, TurnOptions, "turn")
        loops, budget_usd = options.get("loops", LOOPS), options.get("budget_usd")
        terms = turns.TurnTerms(
            messages=tuple(read_turn_messages(message)),
            key=None if key is None else check_key(key),
            if_busy=options.get("if_busy", "queue"),
            wait=options.get("wait"),
            tokens=options.get("tokens"),
            limits=options.get("limits"),
            loops=loops,
            cost=None if budget_usd is None else to_nano_usd(budget_usd, "budget_usd"),
        )
        rules = ToolRules(options.get("if_interrupted", "ask"), options.get("needs_approval", ()))
        bounds = ModelLimits(loops=loops, budget=options.get("budget"), cost=terms.cost)
        on_error = options.get("on_error", "leave")
        return Turn(TurnEngine(self._env, self._thread_stream, terms, rules=rules, limits=bounds, on_error=on_error))

    def stop(self, reason: str = "stopped") -> bool:
        """Stop the turn that is under way, whichever process works on it; return False if there is none.

        If no process works on the turn, it has ended when this returns.
        """
        place = turns.turns_place(self._thread_stream)
        live = turns.find_live_turn(self._env, place)
        if live is None or not turns.request_stop(self._env, live, reason):
            return False
        end_if_free(self._env, live, reason)
        return True

    # editing

    def rewind(
        self, *, to: Message | str | None = None, before: Message | str | None = None, reason: str | None = None
    ) -> int:
        """Rewind so that `to`, or the message before `before`, is the newest; return how many messages were removed."""
        if (to is None) == (before is None):
            raise InvalidValue("Say where to go back: to=message keeps it, before=message does not.")
        target: Message | str | None = to
        if before is not None:
            earlier = self.messages(1, before=before)
            target = earlier[0] if earlier else None
        gone = branch.rewind(self._env, self._thread_stream, target, reason=reason)
        end_if_over(self._env, self._thread_stream)
        return gone

    def fork(self, at: Message | str | None = None, *, thread: str | None = None) -> Session:
        """Create a thread of this session that continues after a message, or after the newest. Nothing is copied."""
        name = ulid_text(self._env.ids.ulid()).lower() if thread is None else thread
        branch.fork(self._env, self._thread_stream, at, name)
        return Session(self._env, self.id, name)

    def pin(self, message: Message | str) -> Message:
        """Keep a message in every pack."""
        return branch.pin(self._env, self._thread_stream, message)

    def unpin(self, message: Message | str) -> Message:
        """Allow packs to leave a message out again."""
        return branch.pin(self._env, self._thread_stream, message, pinned=False)

    # ending

    def close(self) -> None:
        """End the session for good: it takes no more messages, and all of it is offered to memory."""
        end_conversation(self._env, self.id, cause="close", reset=False)
        self._env.rules.pop((self._env.tenant, self._session_stream), None)
        sessions_flow.offer_handovers(self._env, self._session_stream)

    def reset(self) -> None:
        """End the session and start afresh under the same id: the next message has no history before it."""
        end_conversation(self._env, self.id, cause="reset", reset=True)
        sessions_flow.offer_handovers(self._env, self._session_stream)

    # import and export

    def import_messages(
        self,
        given: Any,
        format: str = "openai",
        *,
        strict: bool = False,
        key: str | None = None,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Import messages from elsewhere in one commit; repair and report broken ones, or refuse them if `strict`."""
        from holdfast.flow.sessions.import_export import import_conversation

        return import_conversation(
            self._env, self.id, self.thread, format, given, strict=strict, key=key, progress=progress
        )

    def export(self, format: str = "openai") -> Any:
        """Export the whole thread as keyword arguments (openai, responses, anthropic) or JSON lines (jsonl)."""
        from holdfast.flow.sessions.import_export import export_conversation

        return export_conversation(self._env, self.id, self.thread, format)

    def __repr__(self) -> str:
        where = "" if self.thread == MAIN_THREAD else f", thread={self.thread!r}"
        return f"Session({self.id!r}{where})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(one.role)}</td><td>{one.tokens or ''}</td>"
            f"<td>{html.escape(_format_message(one))}</td></tr>"
            for one in self.messages(20)
        )
        title = html.escape(self.title or self.id)
        return f"<p><b>{title}</b> · {self.details.status} · {len(self)} messages</p><table>{rows}</table>"


def _format_message(message: Message) -> str:
    """Format a message as one line of text."""
    calls = ", ".join(f"{call.name}({call.arguments[:60]})" for call in message.tool_calls)
    results = ", ".join(str(result.result)[:120] for result in message.tool_results)
    return " ".join(piece for piece in (message.text[:200], calls, results) if piece)
