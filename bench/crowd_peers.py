"""The peers' process for crowds: `python -m bench.crowd_peers` in their own environment, asked as bench.chat_peers is.

Each peer has a conversation for every agent, all in one SQLite file, and takes a turn in all of them at once on one
event loop. The model is an object in the same process that answers at once, by the rule of holdfast's script:

    openai-agents  Runner.run with a SQLiteSession for each conversation, as one is made for each request
    LangGraph      langchain's create_agent and ainvoke with AsyncSqliteSaver: its SqliteSaver refuses event loops

Nobody's messages are left out of what a model is shown: in a few rounds they are fewer than holdfast's limit allows.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from bench.chat_peers import serve
from bench.peer_kinds import SYNCHRONOUS, Run, loop
from bench.turn_words import ARGUMENTS, FUNCTIONS, MODEL, REPLY, SYSTEM, TOOLS, asked

OPENAI, LANGGRAPH = "openai-agents Runner, SQLiteSession", "LangGraph agent, AsyncSqliteSaver"
PACKAGES = {OPENAI: ("openai-agents",), LANGGRAPH: ("langgraph", "langchain", "langgraph-checkpoint-sqlite")}
WARM = 20


class Sends(Protocol):
    """Agents that share one file."""

    async def send(self, name: str, words: str) -> str:
        """One turn in one conversation; gives the reply."""


class Crowd(Sends, Protocol):
    """Those of a peer."""

    path: Path
    shape: str

    async def begin(self) -> None:
        """Open the file."""

    async def texts(self, name: str) -> list[str]:
        """What users and the model said in a conversation, read back from the file."""

    async def durability(self) -> str:
        """What a commit is left at, asked of a connection that the peer itself uses."""

    async def close(self) -> None:
        """Let go of the file."""


class OpenAICrowd:
    """A session is an object for a conversation; it is closed when the request is over, as a server does."""

    def __init__(self, path: Path, shape: str) -> None:
        from agents import Agent, RunConfig, Runner, SQLiteSession
        from agents import function_tool as tool

        self.path, self.shape, self._make, self._runner = path, shape, SQLiteSession, Runner
        tools = [tool(one) for one in FUNCTIONS.values()] if shape == TOOLS else []
        self._agent = Agent(name="travel", instructions=SYSTEM, model=_openai_model(shape), tools=tools)
        self._config = RunConfig(tracing_disabled=True)

    async def begin(self) -> None:
        """Each conversation opens the file itself."""

    async def send(self, name: str, words: str) -> str:
        session: Any = self._make(name, self.path)
        try:
            ended = await self._runner.run(self._agent, words, session=session, run_config=self._config)
            return str(ended.final_output)
        finally:
            session.close()

    async def texts(self, name: str) -> list[str]:
        session: Any = self._make(name, self.path)
        try:
            items = await session.get_items()
        finally:
            session.close()
        return [_text(item["content"]) for item in items if item.get("role") in ("user", "assistant")]

    async def durability(self) -> str:
        session: Any = self._make("anybody", self.path)
        try:
            with session._locked_connection() as connection:
                return commit_kind(connection)
        finally:
            session.close()

    async def close(self) -> None:
        """Nothing is open."""


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _openai_model(shape: str) -> Any:
    from agents import Model, ModelResponse, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    numbers = itertools.count()

    class Scripted(Model):
        """Answers at once."""

        async def get_response(self, system_instructions: Any, input: Any, *given: Any, **named: Any) -> Any:
            if shape == TOOLS and input[-1].get("role") == "user":
                output: list[Any] = [
                    ResponseFunctionToolCall(
                        call_id=f"call_{next(numbers)}",
                        name=name,
                        arguments=json.dumps(ARGUMENTS),
                        type="function_call",
                    )
                    for name in FUNCTIONS
                ]
            else:
                said = ResponseOutputText(text=REPLY, annotations=[], type="output_text")
                output = [
                    ResponseOutputMessage(
                        id=f"msg_{next(numbers)}", content=[said], role="assistant", status="completed", type="message"
                    )
                ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *given: Any, **named: Any) -> Any:
            raise NotImplementedError

    return Scripted()


class LangGraphCrowd:
    """One graph for all, a thread for each conversation."""

    def __init__(self, path: Path, shape: str) -> None:
        self.path, self.shape = path, shape

    async def begin(self) -> None:
        from langchain.agents import create_agent
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        self._kept = AsyncSqliteSaver.from_conn_string(os.fspath(self.path))
        self._saver = await self._kept.__aenter__()
        tools = list(FUNCTIONS.values()) if self.shape == TOOLS else []
        self._graph = create_agent(
            _langchain_model(self.shape), tools=tools, system_prompt=SYSTEM, checkpointer=self._saver
        )

    async def send(self, name: str, words: str) -> str:
        ended = await self._graph.ainvoke({"messages": [{"role": "user", "content": words}]}, _thread(name))
        return str(ended["messages"][-1].content)

    async def texts(self, name: str) -> list[str]:
        found = await self._saver.aget_tuple(_thread(name))
        messages = found.checkpoint["channel_values"]["messages"]
        return [str(one.content) for one in messages if one.type in ("human", "ai") and one.content]

    async def durability(self) -> str:
        mode = await (await self._saver.conn.execute("PRAGMA journal_mode")).fetchone()
        level = await (await self._saver.conn.execute("PRAGMA synchronous")).fetchone()
        return f"journal_mode={mode[0]}, synchronous={SYNCHRONOUS[level[0]]}"

    async def close(self) -> None:
        await self._kept.__aexit__(None, None, None)


def _thread(name: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": name}}


def _langchain_model(shape: str) -> Any:
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    numbers = itertools.count()

    class Scripted(BaseChatModel):
        """Answers at once."""

        @property
        def _llm_type(self) -> str:
            return MODEL

        def bind_tools(self, tools: Any, **named: Any) -> Any:
            return self

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **named: Any) -> Any:
            if shape == TOOLS and messages[-1].type == "human":
                calls = [{"name": name, "args": ARGUMENTS, "id": f"call_{next(numbers)}"} for name in FUNCTIONS]
                return ChatResult(generations=[ChatGeneration(message=AIMessage(content="", tool_calls=calls))])
            return ChatResult(generations=[ChatGeneration(message=AIMessage(content=REPLY))])

        async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **named: Any) -> Any:
            return self._generate(messages)

    return Scripted()


def commit_kind(connection: Any) -> str:
    """How durable the commits of a connection are."""
    ((level,),) = connection.execute("PRAGMA synchronous").fetchall()
    ((mode,),) = connection.execute("PRAGMA journal_mode").fetchall()
    return f"journal_mode={mode}, synchronous={SYNCHRONOUS[level]}"


KINDS: dict[str, Any] = {OPENAI: OpenAICrowd, LANGGRAPH: LangGraphCrowd}


def conversation_names(agents: int) -> list[str]:
    """A conversation for each."""
    return [f"agent-{at}" for at in range(agents)]


def questions(at: int, rounds: int) -> list[str]:
    """What was said in one of them, with the replies."""
    return [one for number in range(rounds) for one in (asked(100 * number + at % 100), REPLY)]


async def take_turns(crowd: Sends, names: Sequence[str], number: int) -> float:
    """Seconds until every conversation has had a turn, all begun at once."""
    said = [asked(number + at % 100) for at in range(len(names))]
    gc.collect()
    start = time.perf_counter()
    replies = await asyncio.gather(*(crowd.send(name, words) for name, words in zip(names, said, strict=True)))
    took = time.perf_counter() - start
    assert all(reply == REPLY for reply in replies)
    return took


class Peers:
    """What can be asked: every public method."""

    def __init__(self) -> None:
        self._run: Run
        self._run, self._stop = loop()
        self._opened: dict[str, Any] = {}
        self._rounds: dict[str, int] = {}

    def hello(self, place: str) -> dict[str, Any]:
        """Which peers answer here, and why others do not."""
        found: dict[str, str] = {}
        absent: dict[str, str] = {}
        for at, (name, make) in enumerate(KINDS.items()):
            try:
                crowd = make(Path(place) / f"crowd-try-{at}.db", TOOLS)
                self._run(crowd.begin())
                self._run(take_turns(crowd, [f"try-{one}" for one in range(WARM)], 0))
                self._run(crowd.close())
                found[name] = ", ".join(f"{one} {version(one)}" for one in PACKAGES[name])
            except Exception as error:
                absent[name] = f"{type(error).__name__}: {error}"
        gc.collect()
        gc.freeze()  # What was imported stays: collecting before each measurement need not look at it again.
        return {"found": found, "absent": absent}

    def open(self, name: str, label: str, place: str, shape: str) -> str:
        """Agents in a file of their own, warm; says how durable its commits are."""
        crowd = self._opened[label] = KINDS[name](Path(place) / f"crowd-{len(self._opened)}.db", shape)
        self._rounds[label] = 0
        self._run(crowd.begin())
        for number in range(2):
            self._run(take_turns(crowd, [f"warm-{at}" for at in range(WARM)], number))
        return str(self._run(crowd.durability()))

    def turns(self, label: str, agents: int) -> float:
        """Seconds of one turn of every agent."""
        number = self._rounds[label]
        self._rounds[label] += 1
        return float(self._run(take_turns(self._opened[label], conversation_names(agents), 100 * number)))

    def read_back(self, label: str, agents: int) -> int:
        """How many conversations hold every question and reply, in order, as a connection that is new finds them."""
        return int(self._run(self._whole(label, agents)))

    async def _whole(self, label: str, agents: int) -> int:
        opened, rounds = self._opened[label], self._rounds[label]
        names = conversation_names(agents)
        fresh = type(opened)(opened.path, opened.shape)
        await fresh.begin()
        try:
            return sum([await fresh.texts(name) == questions(at, rounds) for at, name in enumerate(names)])
        finally:
            await fresh.close()

    def close(self, label: str) -> None:
        """Let go of the file."""
        self._run(self._opened.pop(label).close())


if __name__ == "__main__":
    serve(Peers())
