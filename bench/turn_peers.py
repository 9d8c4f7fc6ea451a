"""The peers' process for turns: `python -m bench.turn_peers` in their own environment, asked as bench.chat_peers is.

Each peer is an agent with its own way of keeping a conversation, as it comes, and asks the model on loopback:

    openai-agents  Runner.run with a SQLiteSession; with a limit, SessionSettings(limit) of so many items
    LangGraph      langchain's create_agent with a SqliteSaver; with a limit, middleware that shows the end of the
                   messages, trim_messages by its own approximate counter

Without a limit both show the model all that was ever said, as they do unless told otherwise.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from bench.chat_peers import serve
from bench.peer_kinds import Run, durability, loop
from bench.session_texts import POOL, role, text
from bench.turn_words import FUNCTIONS, MODEL, PLAIN, REPLY, SYSTEM, TOOLS, asked

OPENAI, LANGGRAPH = "openai-agents Runner, SQLiteSession", "LangGraph agent, SqliteSaver"
PACKAGES = {OPENAI: ("openai-agents",), LANGGRAPH: ("langgraph", "langchain", "langgraph-checkpoint-sqlite")}


class Agent(Protocol):
    """A peer that takes turns in one conversation."""

    def begin(self, messages: int) -> None:
        """Go on with a new conversation in which so much was said."""

    def turn(self, said: str) -> str:
        """One turn; gives the reply."""

    def tidy(self) -> None:
        """What may be thrown away between two measurements, so that the disk does not fill up."""

    def close(self) -> None:
        """Let go of the database and the connections."""


class OpenAIAgent:
    """The history is read from the session before the run, what is new is added to it during the run."""

    def __init__(self, path: Path, run: Run, url: str, shape: str, items: int | None, tokens: int | None) -> None:
        from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, SessionSettings, SQLiteSession
        from agents import function_tool as tool
        from openai import AsyncOpenAI

        self._path, self._run, self._ids = path, run, itertools.count()
        self._make, self._runner = SQLiteSession, Runner
        self._session: Any = None
        self._client = AsyncOpenAI(base_url=url, api_key="none")
        self._agent = Agent(
            name="travel",
            instructions=SYSTEM,
            model=OpenAIChatCompletionsModel(model=MODEL, openai_client=self._client),
            tools=[tool(one) for one in FUNCTIONS.values()] if shape == TOOLS else [],
        )
        limit = SessionSettings(limit=items) if items else None
        self._config = RunConfig(tracing_disabled=True, session_settings=limit)

    def begin(self, messages: int) -> None:
        self._leave()
        self._session = self._make(f"session-{next(self._ids)}", self._path)
        made: list[Any] = [{"role": role(at), "content": text(at % POOL)} for at in range(messages)]
        self._run(self._session.add_items(made))

    def turn(self, said: str) -> str:
        ended = self._run(self._runner.run(self._agent, said, session=self._session, run_config=self._config))
        return str(ended.final_output)

    def tidy(self) -> None:
        """Nothing is in excess."""

    def _leave(self) -> None:
        if self._session is not None:
            self._session.close()

    def close(self) -> None:
        self._leave()
        self._run(self._client.close())


class LangGraphAgent:
    """Every step of the graph is a checkpoint with all messages."""

    def __init__(self, path: Path, run: Run, url: str, shape: str, items: int | None, tokens: int | None) -> None:
        from langchain.agents import create_agent
        from langchain_openai import ChatOpenAI
        from langgraph.checkpoint.sqlite import SqliteSaver

        self._stack, self._ids = ExitStack(), itertools.count()
        self._saver = self._stack.enter_context(SqliteSaver.from_conn_string(os.fspath(path)))
        self._graph: Any = create_agent(
            ChatOpenAI(model=MODEL, base_url=url, api_key="none", use_responses_api=False),
            tools=list(FUNCTIONS.values()) if shape == TOOLS else [],
            system_prompt=SYSTEM,
            middleware=[_trimming(tokens)] if tokens else [],
            checkpointer=self._saver,
        )

    def begin(self, messages: int) -> None:
        from langchain_core.messages import AIMessage, HumanMessage

        self._config = {"configurable": {"thread_id": f"thread-{next(self._ids)}"}}
        kinds = {"user": HumanMessage, "assistant": AIMessage}
        made = [kinds[role(at)](text(at % POOL)) for at in range(messages)]
        self._graph.update_state(self._config, {"messages": made}, as_node="model")

    def turn(self, said: str) -> str:
        ended = self._graph.invoke({"messages": [{"role": "user", "content": said}]}, self._config)
        return str(ended["messages"][-1].content)

    def tidy(self) -> None:
        """Checkpoints before the newest are megabytes each and never read again."""
        newest = self._saver.get_tuple(self._config).config["configurable"]["checkpoint_id"]
        thread = self._config["configurable"]["thread_id"]
        with self._saver.cursor() as cursor:
            for table in ("checkpoints", "writes"):
                cursor.execute(f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_id <> ?", (thread, newest))

    def close(self) -> None:
        self._stack.close()


def _trimming(tokens: int) -> Any:
    """Middleware that shows the model the end of the conversation; the state keeps all of it."""
    from langchain.agents.middleware import wrap_model_call
    from langchain_core.messages import trim_messages

    @wrap_model_call
    def trimmed(request: Any, handler: Callable[[Any], Any]) -> Any:
        shown = trim_messages(
            request.messages, max_tokens=tokens, strategy="last", token_counter="approximate", start_on="human"
        )
        return handler(request.override(messages=shown))

    return trimmed


KINDS: dict[str, Callable[..., Agent]] = {OPENAI: OpenAIAgent, LANGGRAPH: LangGraphAgent}


class Peers:
    """What can be asked: every public method."""

    def __init__(self) -> None:
        self._run, self._stop = loop()
        self._opened: dict[str, Agent] = {}
        self._numbers = itertools.count()

    def hello(self, place: str) -> dict[str, Any]:
        """Which peers can be imported here, and why others cannot."""
        found: dict[str, str] = {}
        absent: dict[str, str] = {}
        for at, (name, make) in enumerate(KINDS.items()):
            try:
                make(Path(place) / f"try-{at}.db", self._run, "http://127.0.0.1:9", PLAIN, None, None).close()
                found[name] = ", ".join(f"{one} {version(one)}" for one in PACKAGES[name])
            except Exception as error:
                absent[name] = f"{type(error).__name__}: {error}"
        gc.collect()
        gc.freeze()  # What was imported stays: collecting before each measurement need not look at it again.
        return {"found": found, "absent": absent}

    def open(
        self,
        name: str,
        label: str,
        place: str,
        url: str,
        shape: str,
        messages: int,
        items: int | None = None,
        tokens: int | None = None,
    ) -> str:
        """An agent under a label, with a conversation; it must answer. Says how durable its commits are."""
        path = Path(place) / f"turns-{len(self._opened)}.db"
        agent = self._opened[label] = KINDS[name](path, self._run, url, shape, items, tokens)
        agent.begin(messages)
        said = agent.turn(self._next())
        if said != REPLY:
            raise AssertionError(f"{name} answered {said!r:.200}")
        agent.tidy()
        return durability(path)

    def turn(self, label: str, times: int, anew: int | None = None) -> float:
        """Seconds of one turn, so many in a row; with `anew`, in a new conversation of that length."""
        agent = self._opened[label]
        if anew is not None:
            agent.begin(anew)
            agent.turn(self._next())
        said = [self._next() for _ in range(times)]
        gc.collect()
        start = time.perf_counter()
        for one in said:
            agent.turn(one)
        took = (time.perf_counter() - start) / times
        agent.tidy()
        return took

    def _next(self) -> str:
        return asked(next(self._numbers))

    def close(self) -> None:
        """Let go of everything."""
        for agent in self._opened.values():
            agent.close()
        self._stop()


if __name__ == "__main__":
    serve(Peers())
