"""Holdfast: the client. Thin: its methods call flows, and it owns the resources that must be closed."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from msgspec.structs import replace

from holdfast.client.options import AgentOptions, OpenOptions, SessionOptions, refuse_unknown
from holdfast.client.session import Session
from holdfast.connect import ClientExtensions, check_summarizer, connect
from holdfast.errors import Refused
from holdfast.flow.frames import read as frame_read
from holdfast.flow.frames import takeover
from holdfast.flow.sessions import sessions as sessions_flow
from holdfast.ports import Env, Model
from holdfast.records.entries import SearchResult
from holdfast.records.events.envelope import Event
from holdfast.records.frames import Limits
from holdfast.records.ids import check_id, ulid_text
from holdfast.records.recovery import QuestionInfo
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.records.sessions import SessionInfo, SessionSweepReport
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.client.effects import Effects
    from holdfast.client.frame import Frame
    from holdfast.client.index import IndexView
    from holdfast.client.journal import JournalView
    from holdfast.client.state import StateStore
    from holdfast.runtime.agent import Agent
    from holdfast.runtime.shutdown import Shutdown

T = TypeVar("T")
_warned: list[bool] = []


class Holdfast:
    """A client of one journal. Safe to share between threads."""

    def __init__(self, env: Env, *, owner: bool = True) -> None:
        self.env = env
        self.owner = owner

    @property
    def journal(self) -> JournalView:
        """The journal of events: read, follow, verify, copy and erase it."""
        from holdfast.client.journal import JournalView

        _warn_in_event_loop()
        return JournalView(self.env)

    @property
    def index(self) -> IndexView:
        """Frames at the low level: push, pop, spend, attach, call, suspend, resume."""
        from holdfast.client.index import IndexView

        _warn_in_event_loop()
        return IndexView(self.env)

    def frame(
        self,
        goal: str,
        *,
        session: str | None = None,
        actor: str = "main",
        key: str | None = None,
        inputs: Any = None,
        tokens: int | None = None,
        limits: Limits | None = None,
        on_error: str = "fail",
    ) -> Frame:
        """Return a root frame for a `with` block. With a key, continue the frame that was opened under it."""
        from holdfast.client.frame import Frame

        _warn_in_event_loop()
        scope = frame_scope(actor, session)
        return Frame(self.env, scope, goal, key=key, inputs=inputs, tokens=tokens, limits=limits, on_error=on_error)

    def session(
        self, id: str, *, thread: str = MAIN_THREAD, create: bool = True, **options: Unpack[SessionOptions]
    ) -> Session:
        """Return a session by its id, creating it if there is none; with `create=False` an unknown id is an error.

        Options are those of `SessionOptions`. They are stored with the session, so that later processes have them too.
        """
        _warn_in_event_loop()
        refuse_unknown(options, SessionOptions, "session")
        given = sessions_flow.SessionSettings(**options)
        sessions_flow.open_session(self.env, id, thread, given, create=create)
        return Session(self.env, id, thread)

    def new_session(self, **options: Unpack[SessionOptions]) -> Session:
        """Create a session with a new, unique id."""
        return self.session(ulid_text(self.env.ids.ulid()).lower(), **options)

    def sessions(
        self,
        *,
        user: str | None = None,
        title: str | None = None,
        status: str | None = None,
        order: str = "activity",
        limit: int | None = None,
    ) -> Iterator[SessionInfo]:
        """Iterate over sessions, most recently active first, or by cost or title; filter by user, title or status."""
        return sessions_flow.list_sessions(self.env, user=user, title=title, status=status, order=order, limit=limit)

    def usage(self) -> Usage:
        """Return what all sessions of this tenant used and cost, as of one moment: the sum of what `sessions` lists.

        Each session is read once. Work in frames that never reached a session is not included: see
        `frame.info().usage`.
        """
        return sessions_flow.tenant_usage(self.env)

    def sweep_sessions(self) -> SessionSweepReport:
        """End sessions that were idle for too long, and offer ended ones to memory again. Call it periodically."""
        from holdfast.flow.turns.sweep import sweep_sessions

        return sweep_sessions(self.env)

    @property
    def state(self) -> StateStore:
        """Scoped key-value data, journaled: `hf.state("user/42").write("prefs", value)`."""
        from holdfast.client.state import StateStore
        from holdfast.flow.state.journal_store import journal_storage

        _warn_in_event_loop()
        return StateStore(journal_storage(self.env), owner=False)

    @property
    def effects(self) -> Effects:
        """Declared effects: sinks, middleware, the outbox and pending effects."""
        from holdfast.client.effects import Effects

        _warn_in_event_loop()
        return Effects(self.env)

    def search(self, query: str, *, limit: int = 5) -> Sequence[SearchResult]:
        """Search messages and entries of every conversation and scope; return the best matches first."""
        from holdfast.flow.state.search import search_journal

        return search_journal(self.env, None, query, limit)

    def questions(self) -> Iterator[QuestionInfo]:
        """Iterate over all open questions that can be answered, in order of their frames' ids."""
        return frame_read.read_questions(self.env)

    def answer(
        self,
        question: str | None = None,
        *,
        token: str | None = None,
        approve: bool | None = None,
        args: Any = None,
        payload: Any = None,
        note: str | None = None,
        by: str | None = None,
    ) -> str:
        """Answer a question by its id or its token, as the user `by` if given; return the question's id.

        The frame's owner continues with the answer. `args` replace all arguments of the tool call in question;
        arguments that the tool can never take are refused, as far as the tool is known, and the question stays open.
        """
        from holdfast.client.questions import answer_question

        env = self.env if by is None else self.as_user(by).env
        return answer_question(env, question, token=token, approve=approve, payload=payload, args=args, note=note)

    def on(self, event: str, callback: Callable[[Event], object]) -> Callable[[], None]:
        """Call a function after this process commits a matching event: `frame.suspended`, `frame.*`, `*`.

        Returns a function that removes it. To see other processes' events, or to miss none, subscribe to the journal.
        """
        return self.env.observers.add(self.env.tenant, event, callback)

    def agent(
        self, name: str, *, model: str | Model, output: type[T] | None = None, **options: Unpack[AgentOptions]
    ) -> Agent[T]:
        """Return an agent: a model with tools, used as `agent.send("alice", "Refund order 17", key="req-81")`.

        `model` is a name such as `openai:gpt-5-mini` or a model of your own, and `output` is the type of the replies.
        Options are those of `AgentOptions`: `tools` are typed functions, `history` adds tools that read what packs left
        out. A turn may call the model `loops` times, show it `budget` tokens each time, and use `tokens` and
        `budget_usd`, at most. `options` go into every request.
        """
        from holdfast.runtime.agent import Agent, build_agent_config

        return Agent(self, build_agent_config(name, model=model, output=output, options=options))

    def graceful_shutdown(self, *, grace: float = 25.0, signals: Iterable[int] | None = None) -> Shutdown:
        """Return a block for a graceful shutdown: `with hf.graceful_shutdown() as stop: stop.wait()`.

        From the first signal on nothing new begins, running work may end within `grace` seconds, and unfinished work
        stays live for the next process. A second signal ends the grace at once. `signals` are SIGTERM and SIGINT by
        default, and need the main thread; with none of them, call `stop.request()` for the same effect.
        """
        from holdfast.runtime.shutdown import Shutdown

        return Shutdown(self, grace, signals)

    def drain(self, grace: float = 30.0) -> int:
        """Before a shutdown: accept no new frames, wait for blocks to end, and return how many are still at work.

        Unfinished work stays live, and the next process continues it.
        """
        if not self.env.whole:
            raise Refused("This stops every tenant's work. Call it on the client itself, not on a tenant's view.")
        leases, clock = self.env.leases, self.env.clock
        leases.draining = True
        self.env.queues.dismiss()
        began = clock.monotonic()
        while leases.blocks and clock.monotonic() - began < grace:
            clock.sleep(min(0.05, grace))
        return len(leases.blocks)

    def tenant(self, name: str) -> Holdfast:
        """Return a view that sees only this tenant. Cheap; closing it closes nothing."""
        return Holdfast(replace(self.env, tenant=check_id(name, "tenant"), whole=False), owner=False)

    def as_user(self, id: str) -> Holdfast:
        """Return a view that records this user as actor and owner of content. Cheap; closing it closes nothing."""
        return Holdfast(replace(self.env, user=check_id(id, "user")), owner=False)

    def close(self) -> None:
        """Release the journal and everything held with it. Closing twice is fine."""
        if self.owner:
            while self.env.endings:
                self.env.endings.pop()()
            for standing in tuple(self.env.rules.values()):
                standing.rules = ()  # A rule that runs in the background gives up without a warning.
            takeover.release_claims(self.env)
            self.env.leases.close()
            self.env.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        who = "" if self.env.user is None else f", user={self.env.user!r}"
        return f"Holdfast({type(self.env.journal).__name__}, tenant={self.env.tenant!r}{who})"


