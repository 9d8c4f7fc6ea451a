"""The peers as they come: how each begins a conversation, appends to it and takes a turn.

Runs in the peers' own environment; a peer's packages are imported when it is opened. What is to be written is made
beforehand, in the peer's own types, as it is for holdfast.
"""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from bench.session_texts import role, text

OPENAI = "openai-agents SQLiteSession"
LANGGRAPH = "LangGraph SqliteSaver"
INVOKED = "LangGraph SqliteSaver, graph.invoke"
DELTA = "LangGraph SqliteSaver, delta channel"
ADK = "ADK SqliteSessionService"
ADK_DATABASE = "ADK DatabaseSessionService"
PACKAGES = {
    OPENAI: "openai-agents",
    LANGGRAPH: "langgraph-checkpoint-sqlite",
    INVOKED: "langgraph",
    DELTA: "langgraph",
    ADK: "google-adk",
    ADK_DATABASE: "google-adk",
}
SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Peer(Protocol):
    """One peer with one database."""

    def begin(self) -> None:
        """Go on with a conversation in which nothing was said yet."""

    def make(self, numbers: Sequence[int]) -> Any:
        """Messages in the peer's own form."""

    def append(self, made: Any) -> None:
        """All of them, in as few calls and commits as the peer can."""

    def turn(self, asked: int, replied: int) -> None:
        """A user's message and the reply to it, durable one after the other as the peer's own loop does it."""

    def count(self) -> int:
        """How many messages the conversation has, read from the database."""

    def close(self) -> None:
        """Let go of the database."""


class OpenAISession:
    """`add_items` takes a list: one call, one commit."""

    def __init__(self, path: Path, run: Run) -> None:
        from agents import SQLiteSession

        self._make, self._path, self._run, self._ids = SQLiteSession, path, run, itertools.count()
        self._session: Any = None

    def begin(self) -> None:
        self.close()
        self._session = self._make(f"session-{next(self._ids)}", self._path)

    def make(self, numbers: Sequence[int]) -> Any:
        return [{"role": role(number), "content": text(number)} for number in numbers]

    def append(self, made: Any) -> None:
        self._run(self._session.add_items(made))

    def turn(self, asked: int, replied: int) -> None:
        for number in (asked, replied):
            self.append(self.make([number]))

    def count(self) -> int:
        return len(self._run(self._session.get_items()))

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class LangGraph:
    """A graph of one node over a list of messages. `update_state` appends in one checkpoint, `invoke` makes three."""

    def __init__(self, path: Path, run: Run, *, delta: bool = False) -> None:
        from langchain_core.messages import AIMessage, HumanMessage
        from langgraph.checkpoint.sqlite import SqliteSaver

        self._kinds = {"user": HumanMessage, "assistant": AIMessage}
        self._stack = ExitStack()
        self._graph = _graph(self._stack.enter_context(SqliteSaver.from_conn_string(str(path))), self._reply, delta)
        self._ids = itertools.count()
        self._replies: list[Any] = []

    def begin(self) -> None:
        self._config = {"configurable": {"thread_id": f"thread-{next(self._ids)}"}}

    def make(self, numbers: Sequence[int]) -> Any:
        return [self._kinds[role(number)](text(number)) for number in numbers]

    def append(self, made: Any) -> None:
        self._graph.update_state(self._config, {"messages": made}, as_node="reply")

    def _reply(self, state: Any) -> dict[str, Any]:
        return {"messages": self._replies}

    def invoke(self, made: Any) -> None:
        """The first message is asked, the node says the others."""
        self._replies = made[1:]
        self._graph.invoke({"messages": made[:1]}, self._config)

    def turn(self, asked: int, replied: int) -> None:
        self.invoke(self.make([asked, replied]))

    def count(self) -> int:
        return len(self._graph.get_state(self._config).values["messages"])

    def close(self) -> None:
        self._stack.close()


class Invoked(LangGraph):
    """The same, appended to as the graph's own loop does it."""

    def append(self, made: Any) -> None:
        self.invoke(made)


def _graph(saver: Any, reply: Callable[[Any], Any], delta: bool) -> Any:
    from typing import Annotated, TypedDict

    from langgraph.graph import END, START, MessagesState, StateGraph

    state: Any = MessagesState
    if delta:
        from langgraph.channels import DeltaChannel

        def extended(known: list[Any], writes: Sequence[Any]) -> list[Any]:
            return [*known, *(message for write in writes for message in write)]

        state = TypedDict("Said", {"messages": Annotated[list[Any], DeltaChannel(extended)]})  # noqa: UP013
    builder = StateGraph(state)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    return builder.compile(checkpointer=saver)


class AdkSession:
    """`append_event` takes one event: a call and a commit for each."""

    def __init__(self, path: Path, run: Run, *, database: bool = False) -> None:
        from google.adk.events import Event
        from google.genai.types import Content, Part

        self._event, self._content, self._part = Event, Content, Part
        self._run, self._ids = run, itertools.count()
        self._service: Any
        if database:
            from google.adk.sessions import DatabaseSessionService

            self._service = DatabaseSessionService(db_url=f"sqlite+aiosqlite:///{path}")
        else:
            from google.adk.sessions.sqlite_session_service import SqliteSessionService

            self._service = SqliteSessionService(str(path))

    def begin(self) -> None:
        name = f"session-{next(self._ids)}"
        self._session = self._run(self._service.create_session(app_name="bench", user_id="u", session_id=name))

    def make(self, numbers: Sequence[int]) -> Any:
        return [self._made(number) for number in numbers]

    def _made(self, number: int) -> Any:
        said = role(number)
        content = self._content(role="model" if said == "assistant" else said, parts=[self._part(text=text(number))])
        return self._event(author="agent" if said == "assistant" else said, invocation_id="i", content=content)

    def append(self, made: Any) -> None:
        self._run(self._appended(made))

    async def _appended(self, made: Any) -> None:
        for event in made:
            await self._service.append_event(self._session, event)

    def turn(self, asked: int, replied: int) -> None:
        self.append(self.make([asked, replied]))

    def count(self) -> int:
        found = self._service.get_session(app_name="bench", user_id="u", session_id=self._session.id)
        return len(self._run(found).events)

    def close(self) -> None:
        self._run(self._service.close())


KINDS: dict[str, Callable[[Path, Run], Peer]] = {
    OPENAI: OpenAISession,
    LANGGRAPH: LangGraph,
    INVOKED: Invoked,
    DELTA: lambda path, run: LangGraph(path, run, delta=True),
    ADK: AdkSession,
    ADK_DATABASE: lambda path, run: AdkSession(path, run, database=True),
}


def known(name: str) -> str:
    """A peer's release."""
    package = PACKAGES[name]
    return f"{package} {version(package)}"


def durability(path: Path) -> str:
    """What a peer's database is left at: none of them sets `synchronous`, so a new connection has it too."""
    connection = sqlite3.connect(path)
    try:
        level = connection.execute("PRAGMA synchronous").fetchone()[0]
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    finally:
        connection.close()
    return f"journal_mode={mode}, synchronous={SYNCHRONOUS[level]}"


def checkpointed_bytes(path: Path) -> int:
    """The size of a database whose log was folded in."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()
    return path.stat().st_size


def loop() -> tuple[Run, Callable[[], None]]:
    """An event loop that stays: what runs coroutines to their end, and what closes it."""
    made = asyncio.new_event_loop()
    return made.run_until_complete, made.close
