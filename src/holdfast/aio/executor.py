"""The asyncio client's thread pools, and opening, packing and closing in them.

The pools are the client's own: asyncio's is small and shared. There are three, so that nothing queues behind slow
work: short operations on the journal, waiting for other processes, and user callbacks. Releasing a lease is a short
operation.

User code also runs within operations: rules, predicates, event callbacks. If it waits for an agent, its thread is
blocked for as long; so the work it waits for runs in pools of the next level, and never queues behind it.

A process that exits waits for its short operations but not for user callbacks: those cannot be stopped, and their
journaled intents say what to do about them. A callback that hangs is abandoned, and its thread is replaced.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from itertools import islice
from types import GenericAlias
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from holdfast.client.frame import Frame
from holdfast.client.pack import ContextPack
from holdfast.errors import Closed, ToolFailed
from holdfast.flow.turns.engine import TurnEngine
from holdfast.records.events.envelope import Event

THREADS = 16
SHORT, WAITING, STEPS = "holdfast", "holdfast-wait", "holdfast-step"

P = ParamSpec("P")
T = TypeVar("T")

_level: ContextVar[int] = ContextVar("holdfast_level", default=0)
"""The nesting depth: how many pool threads wait, each for the next, for the work done here."""
_thread = threading.local()


@contextmanager
def enter_next_level() -> Iterator[None]:
    """Run a block whose work this thread waits for: on the next level if this is a pool thread."""
    level = getattr(_thread, "level", None)
    token = _level.set(_level.get() if level is None else level + 1)
    try:
        yield
    finally:
        _level.reset(token)


class ThreadPools:
    """The thread pools of a client. A forked child creates them anew, because threads do not survive a fork."""

    def __init__(self) -> None:
        self._pid = -1
        self._pools: dict[str, Executor] = {}
        self.closed = False
        self.endings: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Callbacks that release resources before the client is closed."""
        self.kept: dict[str, Any] = {}
        """Objects that belong to the client and are dropped with it."""

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run work in a thread. Once begun, it goes on even if the await is cancelled."""
        return self.cross(SHORT, partial(work, *args, **kwargs))

    def run_waiting(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run work that may have to wait for others; otherwise as `run`."""
        return self.cross(WAITING, partial(work, *args, **kwargs))

    def cross(self, pool: str, work: Callable[[], T]) -> Crossing[T]:
        """Run work in a thread of a pool, and return the future of its outcome on this loop."""
        made: Crossing[T] = Crossing(loop=asyncio.get_running_loop())
        made.begun = self.submit(pool, partial(_run_for, made, work))
        return made

    def submit(self, pool: str, work: Callable[[], T]) -> Future[T]:
        """Submit work to a pool, for `settle`, on the level of the work that it is done for."""
        if self.closed:
            raise Closed
        if self._pid != os.getpid():
            self._pid, self._pools = os.getpid(), {}
        is_callback = pool.startswith(STEPS)
        level = None if is_callback else _level.get()  # Nothing queues behind user callbacks.
        name = f"{pool}-{level}" if level else pool
        if name not in self._pools:
            made = CallbackPool(THREADS, name) if is_callback else ThreadPoolExecutor(THREADS, thread_name_prefix=name)
            self._pools[name] = made
            if is_callback:  # Its idle threads refer to it, so it would never be collected.
                weakref.finalize(self, made.shutdown)
        return self._pools[name].submit(_run_at_level, partial(copy_context().run, work), level)

    async def run_callback(self, pool: str, work: Callable[[], T]) -> T:
        """Run a user callback. If the await is cancelled, it goes on but its pool thread is replaced."""
        made = self.cross(pool, work)
        try:
            return await made
        except asyncio.CancelledError:
            chosen = self._pools.get(pool)
            if isinstance(chosen, CallbackPool) and made.begun is not None:
                chosen.abandon(made.begun)
            raise

    def submit_or_run(self, work: Callable[[], T]) -> Future[T]:
        """Submit work that has to be done; run it right here if the pools are closed."""
        try:
            return self.submit(SHORT, work)
        except (Closed, RuntimeError):
            return run_here(work)

    def close(self) -> None:
        """Accept no more work; running work finishes."""
        self.closed = True
        if self._pid == os.getpid():
            for pool in self._pools.values():
                pool.shutdown(wait=False)


class Crossing(asyncio.Future[T]):
    """The outcome of work in a thread, for the loop that waits for it. Cancelling it withdraws work not begun.

    It does what `asyncio.wrap_future` does, in a third of the calls: no listener but the loop is ever added.
    """

    begun: Future[None] | None = None

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the wait, and the work unless it has begun."""
        if self.begun is not None:
            self.begun.cancel()
        return super().cancel(msg)


def _run_for(waiter: Crossing[T], work: Callable[[], T]) -> None:
    """Run work in this thread, and hand its outcome to the waiter's loop."""
    failure: BaseException | None = None
    value: Any = None
    try:
        value = work()
    except BaseException as error:  # noqa: BLE001  # Raised where the future is awaited.
        failure = error
    try:
        call_soon(waiter.get_loop(), _settle_waiter, waiter, value, failure)
    finally:
        del waiter, failure, value  # The failure's traceback refers to this frame.