def open(url: str | os.PathLike[str], **options: Unpack[OpenOptions]) -> Holdfast:
    """Open a journal, or create one: a path, `sqlite:///path` or `memory:`.

    `durability="full"` returns from a write once it is on disk. `"fast"` is several times quicker on slow disks and may
    lose the newest writes in a power failure (not when the process is killed); nothing is ever corrupted.

    `tokenizer` counts in place of the models' own, `redact` rewrites every text before it is written, `memory` is
    offered conversations that have ended, `summarizer` shortens conversations, `embedder` ("wordllama", a model's
    folder, an endpoint or a function) lets searches go by meaning as well as by words. `documents` and `fetcher` let
    evidence point to files and to the web, `telemetry` produces spans, and `strategies` adds ways of compacting, by
    name.

    `prices` adds to the list prices, by prefix of the model's name, in US dollars per million tokens: `{"my-model":
    {"input": 1, "output": 4}}`. Or it replaces them with a function of (model, usage) that returns the cost of one call
    in dollars, or None.
    """
    refuse_unknown(options, OpenOptions, "open")
    check_summarizer(options.get("summarizer"))
    return open_client(url, dict(options))


def open_client(url: str | os.PathLike[str], given: dict[str, Any]) -> Holdfast:
    """Open a journal with checked options, of which the asyncio client has made some callable from threads."""
    of_journal = {name: given.pop(name) for name in ("durability", "settings", "clock", "ids") if name in given}
    return Holdfast(connect(url, **of_journal, beside=ClientExtensions(**given)))


def frame_scope(actor: str, session: str | None) -> str:
    """Return the scope of an actor's frames, within a session or on their own."""
    if session is None:
        return Scope.actor(actor).text
    return Scope.actor(actor, session=session, thread=MAIN_THREAD).text


def _warn_in_event_loop() -> None:
    """Warn once about a blocking call inside an event loop, which stalls everything else in it."""
    asyncio: Any = sys.modules.get("asyncio")
    if not _warned and asyncio is not None and asyncio._get_running_loop() is not None:
        _warned.append(True)
        warnings.warn(
            "Holdfast waits for the disk and is used inside a running event loop. Use holdfast.open_async instead.",
            stacklevel=3,
        )
