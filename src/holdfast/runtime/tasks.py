"""What the agents of one client share: the loop they work on, who listens, what runs, and the models that were named.

A request to stop a turn may come from any process. Those of this one are heard at once; for the others the journal is
looked at now and then, and only at what was written since.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.connect import model_for
from holdfast.core.journal.codec import decode_event
from holdfast.errors import Closed, Draining, HoldfastError
from holdfast.ports import Model
from holdfast.records.reports import Query
from holdfast.runtime.driver import Driver
from holdfast.runtime.listeners import Hub

if TYPE_CHECKING:
    from holdfast.aio.holdfast import AsyncHoldfast

T = TypeVar("T")
LOOK = 0.5
STOPS = ("cancel.requested",)
PATIENCE = 5.0
LEFT = "The turn was left as it stands, live. The same key goes on with it, here or in another process."
EITHER = "A turn that had begun is live, else nothing was written. With the same key it goes on, or begins."
UNWRITTEN = "Nothing was written: send it again."


def crew_of(hf: AsyncHoldfast) -> Crew:
    """The crew of a client, which its views share."""
    found: Crew | None = hf._threads.kept.get("crew")
    if found is None:
        found = hf._threads.kept["crew"] = Crew(hf)
        hf._threads.endings.append(found.close)
    return found


class Sent(Protocol[T]):
    """Something that was begun and can be taken back until it is written."""

    task: asyncio.Task[T] | None

    @property
    def written(self) -> bool:
        """Whether anything of it is in the journal."""

    def take_back(self) -> None: ...


class Crew:
    """Everything at work for one client."""

    def __init__(self, hf: AsyncHoldfast) -> None:
        self._ports, self._threads = hf._client._ports, hf._threads
        self.hub = Hub()
        self.tasks: set[asyncio.Task[Any]] = set()
        self._entrances: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = weakref.WeakValueDictionary()
        self._models: dict[str, Model] = {}
        self._driving: dict[tuple[str, str], Driver] = {}
        self._new: set[tuple[str, str]] = set()
        self._heard: dict[str, Callable[[], None]] = {}
        self._seen: dict[str, int] = {}
        self._watch: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # work

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that goes on when nobody waits for it. A client that shuts down begins nothing."""
        if self._ports.leases.draining:
            work.close()
            raise Draining
        self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    @asynccontextmanager
    async def lining_up(
        self, place: tuple[str, str], waiting: Callable[[], AbstractContextManager[None]]
    ) -> AsyncIterator[Callable[[], None]]:
        """Those who want a turn of a conversation take their places in the order in which they came, one by one."""
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

    async def outcome(self, sending: Sent[T], *, goes_on: bool = True) -> T:
        """What came of work. Who is cancelled takes back what has not begun; who is not hears why the work was.

        Without `goes_on`, work that has begun is left as well when nobody waits for it.
        """
        task = sending.task
        assert task is not None, "it was begun"
        try:
            return await (asyncio.shield(task) if goes_on else task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if not task.cancelled() or (waiting is not None and waiting.cancelling()):
                sending.take_back()
                raise
        said = LEFT if sending.written else UNWRITTEN
        if self._ports.leases.draining:
            raise Draining(said)
        raise Closed(f"The client was closed meanwhile. {said}")

    async def leave(self, patience: float = PATIENCE) -> None:
        """Stop what runs; it stays live and resumable. Work that does not let itself be stopped is left alone."""
        left = set(self.tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=patience)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Whoever began it has it; a listener that left does not want it.

    def soon(self, call: Callable[..., None], *args: Any) -> None:
        """Call something on the loop, from wherever this is."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if asyncio._get_running_loop() is loop:
            call(*args)
            return
        try:
            loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # The loop was closed just now, and whoever listened is gone.

    # stopping

    @contextmanager
    def driving(self, tenant: str, frame: str, driver: Driver) -> Iterator[None]:
        """While a turn is driven, requests to stop it are passed on."""
        self._driving[tenant, frame] = driver
        self._new.add((tenant, frame))
        if tenant not in self._heard:
            self._heard[tenant] = self._ports.observers.add(
                tenant, STOPS[0], lambda event: self.soon(self._stop, tenant, event.facts)
            )
        if self._watch is None and "shared" in self._ports.journal.capabilities:
            self._watch = asyncio.get_running_loop().create_task(self._watching())
            self._watch.add_done_callback(self._ended)
        try:
            yield
        finally:
            self._driving.pop((tenant, frame), None)
            self._new.discard((tenant, frame))

    def _stop(self, tenant: str, facts: Any) -> None:
        driver = self._driving.get((tenant, facts.frame))
        if driver is not None:
            driver.stop()

    async def _watching(self) -> None:
        """Until nothing is driven any more, look for what other processes ask for."""
        try:
            while self._driving:
                await asyncio.sleep(LOOK)
                try:
                    await self._look()
                except HoldfastError:
                    pass  # The journal cannot be read now. The next look may find it again.
            self._forget()
        finally:
            self._watch = None

    async def _look(self) -> None:
        new, tenants = list(self._new), {tenant for tenant, _ in self._driving}
        for tenant, facts in await self._threads.run(self._asked, tenants):
            self._stop(tenant, facts)
        for place in new:  # What was asked for before the first look is not among what came since.
            driver = self._driving.get(place)
            if driver is not None and await self._threads.run(driver.is_stopping):
                driver.stop()
            self._new.discard(place)

    def _asked(self, tenants: set[str]) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        newest = self._ports.journal.position()
        for tenant in tenants:
            after = self._seen.get(tenant, newest)
            while page := self._ports.journal.read(Query(tenant=tenant, after=after, until=newest, types=STOPS)):
                found += [(tenant, decode_event(event).facts) for event in page]
                after = page[-1].seq
            self._seen[tenant] = newest
        return found

    def _forget(self) -> None:
        """Nothing is driven: listen for nobody."""
        for undo in self._heard.values():
            undo()
        self._heard.clear()
        self._seen.clear()

    # models

    async def model(self, given: Any) -> Model:
        """A model, made once for each name."""
        if not isinstance(given, str):
            model: Model = given
            return model
        known = self._models.get(given)
        if known is None:
            known = self._models[given] = await self._threads.run(model_for, given)
        return known

    # the end

    async def close(self) -> None:
        """Leave what runs, live and resumable, and let go of everything."""
        await self.leave(PATIENCE)
        if self._watch is not None:
            self._watch.cancel()
        self._forget()
        for model in self._models.values():
            await model.close()
        self._models.clear()