def _settle_waiter(waiter: Crossing[T], value: T, failure: BaseException | None) -> None:
    if waiter.done():
        return  # The wait was cancelled.
    if failure is None:
        waiter.set_result(value)
    else:
        waiter.set_exception(failure)


def _run_at_level(work: Callable[[], T], level: int | None) -> T:
    before, _thread.level = getattr(_thread, "level", None), level
    try:
        return work()
    finally:
        _thread.level = before


def run_here(work: Callable[[], T]) -> Future[T]:
    """Run work in this thread, and return its outcome as a future."""
    done: Future[T] = Future()
    _run_into_future(done, work)
    return done


def _run_into_future(made: Future[T], work: Callable[[], T]) -> None:
    if not made.set_running_or_notify_cancel():
        return
    try:
        made.set_result(work())
    except BaseException as error:  # noqa: BLE001  # Raised where the future is read.
        made.set_exception(error)


async def settle(work: Future[Any], abandon: Callable[[], bool] = lambda: False) -> BaseException | None:
    """Wait until work is done, however often the task is cancelled meanwhile.

    Returns what interrupted the wait, for the caller to raise once it has cleaned up. Some scopes cancel again at every
    await, so a shielded second await would not be enough. `abandon` is called at each interruption and returns True if
    the work can be left alone after all.
    """
    loop, finished = asyncio.get_running_loop(), asyncio.Event()
    work.add_done_callback(lambda _: call_soon(loop, finished.set))
    stop: BaseException | None = None
    while not finished.is_set():
        try:
            await finished.wait()
        except asyncio.CancelledError as error:
            stop = stop or error
            if abandon():
                return stop
        except GeneratorExit as error:  # The coroutine is being closed: it may not await any more.
            if not abandon():
                futures.wait([work])
            return error
    return stop


def has_result(work: Future[T]) -> bool:
    """Return True if work is done, with a result."""
    return work.done() and not work.cancelled() and work.exception() is None


async def leave_in_thread(threads: ThreadPools, block: Frame | TurnEngine, error: BaseException | None) -> None:
    """Leave a block. Returns, or raises a cancellation, only once it is left."""
    if isinstance(error, GeneratorExit):
        return block.leave(error)  # A coroutine that is being closed may not await: it is one commit.
    leaving = threads.submit_or_run(partial(block.leave, error))
    stop = await settle(leaving)
    if stop is None or not (error is None or isinstance(error, Exception)):
        return leaving.result()  # The error that ends the block ends the task too, and is raised unchanged.
    failure = leaving.exception()
    if failure is not None:
        stop.add_note(f"Frame {block.id} could not be ended: {failure}")
    raise stop


def call_on_loop(callback: Callable[[Event], object]) -> Callable[[Event], object]:
    """Wrap a callback, which may be async, so that it is called on the running loop, from any thread."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return callback
    tasks: set[asyncio.Task[Any]] = set()

    def call(event: Event) -> None:
        made = callback(event)
        if inspect.iscoroutine(made):
            task = loop.create_task(made)
            tasks.add(task)  # The loop itself keeps only a weak reference.
            task.add_done_callback(tasks.discard)

    return lambda event: call_soon(loop, call, event)


def retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Mark an exception as retrieved, so that the loop does not log it: its waiter has it, or it has none."""
    if not done.cancelled():
        done.exception()


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> None:
    """Call a function on a loop, from any thread; do nothing if the loop is closed, since its waiters are gone."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        pass


MAX_ABANDONED = 256
"""The most abandoned callbacks that may still run. Beyond that nothing is started."""


class CallbackPool(Executor):
    """A thread pool that the process does not wait for at exit, whatever runs in it.

    A callback that hangs can be abandoned before that: its thread is lost, and another takes its place.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._news = threading.Condition()
        self._left: set[Future[Any]] = set()
        self._begun = self._named = self._free = 0
        self._over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start a callback, or queue it."""
        made: Future[T] = Future()
        with self._news:
            if self._over:
                raise RuntimeError("This pool begins nothing more.")
            if len(self._left) >= MAX_ABANDONED:
                raise ToolFailed(
                    f"Too many tools hang: {len(self._left)} were left after their time and still run. Nothing was "
                    "begun. Correct them, or start the process again."
                )
            self._work.append((made, partial(fn, *args, **kwargs)))
            self._wake_thread()
        return made

    def abandon(self, work: Future[Any]) -> None:
        """Abandon a callback that has begun, and replace its thread."""
        with self._news:
            if work.running() and work not in self._left:
                self._left.add(work)
                self._begun -= 1
                self._wake_thread()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work. Queued callbacks still run, if the process lasts that long."""
        with self._news:
            self._over = True
            self._news.notify_all()

    def _wake_thread(self) -> None:
        if len(self._work) <= self._free:
            self._news.notify()
        elif self._begun < self._most:
            self._begun, self._named = self._begun + 1, self._named + 1
            threading.Thread(target=self._serve_queue, name=f"{self._name}_{self._named}", daemon=True).start()

    def _serve_queue(self) -> None:
        while True:
            with self._news:
                while not self._work and not self._over:
                    self._free += 1
                    self._news.wait()
                    self._free -= 1
                if not self._work:
                    return
                made, work = self._work.popleft()
            _run_into_future(made, work)
            with self._news:
                if made in self._left:  # Another thread has taken this one's place.
                    self._left.discard(made)
                    return
            del made, work  # They refer to the result.


