"""The state that the agents of one client share: event loop, listeners, running tasks and named models.

A request to stop a turn may come from any process. Requests of this process are seen at once; for the others the
journal is polled, reading only new events.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.connect import make_model
from holdfast.core.journal.codec import decode_event
from holdfast.errors import Closed, Draining, HoldfastError
from holdfast.ports import Model
from holdfast.records.reports import EventQuery
from holdfast.runtime.driver import TurnDriver
from holdfast.runtime.listeners import ListenerHub

if TYPE_CHECKING:
    from holdfast.aio.holdfast import AsyncHoldfast

T = TypeVar("T")
STOP_POLL_SECONDS = 0.5
STOP_EVENTS = ("cancel.requested",)
CLOSE_TIMEOUT = 5.0
LEFT_LIVE_ADVICE = "The turn was left as it stands, live. The same key goes on with it, here or in another process."
UNCERTAIN_ADVICE = "A turn that had begun is live, else nothing was written. With the same key it goes on, or begins."
UNWRITTEN_ADVICE = "Nothing was written: send it again."


def get_agent_tasks(hf: AsyncHoldfast) -> AgentTasks:
    """Return the shared state of a client and all of its views."""
    found: AgentTasks | None = hf._threads.kept.get("crew")
    if found is None:
        found = hf._threads.kept["crew"] = AgentTasks(hf)
        hf._threads.endings.append(found.close)
    return found


class StartedWork(Protocol[T]):
    """Work that was started and can be withdrawn until it is written."""

    task: asyncio.Task[T] | None

    @property
    def is_written(self) -> bool:
        """True if any of it is in the journal."""

    def withdraw(self) -> None: ...


class AgentTasks:
    """All work in progress for one client."""

    def __init__(self, hf: AsyncHoldfast) -> None:
        self._env, self.threads = hf.env, hf._threads
        self.hub = ListenerHub()
        self.tasks: set[asyncio.Task[Any]] = set()
        self._entrances: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = weakref.WeakValueDictionary()
        self._models: dict[str, Model] = {}
        self._driving: dict[tuple[str, str], TurnDriver] = {}
        self._new: set[tuple[str, str]] = set()
        self._heard: dict[str, Callable[[], None]] = {}
        self._seen: dict[str, int] = {}
        self._watch: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # Work

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that goes on even without a waiter. Refused once the client shuts down."""
        if self._env.leases.draining:
            work.close()
            raise Draining
        self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._discard_task)
        return task

    @asynccontextmanager
    async def enter_queue(
        self, place: tuple[str, str], waiting: Callable[[], AbstractContextManager[None]]
    ) -> AsyncIterator[Callable[[], None]]:
        """Let senders to one conversation queue one by one, in the order in which they came."""
        entrance = self._entrances.setdefault(place, asyncio.Lock())
        with waiting() if entrance.locked() else nullcontext():
            await entrance.acquire()
        held = [entrance]

        def lined() -> None:
            if held:
                held.pop().release()

        try:
            yield lined
        finally:
            lined()

    async def await_outcome(self, sending: StartedWork[T], *, goes_on: bool = True) -> T:
        """Wait for a send. If the waiter is cancelled, withdraw a send that has not started.

        If the send itself was cancelled, raise `Draining` or `Closed`. Without `goes_on`, cancelling the waiter also
        cancels work that has started.
        """
        task = sending.task
        assert task is not None, "it was begun"
        try:
            return await (asyncio.shield(task) if goes_on else task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if not task.cancelled() or (waiting is not None and waiting.cancelling()):
                sending.withdraw()
                raise
        said = LEFT_LIVE_ADVICE if sending.is_written else UNWRITTEN_ADVICE
        if self._env.leases.draining:
            raise Draining(said)
        raise Closed(f"The client was closed meanwhile. {said}")

    async def cancel_all(self, patience: float = CLOSE_TIMEOUT) -> None:
        """Cancel all tasks; their turns stay live and resumable. A task that ignores the cancellation is abandoned."""
        left = set(self.tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=patience)

    def _discard_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Mark it as retrieved: the waiter has it, and a listener that left does not need it.

    def call_on_loop(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function on the event loop, from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if asyncio._get_running_loop() is loop:
            call(*args)
            return
        try:
            loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # The loop was closed just now, and its listeners are gone.

    # Stop requests

    @contextmanager
    def track_driver(self, tenant: str, frame: str, driver: TurnDriver) -> Iterator[None]:
        """Forward stop requests to a driver while the block runs."""
        self._driving[tenant, frame] = driver
        self._new.add((tenant, frame))
        if tenant not in self._heard:
            self._heard[tenant] = self._env.observers.add(
                tenant, STOP_EVENTS[0], lambda event: self.call_on_loop(self._stop_driver, tenant, event.facts)
            )
        if self._watch is None and "shared" in self._env.journal.capabilities:
            self._watch = asyncio.get_running_loop().create_task(self._watch_stops())
            self._watch.add_done_callback(self._discard_task)
        try:
            yield
        finally:
            self._driving.pop((tenant, frame), None)
            self._new.discard((tenant, frame))

    def _stop_driver(self, tenant: str, facts: Any) -> None:
        driver = self._driving.get((tenant, facts.frame))
        if driver is not None:
            driver.stop()

    async def _watch_stops(self) -> None:
        """Poll for stop requests of other processes while any turn is driven."""
        try:
            while self._driving:
                await asyncio.sleep(STOP_POLL_SECONDS)
                try:
                    await self._poll_stops()
                except HoldfastError:
                    pass  # The journal cannot be read now. The next poll may succeed.
            self._unsubscribe()
        finally:
            self._watch = None

    async def _poll_stops(self) -> None:
        new, tenants = list(self._new), {tenant for tenant, _ in self._driving}
        for tenant, facts in await self.threads.run(self._read_stops, tenants):
            self._stop_driver(tenant, facts)
        for place in new:  # Requests made before the first poll are not among the new events.
            driver = self._driving.get(place)
            if driver is not None and await self.threads.run(driver.has_stop_request):
                driver.stop()
            self._new.discard(place)

    def _read_stops(self, tenants: set[str]) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        newest = self._env.journal.position()
        for tenant in tenants:
            after = self._seen.get(tenant, newest)
            while page := self._env.journal.read(
                EventQuery(tenant=tenant, after=after, until=newest, types=STOP_EVENTS)
            ):
                found += [(tenant, decode_event(event).facts) for event in page]
                after = page[-1].seq
            self._seen[tenant] = newest
        return found

    def _unsubscribe(self) -> None:
        """End all subscriptions: no turn is driven."""
        for undo in self._heard.values():
            undo()
        self._heard.clear()
        self._seen.clear()

    # Models

    async def get_model(self, given: Any) -> Model:
        """Return a model, created once for each name."""
        if not isinstance(given, str):
            model: Model = given
            return model
        known = self._models.get(given)
        if known is None:
            known = self._models[given] = await self.threads.run(make_model, given)
        return known

    # Closing

    async def close(self) -> None:
        """Cancel all tasks, leaving their turns live and resumable, and release everything."""
        await self.cancel_all(CLOSE_TIMEOUT)
        if self._watch is not None:
            self._watch.cancel()
        self._unsubscribe()
        for model in self._models.values():
            await model.close()
        self._models.clear()
