"""Turns as holdfast takes them: in a loop of one's own over `session.turn`, and by an agent, each on a file of its own.

Against the scripted model there is nothing but holdfast to measure. Against the model on loopback, the own loop asks
with OpenAI's SDK, as the peers do, and the agent with holdfast's adapter, in one piece as they do and not in a stream.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import holdfast
from bench.fake_model import FakeModel
from bench.harness import Contender
from bench.session_packs import BUDGET
from bench.session_texts import POOL, role, text
from bench.turn_words import (
    ARGUMENTS,
    FUNCTIONS,
    MODEL,
    PLAIN,
    REPLY,
    SYSTEM,
    TOOLS,
    TURN_BY_TURN,
    asked,
    definitions,
)
from holdfast import CallModel, CallTool, Holdfast, Limits
from holdfast.aio.executor import ThreadPools
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.model.providers import OpenAIChat
from holdfast.model.scripted import Scripted, call
from holdfast.records.messages import Message

SETTINGS = holdfast.Settings()
PLAINLY = holdfast.Settings(index_text=0)
"""Without the text index, which merges what it holds now and then: what is counted would depend on when."""
LIMITS = Limits(context_tokens=BUDGET)
OWN, AGENT = "session.turn", "hf.agent"
WAYS = (OWN, AGENT)


class Way(Protocol):
    """Takes turns in one conversation after the other."""

    hf: Holdfast

    def begin(self, name: str) -> None:
        """Go on with a conversation."""

    def turn(self, said: str) -> str:
        """One turn; gives the reply."""


class OwnLoop:
    """The loop that everybody writes."""

    def __init__(self, hf: Holdfast, shape: str, ask: Callable[[CallModel], Any]) -> None:
        self.hf, self._ask = hf, ask
        self._tools = definitions() if shape == TOOLS else None

    def begin(self, name: str) -> None:
        self._session = self.hf.session(name, system=SYSTEM, model=MODEL, tools=self._tools)

    def turn(self, said: str) -> str:
        with self._session.turn(said, budget=BUDGET) as turn:
            for step in turn:
                if isinstance(step, CallModel):
                    step.done(self._ask(step))
                elif isinstance(step, CallTool):
                    step.done(FUNCTIONS[step.name](**step.args))
            return turn.text


class SentTo:
    """The same by an agent, on an event loop."""

    def __init__(self, hf: Holdfast, shape: str, model: Any, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.hf, self._run = hf, run
        self._threads = ThreadPools()
        tools = [] if shape == PLAIN else list(FUNCTIONS.values())
        # Without the tools for its own past, so that everybody's request is the same.
        self._agent: Any = AsyncHoldfast(hf, self._threads).agent(
            "travel", model=model, system=SYSTEM, tools=tools, limits=LIMITS, history=False
        )

    def begin(self, name: str) -> None:
        self._name = name

    def turn(self, said: str) -> str:
        return str(self._run(self._agent.send(self._name, said)).text)

    def close(self) -> None:
        """Let go of the threads; the client is closed by who opened it."""
        self._run(_ended(self._threads))
        self._threads.close()


async def _ended(threads: ThreadPools) -> None:
    while threads.endings:
        await threads.endings.pop()()


def scripted(shape: str, name: str = MODEL) -> Scripted:
    """The model that says what a script says: in each turn both tools, if there are any, and then the reply."""
    made = [call(name, **ARGUMENTS) for name in FUNCTIONS]
    calls: dict[str, list[Any]] = {PLAIN: [], TOOLS: [made], TURN_BY_TURN: made}
    return Scripted([*calls[shape], REPLY], name=name)


def said_in_turn(shape: str) -> Callable[[CallModel], Any]:
    """The same for an own loop: what is said follows from what was shown last, and from nothing else."""
    wanted = Message(role="assistant", content=None, tool_calls=tuple(call(name, **ARGUMENTS) for name in FUNCTIONS))

    def ask(step: CallModel) -> Any:
        asked = step.pack.conversation.messages[-1].role == "user"
        return wanted if asked and shape == TOOLS else REPLY

    return ask


class Stage:
    """Opens ways of taking turns, and closes them all."""

    def __init__(self, place: Path, stack: ExitStack, model: FakeModel | None = None) -> None:
        self._place, self._stack, self._model = place, stack, model
        self._files = itertools.count()
        self._loop = asyncio.new_event_loop()
        stack.callback(self._loop.close)

    def way(
        self,
        kind: str,
        shape: str,
        messages: int,
        *,
        wire: bool = False,
        beside: int = 0,
        settings: holdfast.Settings = SETTINGS,
    ) -> Way:
        """One with a conversation of so many messages in a journal of its own, `beside` another one in it."""
        path = self._place / f"way-{next(self._files)}.db"
        shutil.copy(built(self._place, {messages, beside or messages}, settings), path)
        hf = self._stack.enter_context(holdfast.open(path, settings=settings))
        made = self._own(hf, shape, wire) if kind == OWN else self._agent(hf, shape, wire)
        made.begin(f"long-{messages}")
        assert made.turn(asked(0)) == REPLY
        return made

    def _own(self, hf: Holdfast, shape: str, wire: bool) -> Way:
        if not wire:
            return OwnLoop(hf, shape, said_in_turn(shape))
        import openai

        assert self._model is not None
        client = openai.OpenAI(base_url=self._model.url(shape), api_key="none")
        self._stack.callback(client.close)
        return OwnLoop(hf, shape, lambda step: client.chat.completions.create(model=MODEL, **step.pack.to_openai()))

    def _agent(self, hf: Holdfast, shape: str, wire: bool) -> Way:
        model: Any = scripted(shape)
        if wire:
            assert self._model is not None
            model = OpenAIChat(MODEL, base_url=self._model.url(shape), api_key="none", stream=False)
        made = SentTo(hf, shape, model, self._loop.run_until_complete)
        self._stack.callback(made.close)
        return made


def fill(hf: Holdfast, name: str, messages: int) -> None:
    """A conversation of so many messages of about 1 KB."""
    session = hf.session(name, system=SYSTEM, model=MODEL)
    for start in range(0, messages, POOL):
        many = min(POOL, messages - start)
        session.append([{"role": role(number), "content": text(number % POOL)} for number in range(many)])


def built(place: Path, lengths: Collection[int], settings: holdfast.Settings = SETTINGS) -> Path:
    """A closed journal with a conversation of each length; made once."""
    path = place / f"built-{'-'.join(map(str, sorted(lengths)))}-{settings.index_text}.db"
    if not path.exists():
        with holdfast.open(path, durability="fast", settings=settings) as hf:
            for messages in sorted(lengths):
                fill(hf, f"long-{messages}", messages)
    return path


def timing(way: Way, times: int, anew: int | None = None) -> Contender:
    """Seconds of one turn, so many in a row; with `anew`, in a new conversation of that length each time."""
    names, numbers = itertools.count(1), itertools.count(1)

    def run() -> float:
        if anew is not None:
            name = f"anew-{next(names)}"
            fill(way.hf, name, anew)
            way.begin(name)
            way.turn(asked(next(numbers)))
        said = [asked(next(numbers)) for _ in range(times)]
        start = time.perf_counter()
        for one in said:
            way.turn(one)
        return (time.perf_counter() - start) / times

    return run
