"""`async with hf.frame(…) as frame:` the block of `client/frame.py`, by the same table, for asyncio.

Once the block is left, the frame is left and its lease released, even if the task is cancelled again at every await,
or the coroutine is closed. If cancelled while entering, a frame that was pushed already stays live with its lease
released: its key continues it.

In `frame.run` an async function is awaited on the loop; if it is cancelled, its intent stays open, because its outcome
is unknown. Any other function runs in a thread, as a whole: cancelling the await does not stop it, and its value is
remembered all the same.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar, Unpack, overload

from holdfast.aio import executor
from holdfast.aio.callbacks import run_search, run_with_rules
from holdfast.aio.executor import AsyncTwin, ThreadPools, make_async, run_pack
from holdfast.client.frame import Frame, return_type
from holdfast.client.history_tools import MAX_TOKENS, HistoryTools
from holdfast.client.options import AppendOptions
from holdfast.core.values import convert_value
from holdfast.errors import Refused
from holdfast.flow.frames import steps
from holdfast.flow.frames.steps import RunStart
from holdfast.records.frames import FrameLimits, Limits, TokenBudget
from holdfast.records.messages import Message, ToolDef

T = TypeVar("T")


class CancellableRootFrame(Frame):
    """A root frame whose opening can be given up while it waits for another owner, and not after."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gate = threading.Lock()
        self._waited = self._given_up = False

    def give_up(self) -> bool:
        """Give the opening up; return True if it was in time, so that nothing will be written."""
        with self._gate:
            self._given_up = not self._waited
            return self._given_up

    def _check_before_write(self) -> None:
        with self._gate:
            if self._given_up:
                raise Refused("The task was cancelled before the frame was pushed. Nothing was written.")
            self._waited = True


class AsyncFrame(AsyncTwin[Frame]):
    """A live frame for an `async with` block, created by `hf.frame` or `frame.frame`."""

    @overload
    async def append(self, message: list[Any], **options: Unpack[AppendOptions]) -> list[Message]: ...

    @overload
    async def append(self, message: Any, **options: Unpack[AppendOptions]) -> Message: ...

    async def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        policy: str | None = None,
        key: str | None = None,
    ) -> Message | list[Message]:
        """See Frame.append. Async rules are awaited here."""
        return await run_with_rules(
            self._threads, lambda: self._sync.append(message, files=files, partial=partial, policy=policy, key=key)
        )

    pack = make_async(Frame.pack, run_pack)

    async def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> AsyncHistoryTools:
        """See Frame.history_tools. Their executor is awaited."""
        tools = await self._threads.run(self._sync.history_tools, max_tokens=max_tokens)
        return AsyncHistoryTools(tools, self._threads)

    messages = make_async(Frame.messages)

    # entering and leaving

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """See Frame.open. Waiting for another owner can be cancelled at any time."""
        opening = self._threads.submit(executor.WAITING, self._sync.open)
        give_up = self._sync.give_up if isinstance(self._sync, CancellableRootFrame) else lambda: False
        stop = await executor.settle(opening, lambda: opening.cancel() or give_up())
        if stop is None:
            return opening.result()
        if executor.has_result(opening):
            await self.leave(stop)
        raise stop

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.leave(error)

    async def leave(self, error: BaseException | None = None) -> None:
        """See Frame.leave. Returns, or raises a cancellation, only once the frame is left."""
        await executor.leave_in_thread(self._threads, self._sync, error)

    # properties

    @property
    def id(self) -> str:
        """The frame's id."""
        return self._sync.id

    @property
    def scope(self) -> str:
        """The scope of the frame."""
        return self._sync.scope

    info = make_async(Frame.info)

    async def status(self) -> str:
        """See Frame.status."""
        return await self._threads.run(lambda: self._sync.status)

    async def tokens(self) -> TokenBudget:
        """See Frame.tokens."""
        return await self._threads.run(lambda: self._sync.tokens)

    async def left(self) -> int | None:
        """See Frame.left."""
        return await self._threads.run(lambda: self._sync.left)

    async def limits(self) -> FrameLimits:
        """See Frame.limits."""
        return await self._threads.run(lambda: self._sync.limits)

    # work

    def frame(
        self,
        goal: str,
        *,
        key: str | None = None,
        inputs: Any = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        inherit: Sequence[str] = (),
        on_error: str = "fail",
    ) -> AsyncFrame:
        """See Frame.frame. Returns a child for its own `async with` block."""
        child = self._sync.frame(
            goal, key=key, inputs=inputs, tokens=tokens, limits=limits, inherit=inherit, on_error=on_error
        )
        return AsyncFrame(child, self._threads)

    @overload
    async def run(
        self, fn: Callable[..., Awaitable[T]], *args: Any, key: str, if_interrupted: str = "ask", as_: Any = None
    ) -> T: ...

    @overload
    async def run(
        self, fn: Callable[..., T], *args: Any, key: str, if_interrupted: str = "ask", as_: Any = None
    ) -> T: ...

    async def run(
        self, fn: Callable[..., Any], *args: Any, key: str, if_interrupted: str = "ask", as_: Any = None
    ) -> Any:
        """See Frame.run. An async function is awaited here, any other runs in a thread."""
        kind = return_type(fn, as_)
        return convert_value(await AsyncStepRun(self._sync, self._threads, key, if_interrupted).run(fn, args), kind)

    result = make_async(Frame.result)
    value = make_async(Frame.value)
    spend = make_async(Frame.spend)
    reserve = make_async(Frame.reserve)
    release = make_async(Frame.release)
    attach = make_async(Frame.attach)
    detach = make_async(Frame.detach)

    # questions

    suspend = make_async(Frame.suspend)
    ask = make_async(Frame.ask)


