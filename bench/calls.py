"""Python calls of an append and of an agent's turn: how much of the interpreter they use, on any machine.

Counted with `sys.setprofile` in every thread, comprehensions and generators resumed included; functions of C are not
counted. All is warm: what is counted has been done before, with other words.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import holdfast
from bench.journals import folder
from bench.report import Line, at_most
from bench.session_appends import LONG, MESSAGES, said
from bench.session_size import MODEL, SYSTEM
from bench.turn_ways import AGENT, LIMITS, PLAINLY, SETTINGS, built, fill
from bench.turn_words import ARGUMENTS, FUNCTIONS, REPLY, asked
from holdfast import Settings
from holdfast.aio.executor import ThreadPools
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.model.scripted import Scripted, call
from holdfast.model.tokenizers import resolve_tokenizer

TITLE = "Python calls"
APPEND_BAR, TURN_BAR = 150, 3_200
TIMES = 20
WARM_UP = 10
ONE_TOOL = "seats_left"
INDEX = {"index on": SETTINGS, "index off": PLAINLY}


class PythonCalls:
    """Counts calls of Python functions in this thread and in those that start after `watching` was entered."""

    def __init__(self) -> None:
        self.count = 0
        self._active = False

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call" and self._active:
            self.count += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Threads that start from now on are counted as well, whenever `counting` is entered."""
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count until left."""
        before = sys.getprofile()
        self._active = True
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            self._active = False


def calls_of(calls: PythonCalls, work: Callable[[Any], object], make: Callable[[], Any]) -> float:
    """Python calls of one, the median of some: now and then a cache is tidied, or an index catches up."""
    found: list[int] = []
    for number in range(-WARM_UP, TIMES):
        given, calls.count = make(), 0
        with calls.counting():
            work(given)
        if number >= 0:
            found.append(calls.count)
    return sorted(found)[len(found) // 2] - 1  # Without `counting` itself, which leaves through one function.


def run(quick: bool) -> list[Line]:
    """An append of four messages and of one, and `agent.send` without tools and with one."""
    found: list[Line] = []
    tokenizer: Any = resolve_tokenizer()
    tokenizer.load()  # Until then short texts are counted in Python.
    for index, settings in INDEX.items():
        calls = PythonCalls()
        with calls.watching(), folder() as place, ExitStack() as stack:
            found += [*_appends(calls, place, stack, index, settings), *_turns(calls, place, stack, index, settings)]
    return found


def _appends(calls: PythonCalls, place: Path, stack: ExitStack, index: str, settings: Settings) -> Iterator[Line]:
    hf = stack.enter_context(holdfast.open(place / "appends.db", settings=settings))
    session = hf.session("plain", system=SYSTEM, model=MODEL)
    session.append(said(0, LONG))
    numbers = itertools.count(LONG, step=MESSAGES)
    for count in (1, MESSAGES):
        value = calls_of(calls, session.append, lambda count=count: said(next(numbers), count))  # type: ignore[misc]
        what = f"append of {'one message' if count == 1 else 'four messages'}, {index}"
        yield Line(what=what, value=value, unit="calls", bar=at_most(APPEND_BAR))


def _turns(calls: PythonCalls, place: Path, stack: ExitStack, index: str, settings: Settings) -> Iterator[Line]:
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    hf = stack.enter_context(holdfast.open(built(place, {LONG}, settings), settings=settings))
    threads = ThreadPools()
    stack.callback(threads.close)
    for tool in (None, ONE_TOOL):
        script = [REPLY] if tool is None else [call(tool, **ARGUMENTS), REPLY]
        tools = [] if tool is None else [FUNCTIONS[tool]]
        agent: Any = AsyncHoldfast(hf, threads).agent(
            AGENT.replace(".", "-"),
            model=Scripted(script, name=MODEL),
            system=SYSTEM,
            tools=tools,
            limits=LIMITS,
            history=False,
        )
        name = f"with-{tool}"
        fill(hf, name, LONG)
        numbers = itertools.count(1)

        def send(words: str, agent: Any = agent, name: str = name) -> None:
            assert loop.run_until_complete(agent.send(name, words)).text == REPLY

        value = calls_of(calls, send, lambda numbers=numbers: asked(next(numbers)))  # type: ignore[misc]
        what = f"agent.send {'without tools' if tool is None else 'with one tool'}, {index}"
        yield Line(what=what, value=value, unit="calls", bar=None if tool is None else at_most(TURN_BAR))
    while threads.endings:
        loop.run_until_complete(threads.endings.pop()())
