"""`await frame.run(…)`: one memoised step for asyncio, by the rules of `flow.steps`.

An async function is awaited on the loop; cancelled, its intent stays open, because nobody
knows how far it came. Any other function runs in a thread, as a whole: cancelling the await
does not stop it, and what it gives is remembered all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from holdfast.aio.threads import SHORT, STEPS, Threads, done_here, gave, settle
from holdfast.client.frame import Frame
from holdfast.flow.stack import steps
from holdfast.flow.stack.steps import Begun

Called = tuple[Begun, Awaitable[Any] | None]


class Step:
    """One run of a step of a frame."""

    def __init__(self, frame: Frame, threads: Threads, key: str, if_interrupted: str) -> None:
        self._threads = threads
        of = frame._ports, frame._acting, frame.id, key
        self._begin: Callable[[], Begun] = partial(steps.begin, *of, if_interrupted)
        self._done: Callable[[str, Any], Any] = partial(steps.done, *of)
        self._failed: Callable[[str, BaseException], None] = partial(steps.failed, *of)
        self._leave: Callable[[], None] = partial(steps.leave, *of)

    async def run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """What the step gives, or gave before."""
        if is_async(fn):
            begun = await self._begun()
            return begun.known[0] if begun.known else await self._awaited(begun.call, partial(fn, *args))
        begun, made = await self._in_thread(fn, args)
        if made is None:
            return begun.known[0]
        return await self._awaited(begun.call, lambda: made)

    # on the loop

    async def _begun(self) -> Begun:
        begin = self._threads.submit(SHORT, self._begin)
        stop = await settle(begin, begin.cancel)
        if stop is None:
            return begin.result()
        if gave(begin) and not begin.result().known:
            # It was not called yet. That is known for sure, so nobody has to be asked.
            await self._settled(partial(self._failed, begin.result().call, stop), stop)
        raise stop

    async def _awaited(self, call: str, make: Callable[[], Awaitable[Any]]) -> Any:
        try:
            value = await make()
        except Exception as error:
            await self._settled(partial(self._failed, call, error))
            raise
        except BaseException:
            self._leave()  # The intent stays open: nobody knows what happened.
            raise
        return await self._settled(partial(self._done, call, value))

    async def _settled(self, work: Callable[[], Any], after: BaseException | None = None) -> Any:
        """What happened is written in any case; a cancellation has its way after that."""
        if isinstance(after, GeneratorExit):
            return done_here(work).result()
        writing = self._threads.must(work)
        stop = await settle(writing)
        if stop is not None:
            raise stop
        return writing.result()

    # in a thread

    async def _in_thread(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Called:
        calling = self._threads.submit(STEPS, partial(self._call, fn, args))
        stop = await settle(calling, lambda: calling.cancel() or True)
        if stop is None:
            return calling.result()
        calling.add_done_callback(self._drop)
        raise stop

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Called:
        begun = self._begin()
        if begun.known:
            return begun, None
        try:
            value = fn(*args)
        except Exception as error:
            self._failed(begun.call, error)
            raise
        except BaseException:
            self._leave()
            raise
        if inspect.isawaitable(value):
            return begun, value  # It was a lambda, say, around an async function.
        return Begun(known=(self._done(begun.call, value),)), None

    def _drop(self, calling: Future[Called]) -> None:
        """Nobody is there any more to await what the function made."""
        if not gave(calling):
            return
        made = calling.result()[1]
        if made is not None:
            self._leave()
            if inspect.iscoroutine(made):
                made.close()


def is_async(fn: Any) -> bool:
    """Whether calling this only makes a coroutine."""
    return inspect.iscoroutinefunction(fn) or (callable(fn) and inspect.iscoroutinefunction(type(fn).__call__))