CalledStep = tuple[RunStart, Awaitable[Any] | None]


class AsyncStepRun:
    """One run of a step of a frame."""

    def __init__(self, frame: Frame, threads: ThreadPools, key: str, if_interrupted: str) -> None:
        self._threads = threads
        of = frame.env, frame.id, key
        self._begin: Callable[[], RunStart] = partial(steps.begin_step, *of, if_interrupted)
        self._done: Callable[[str, Any], Any] = partial(steps.finish_step, *of)
        self._failed: Callable[[str, BaseException], None] = partial(steps.fail_step, *of)
        self._leave: Callable[[], None] = partial(steps.leave_step, *of)

    async def run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return the step's value, from this run or an earlier one."""
        if is_async(fn):
            begun = await self._begin_on_loop()
            return begun.known[0] if begun.known else await self._await_call(begun.call, partial(fn, *args))
        begun, made = await self._run_in_thread(fn, args)
        if made is None:
            return begun.known[0]
        return await self._await_call(begun.call, lambda: made)

    # on the loop

    async def _begin_on_loop(self) -> RunStart:
        begin = self._threads.submit(executor.SHORT, self._begin)
        stop = await executor.settle(begin, begin.cancel)
        if stop is None:
            return begin.result()
        if executor.has_result(begin) and not begin.result().known:
            # The function was not called yet, for certain, so no question is needed.
            await self._write_outcome(partial(self._failed, begin.result().call, stop), stop)
        raise stop

    async def _await_call(self, call: str, make: Callable[[], Awaitable[Any]]) -> Any:
        try:
            value = await make()
        except Exception as error:
            await self._write_outcome(partial(self._failed, call, error))
            raise
        except BaseException:
            self._leave()  # The intent stays open: the outcome is unknown.
            raise
        return await self._write_outcome(partial(self._done, call, value))

    async def _write_outcome(self, work: Callable[[], Any], after: BaseException | None = None) -> Any:
        """Write an outcome in any case; a cancellation is raised after that."""
        if isinstance(after, GeneratorExit):
            return executor.run_here(work).result()
        writing = self._threads.submit_or_run(work)
        stop = await executor.settle(writing)
        if stop is not None:
            raise stop
        return writing.result()

    # in a thread

    async def _run_in_thread(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> CalledStep:
        calling = self._threads.submit(executor.STEPS, partial(self._call, fn, args))
        stop = await executor.settle(calling, lambda: calling.cancel() or True)
        if stop is None:
            return calling.result()
        calling.add_done_callback(self._drop_awaitable)
        raise stop

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> CalledStep:
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
            return begun, value  # A lambda around an async function, for example.
        return RunStart(known=(self._done(begun.call, value),)), None

    def _drop_awaitable(self, calling: Future[CalledStep]) -> None:
        """Drop an awaitable that the function returned and that no caller awaits any more."""
        if not executor.has_result(calling):
            return
        made = calling.result()[1]
        if made is not None:
            self._leave()
            if inspect.iscoroutine(made):
                made.close()


def is_async(fn: Any) -> bool:
    """Return True if calling the function only makes a coroutine."""
    return inspect.iscoroutinefunction(fn) or (callable(fn) and inspect.iscoroutinefunction(type(fn).__call__))


class AsyncHistoryTools(AsyncTwin[HistoryTools]):
    """HistoryTools for asyncio."""

    __slots__ = ()

    @property
    def definitions(self) -> list[ToolDef]:
        """See HistoryTools.definitions."""
        return self._sync.definitions

    @property
    def names(self) -> frozenset[str]:
        """See HistoryTools.names."""
        return self._sync.names

    async def run(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """See HistoryTools.run."""
        return await run_search(self._threads, lambda: self._sync.run(name, arguments))
