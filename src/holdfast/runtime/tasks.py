"""The state that the agents of one client share: event loop, listeners, running tasks and named models.

A request to stop a turn may come from any process. Requests of this process are seen at once; for the others the
journal is polled, reading only new events.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.aio.executor import call_soon, retrieve_exception
from holdfast.connect import make_model
from holdfast.core.journal.codec import decode_event
from holdfast.errors import Closed, Draining, HoldfastError
from holdfast.flow.journal.read import iterate_stored
from holdfast.ports import Model
from holdfast.records.reports import EventQuery
from holdfast.runtime.reply import AgentEvent, EventKind, Reply

if TYPE_CHECKING:
    from holdfast.aio.holdfast import AsyncHoldfast
    from holdfast.runtime.driver import TurnDriver
    from holdfast.runtime.send import AgentSend

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


Notice = AgentEvent | tuple[int, int] | None
"""A live event, the versions up to which the journal has news, or None: poll."""


class ListenerHub:
    """The listeners of this process, by conversation.

    Deltas are relayed only within the process that receives them, in order with journal positions, so that no listener
    receives a reply before its deltas. They are dropped once the reply is in the journal.
    """

    def __init__(self) -> None:
        self._ears: dict[tuple[str, str], set[asyncio.Queue[Notice]]] = {}
        self._said: dict[tuple[str, str], list[str]] = {}
        self._reached: dict[tuple[str, str], tuple[int, int]] = {}

    def publish_versions(self, place: tuple[str, str], until: tuple[int, int]) -> None:
        """Announce that the journal has news up to these versions of the thread and the actor, in order with deltas."""
        self._reached[place] = until
        self._said.pop(place, None)  # The reply with these deltas is in the journal now.
        for ear in self._ears.get(place, ()):
            ear.put_nowait(until)

    def publish_delta(self, place: tuple[str, str], kind: EventKind, text: str) -> None:
        """Relay a delta of a reply to the listeners. Must be called on their event loop."""
        if kind == "delta":
            if place in self._said:
                self._said[place].append(text)
            else:
                self._said[place] = [text]
        elif kind == "reset":
            self._said.pop(place, None)
        if place in self._ears:
            self.publish_event(place, kind, {"name" if kind == "tool_call" else "text": text})

    def publish_event(self, place: tuple[str, str], kind: str, data: dict[str, Any]) -> None:
        """Relay a live event to the listeners. Must be called on their event loop."""
        if kind == "over":
            self._said.pop(place, None)
            self._reached.pop(place, None)
        ears = self._ears.get(place)
        if ears:
            rest = {name: value for name, value in data.items() if name not in ("text", "name")}
            known: Any = kind
            live = AgentEvent(kind=known, text=str(data.get("text", "")), name=data.get("name"), data=rest)
            event = None if kind == "over" else live
            for ear in ears:
                ear.put_nowait(event)

    def listen(self, place: tuple[str, str], *, again: bool = False) -> asyncio.Queue[Notice]:
        """Add a listener; it first receives the journal's position and the deltas of the reply in progress.

        With `again`, it may know a part of those deltas, so a reset comes first.
        """
        ear: asyncio.Queue[Notice] = asyncio.Queue()
        said = "".join(self._said.get(place, ()))
        if said or place in self._reached:
            ear.put_nowait(self._reached.get(place))
        if said and again:
            ear.put_nowait(AgentEvent(kind="reset"))
        if said:
            ear.put_nowait(AgentEvent(kind="delta", text=said))
        self._ears.setdefault(place, set()).add(ear)
        return ear

    def is_followed(self, place: tuple[str, str]) -> bool:
        """Return True if a conversation has listeners."""
        return place in self._ears

    def get_versions(self, place: tuple[str, str]) -> tuple[int, int] | None:
        """Return how far the journal may be read before the next live event; None if nothing is at work here."""
        return self._reached.get(place)

    def stop_listening(self, place: tuple[str, str], ear: asyncio.Queue[Notice]) -> None:
        """Remove a listener."""
        ears = self._ears.get(place, set())
        ears.discard(ear)
        if not ears:
            self._ears.pop(place, None)


def _filter_requested(drivers: list[TurnDriver]) -> list[TurnDriver]:
    """Return the drivers whose turns were asked to stop."""
    return [driver for driver in drivers if driver.has_stop_request()]


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
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(retrieve_exception)
        return task

    @asynccontextmanager
    async def enter_queue(
        self, place: tuple[str, str], waiting: Callable[[], AbstractContextManager[None]]
    ) -> AsyncIterator[Callable[[], None]]:
        """Let senders to one conversation queue one by one, in the order in which they came."""
        entrance = self._entrances.setdefault(place, asyncio.Lock())
        with waiting() if entrance.locked() else nullcontext():
            await entrance.acquire()
        with ExitStack() as held:
            held.callback(entrance.release)
            yield held.close

    async def await_outcome(self, sending: AgentSend[T], *, goes_on: bool = True) -> Reply[T]:
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

    def call_on_loop(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function on the event loop, from any thread."""
        if self._loop is not None and asyncio._get_running_loop() is self._loop:
            call(*args)
        elif self._loop is not None:
            call_soon(self._loop, call, *args)

    def open_relay(self, place: tuple[str, str]) -> Callable[[EventKind, str], None]:
        """Return a function that relays the deltas of a reply, from any thread. It is called for every few letters."""
        hub, loop, get_loop = self.hub, self._loop, asyncio._get_running_loop
        said, ears = hub._said, hub._ears

        def relay(kind: EventKind, text: str) -> None:
            if get_loop() is loop:
                if kind == "delta" and place in said and place not in ears:
                    said[place].append(text)  # As `publish_delta` does for most deltas.
                else:
                    hub.publish_delta(place, kind, text)
            elif loop is not None:
                call_soon(loop, hub.publish_delta, place, kind, text)

        return relay

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
            self._watch.add_done_callback(retrieve_exception)
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
                with suppress(HoldfastError):  # The journal cannot be read now. The next poll may succeed.
                    await self._poll_stops()
            self._unsubscribe()
        finally:
            self._watch = None

    async def _poll_stops(self) -> None:
        new, tenants = list(self._new), {tenant for tenant, _ in self._driving}
        for tenant, facts in await self.threads.run(self._read_stops, tenants):
            self._stop_driver(tenant, facts)
        # Requests made before the first poll are not among the new events.
        drivers = [driver for place in new if (driver := self._driving.get(place)) is not None]
        for driver in await self.threads.run(_filter_requested, drivers) if drivers else ():
            driver.stop()
        self._new.difference_update(new)

    def _read_stops(self, tenants: set[str]) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        newest = self._env.journal.position()
        for tenant in tenants:
            query = EventQuery(tenant=tenant, after=self._seen.get(tenant, newest), until=newest, types=STOP_EVENTS)
            found += [(tenant, decode_event(event).facts) for event in iterate_stored(self._env.journal, query)]
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

    def identify_model(self, given: Any) -> object:
        """Return a value that changes if a model or its credentials do, as far as it tells."""
        model = self._models.get(given) if isinstance(given, str) else given
        return getattr(model, "identity", id(model))

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
