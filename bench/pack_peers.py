"""The peers' process for packs: `python -m bench.pack_peers` in their own environment, asked as bench.chat_peers is.

Each peer has one long conversation on disk and gives what a model could be shown of it:

    openai-agents  SQLiteSession.get_items(limit): so many items; it knows neither tokens nor rounds
    LangGraph      the newest checkpoint, then trim_messages with its own approximate counter: no tokenizer slows it
    ADK            get_session: the whole session, or beside it only the newest events; it knows no tokens either
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.chat_peers import serve
from bench.peer_kinds import ADK as ADK_SQLITE
from bench.peer_kinds import ADK_DATABASE as ADK_SQLALCHEMY
from bench.peer_kinds import LANGGRAPH as SAVER
from bench.peer_kinds import OPENAI as SESSION
from bench.peer_kinds import AdkSession, LangGraph, OpenAISession, Run, known, loop
from bench.session_texts import POOL

OPENAI = f"{SESSION}.get_items(limit)"
LANGGRAPH = f"{SAVER}.get_tuple and trim_messages"
LANGGRAPH_STATE = "LangGraph graph.get_state and trim_messages"
ADK = f"{ADK_SQLALCHEMY}.get_session"
ADK_RECENT = f"{ADK_SQLALCHEMY}.get_session(num_recent_events)"
ADK_OTHER = f"{ADK_SQLITE}.get_session"
READS = {
    OPENAI: SESSION,
    LANGGRAPH: SAVER,
    LANGGRAPH_STATE: SAVER,
    ADK: ADK_SQLALCHEMY,
    ADK_RECENT: ADK_SQLALCHEMY,
    ADK_OTHER: ADK_SQLITE,
}
"""What is measured, by the peer that does it."""

Read = Callable[[], Sequence[Any]]


class Long(Protocol):
    """A peer with one conversation, and the ways in which it gives the end of it."""

    def begin(self) -> None:
        """Go on with a conversation in which nothing was said yet."""

    def make(self, numbers: Sequence[int]) -> Any:
        """Messages in the peer's own form."""

    def fill(self, made: Any) -> None:
        """All of them, as the peer would have stored them, in as few commits as can be."""

    def reads(self, items: int, tokens: int) -> dict[str, Read]:
        """What it can be asked for, by name."""

    def close(self) -> None:
        """Let go of the database."""


class OpenAIItems(OpenAISession):
    """So many items from the end."""

    def fill(self, made: Any) -> None:
        self.append(made)

    def reads(self, items: int, tokens: int) -> dict[str, Read]:
        return {OPENAI: lambda: self._run(self._session.get_items(limit=items))}


class LangGraphTrimmed(LangGraph):
    """All messages of the newest checkpoint, trimmed to their end."""

    def fill(self, made: Any) -> None:
        self.append(made)

    def reads(self, items: int, tokens: int) -> dict[str, Read]:
        from langchain_core.messages import trim_messages

        def trimmed(messages: Any) -> Sequence[Any]:
            return trim_messages(
                messages, max_tokens=tokens, strategy="last", token_counter="approximate", start_on="human"
            )

        def checkpoint() -> Any:
            return self._graph.checkpointer.get_tuple(self._config).checkpoint["channel_values"]["messages"]

        return {
            LANGGRAPH: lambda: trimmed(checkpoint()),
            LANGGRAPH_STATE: lambda: trimmed(self._graph.get_state(self._config).values["messages"]),
        }


class AdkEvents(AdkSession):
    """The session with its events, all or the newest."""

    def __init__(self, path: Path, run: Run, *, database: bool = False) -> None:
        super().__init__(path, run, database=database)
        self._database = database

    def fill(self, made: Any) -> None:
        """An append is a commit of its own, ten thousand take minutes: rows as the service makes them, in one."""
        start = made[0].timestamp
        for nth, event in enumerate(made):
            event.timestamp = start + nth / 1000
        self._run(self._filled_by_rows(made) if self._database else self._filled_by_statement(made))

    async def _filled_by_rows(self, made: Any) -> None:
        rows = self._service._get_schema_classes().StorageEvent
        async with self._service.database_session_factory() as transaction:
            transaction.add_all([rows.from_event(self._session, event) for event in made])
            await transaction.commit()

    async def _filled_by_statement(self, made: Any) -> None:
        names = (self._session.app_name, self._session.user_id, self._session.id)
        values = [
            (event.id, *names, event.invocation_id, event.timestamp, event.model_dump_json(exclude_none=True))
            for event in made
        ]
        async with self._service._get_db_connection() as connection:
            await connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            await connection.commit()

    def reads(self, items: int, tokens: int) -> dict[str, Read]:
        from google.adk.sessions.base_session_service import GetSessionConfig

        def events(config: Any = None) -> Sequence[Any]:
            found = self._run(
                self._service.get_session(
                    app_name=self._session.app_name,
                    user_id=self._session.user_id,
                    session_id=self._session.id,
                    config=config,
                )
            )
            return list(found.events)

        if not self._database:
            return {ADK_OTHER: events}
        return {ADK: events, ADK_RECENT: lambda: events(GetSessionConfig(num_recent_events=items))}


KINDS: dict[str, Callable[[Path, Run], Long]] = {
    SESSION: OpenAIItems,
    SAVER: LangGraphTrimmed,
    ADK_SQLALCHEMY: lambda path, run: AdkEvents(path, run, database=True),
    ADK_SQLITE: AdkEvents,
}


class Peers:
    """What can be asked: every public method."""

    def __init__(self) -> None:
        self._run, self._stop = loop()
        self._opened: list[Long] = []
        self._reads: dict[str, Read] = {}

    def hello(self, place: str) -> dict[str, Any]:
        """Which peers work here, and why others do not."""
        found: dict[str, str] = {}
        absent: dict[str, str] = {}
        for name in KINDS:
            try:
                self._filled(name, Path(place), f"try-{len(found)}", 4).close()
                found[name] = known(name)
            except Exception as error:
                absent[name] = f"{type(error).__name__}: {error}"
        gc.collect()
        gc.freeze()  # What was imported stays: collecting before each measurement need not look at it again.
        return {"found": found, "absent": absent}

    def _filled(self, name: str, place: Path, file: str, messages: int) -> Long:
        peer = KINDS[name](place / f"{file}.db", self._run)
        peer.begin()
        peer.fill(peer.make([number % POOL for number in range(messages)]))
        return peer

    def open(self, name: str, place: str, messages: int, items: int, tokens: int) -> dict[str, int]:
        """A conversation of so many messages; says how many of them each way of reading gives."""
        peer = self._filled(name, Path(place), f"packs-{name.replace(' ', '-')}", messages)
        self._opened.append(peer)
        reads = peer.reads(items, tokens)
        self._reads |= reads
        return {what: len(read()) for what, read in reads.items()}

    def read(self, way: str, times: int) -> float:
        """Seconds of one, so many in a row."""
        read = self._reads[way]
        gc.collect()
        start = time.perf_counter()
        for _ in range(times):
            read()
        return (time.perf_counter() - start) / times

    def close(self) -> None:
        """Let go of everything."""
        for peer in self._opened:
            peer.close()
        self._stop()


if __name__ == "__main__":
    serve(Peers())