class _Closable(Protocol):
    def close(self) -> None: ...


class _AsyncClosable(Protocol):
    async def close(self) -> None: ...


ClosableT = TypeVar("ClosableT", bound=_AsyncClosable)


class AsyncOpener(Generic[ClosableT]):
    """A client or store being opened: `hf = await opening`, or `async with opening as hf`, which also closes it."""

    def __init__(self, make: Callable[[], _Closable], edge: Callable[[Any, ThreadPools], ClosableT]) -> None:
        self._make = make
        self._edge = edge
        self._opened: ClosableT | None = None

    async def _open(self) -> ClosableT:
        threads = ThreadPools()
        opening = asyncio.ensure_future(threads.run(self._make))
        try:
            made = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unclaimed)
            raise
        self._opened = self._edge(made, threads)
        return self._opened

    def __getattr__(self, name: str) -> Any:
        """Explain a missing attribute: the caller probably wants the object that is being opened."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"It is not open yet, so it has no {name}. "
            "Open it with `async with holdfast.open_async(…) as hf`, or `hf = await holdfast.open_async(…)`."
        )

    def __await__(self) -> Generator[Any, None, ClosableT]:
        return self._open().__await__()

    async def __aenter__(self) -> ClosableT:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()


def _close_unclaimed(opening: asyncio.Future[_Closable]) -> None:
    """Close an object whose caller was cancelled, so that its files do not stay open."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def close_with_pools(threads: ThreadPools, close: Callable[[], None]) -> None:
    """Close an object and its threads, even if the awaiting task is cancelled meanwhile. Twice is fine."""
    if threads.closed:
        return
    while threads.endings:
        await threads.endings.pop()()
    closing = asyncio.ensure_future(threads.run(close))
    try:
        await asyncio.shield(closing)
    finally:
        threads.close()


async def run_pack(threads: ThreadPools, work: Callable[[], ContextPack]) -> ContextPack:
    """Make a pack in a thread, with its images and files loaded, so that rendering does not block on the disk."""
    return await threads.run(lambda: work().load_files())


PAGE = 64


async def iterate_pages(threads: ThreadPools, found: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator over the journal, one crossing per page."""
    more = True
    while more:
        page = await threads.run(lambda: list(islice(found, PAGE)))
        for item in page:
            yield item
        more = len(page) == PAGE


SyncT = TypeVar("SyncT")


class AsyncTwin(Generic[SyncT]):
    """The twin of a sync object for asyncio: it calls the object's methods in threads."""

    __slots__ = ("_sync", "_threads")

    def __init__(self, sync: SyncT, threads: ThreadPools) -> None:
        self._sync, self._threads = sync, threads

    def __repr__(self) -> str:
        return f"Async{self._sync!r}"


def make_async(
    method: Callable[Concatenate[Any, P], T],
    run: Callable[[ThreadPools, Callable[[], Any]], Awaitable[Any]] = ThreadPools.run,
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the async twin of a method, with its signature: one crossing, to the object that `_sync` holds."""

    @wraps(method)
    async def twin(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        found: T = await run(self._threads, _bind_arguments(twin, method.__name__, self, args, named))
        return found

    _describe_twin(twin, method)
    return twin


def make_pages(method: Callable[Concatenate[Any, P], Iterator[T]]) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Return the async twin of a method that iterates over the journal: one crossing per page."""

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **named: P.kwargs) -> AsyncIterator[T]:
        return iterate_pages(self._threads, _bind_arguments(twin, method.__name__, self, args, named)())

    item = method.__annotations__["return"].removeprefix("Iterator[").removesuffix("]")
    _describe_twin(twin, method, GenericAlias(AsyncIterator, item))
    return twin


def _describe_twin(twin: Any, method: Callable[..., Any], returned: Any = None) -> None:
    """Give a twin its own name and return annotation; its parameters are the method's."""
    twin.__qualname__, twin.__module__ = f"Async{method.__qualname__}", method.__module__.replace(".client.", ".aio.")
    twin.__annotations__ = method.__annotations__ | ({"return": returned} if returned else {})
    twin.__signature__ = inspect.signature(method).replace(return_annotation=twin.__annotations__["return"])


def _bind_arguments(twin: Any, name: str, self: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Callable[[], Any]:
    """Return the sync call; refuse wrong arguments here, by the twin's name and not from a thread."""
    try:
        twin.__signature__.bind(self, *args, **named)
    except TypeError as error:
        raise TypeError(f"{twin.__qualname__}() {error}") from None
    return partial(getattr(self._sync, name), *args, **named)
