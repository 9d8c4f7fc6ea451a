"""Background recovery: resuming turns of dead processes, turns whose question is answered, and turns woken by a timer.

It finds live turns and does what any holder of the same agent could do by hand, each turn through its own tenant's
view. A turn that is being worked on is left alone; one that keeps failing is retried ever more rarely, but never given
up. One whose model is unknown, or refuses the key or the account, is retried once the model or its credentials have
changed: until then the answer would be the same. Errors go to `on_error`, or become warnings, and are listed in
`failures`.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.core.numbers import is_number
from holdfast.errors import ActorBusy, Draining, HoldfastError, InvalidValue, ModelFailed, Refused, StaleEpoch
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal.artifacts import DAY_MS, collect_artifacts
from holdfast.flow.turns import turns
from holdfast.flow.turns.limits import MENDABLE_KINDS
from holdfast.flow.turns.runnable import RunnableTurn, RunnableTurnWatch
from holdfast.ports import Env
from holdfast.ports.capabilities import ARTIFACTS
from holdfast.records.ids import SessionId, check_id
from holdfast.records.scope import Scope
from holdfast.runtime.tasks import get_agent_tasks

if TYPE_CHECKING:
    from holdfast.aio.holdfast import AsyncHoldfast

LONGEST_PAUSE = 300.0
ALL_TENANTS = "all"


TurnKey = tuple[str, str]
"""A tenant and a frame."""


class RecoveryFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that could not be resumed so far."""

    tenant: str
    session: SessionId
    thread: str
    frame: str
    times: int
    error: Exception
    """The last exception."""


OnError = Callable[[RecoveryFailure], object]


class Recovery:
    """A background task that resumes turns that are due. Use it in an `async with` block."""

    def __init__(
        self,
        hf: AsyncHoldfast,
        agent: str,
        take_up: Callable[[str, str, str], Awaitable[Any]],
        *,
        every: float = 1.0,
        at_once: int = 16,
        tenants: str | Sequence[str] | None = None,
        on_error: OnError | None = None,
        identify: Callable[[], object] = lambda: None,
    ) -> None:
        if on_error is not None and not callable(on_error):
            raise InvalidValue(f"on_error must be a function that is given what failed, not {on_error!r:.40}.")
        if not is_number(every, whole=False) or every <= 0:
            raise InvalidValue(f"every must be a number of seconds above 0, not {every!r:.40}.")
        if not is_number(at_once, least=1):
            raise InvalidValue(f"at_once must be a whole number of turns, 1 or more, not {at_once!r:.40}.")
        client = hf._sync
        self._hf, self._take_up = hf, take_up
        self._wanted = _resolve_tenants(client.env, tenants)
        self._watching = RunnableTurnWatch(client.env, agent, self._wanted)
        self._every, self._slots = every, asyncio.Semaphore(at_once)
        self._crew = get_agent_tasks(hf)
        self._task: asyncio.Task[None] | None = None
        self._at_work: set[TurnKey] = set()
        self._failures: dict[TurnKey, tuple[RecoveryFailure, float]] = {}
        self._unmended: dict[TurnKey, object] = {}
        """Turns that wait for an operator, with the identity of the model that failed."""
        self._on_error, self._identify = on_error, identify
        self._news, self._warned = asyncio.Event(), set[object]()
        self._collect_at = 0.0
        self._heard: dict[str, Callable[[], None]] = {}
        self.taken_up = 0
        """The number of turns resumed."""

    @property
    def failures(self) -> dict[str, RecoveryFailure]:
        """Turns that could not be resumed, by frame, until they are resumed or nothing is left to do."""
        return {failure.frame: failure for failure, _ in list(self._failures.values())}

    async def __aenter__(self) -> Self:
        self._subscribe(self._wanted or ())
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._subscribe(())

    async def _run(self) -> None:
        while not self._hf.env.leases.draining:
            try:
                await self.poll()
                await self._collect()
                self._subscribe(self._wanted or self._watching.tenants)
            except Draining:
                return
            except HoldfastError:
                pass  # The journal cannot be read now. The next poll may succeed.
            except Exception as error:  # noqa: BLE001  # One look that failed is not to be the last one.
                self._warn(None, f"Looking for turns to take up failed: {error!r:.200}")
            try:  # Not wait_for, which loses a cancellation that comes together with news.
                async with asyncio.timeout(self._every):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()

    def _subscribe(self, tenants: Sequence[str]) -> None:
        """Subscribe to answers of these tenants, so that an answer does not wait for the next poll."""
        for gone in self._heard.keys() - set(tenants):
            self._heard.pop(gone)()
        for name in tenants:
            if name not in self._heard:
                self._news.set()  # An answer may have come before the subscription.
                self._heard[name] = self._hf.tenant(name).on("question.answered", lambda event: self._news.set())

    def _warn(self, about: object, text: str) -> None:
        """Warn once about each subject."""
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    async def poll(self) -> int:
        """Look once, start resuming the turns that are due, and return their number."""
        due = {
            (turn.tenant, turn.frame): turn for turn in await self._hf._threads.run(self._watching.find_runnable_turns)
        }
        now, begun = self._hf.env.clock.monotonic(), 0
        self._failures = {one: counted for one, counted in self._failures.items() if one in due or one in self._at_work}
        self._warned = {about for about in self._warned if not isinstance(about, tuple) or about[0] in self._failures}
        self._unmended = {one: model for one, model in self._unmended.items() if one in self._failures}
        identity = self._identify() if self._unmended else None
        for one, turn in due.items():
            if one in self._at_work or (one in self._failures and self._failures[one][1] > now):
                continue
            if one in self._unmended and self._unmended[one] == identity:
                continue
            self._at_work.add(one)
            self._crew.start(self._resume_turn(one, turn))
            begun += 1
        return begun

    async def _collect(self) -> None:
        """Once a day, remove the bodies that dead processes left without an event."""
        env, now = self._hf.env, self._hf.env.clock.monotonic()
        if env.whole and now >= self._collect_at and ARTIFACTS.name in env.journal.capabilities:
            self._collect_at = now + DAY_MS / 1000
            await self._hf._threads.run(collect_artifacts, env)

    async def _resume_turn(self, one: TurnKey, turn: RunnableTurn) -> None:
        try:
            async with self._slots:
                await self._take_up(turn.tenant, turn.session, turn.thread)
            self._failures.pop(one, None)
            self.taken_up += 1
        except (ActorBusy, StaleEpoch, Draining):
            pass  # Another process works on it or has taken it over, or this one is shutting down.
        except Exception as error:  # noqa: BLE001  # Whatever it was, the others go on, and it is tried again.
            if not (isinstance(error, Refused) and await self._has_ended(turn)):
                self._record_failure(one, turn, error)
        finally:
            self._at_work.discard(one)

    async def _has_ended(self, turn: RunnableTurn) -> bool:
        """Return True if others have ended a turn that was due: then nothing failed."""
        client = self._hf._sync
        env = client.env if turn.tenant == client.env.tenant else client.tenant(turn.tenant).env
        actor = turns.turns_place(Scope.thread(turn.session, turn.thread).text).actor
        try:
            state = await self._hf._threads.run(load_current_state, env, actor)
        except HoldfastError:
            return False  # It cannot be read now: report the original error.
        return turn.frame not in state.frames

    def _record_failure(self, one: TurnKey, turn: RunnableTurn, error: Exception) -> None:
        self._unmended.pop(one, None)
        if isinstance(error, ModelFailed) and error.kind in MENDABLE_KINDS:
            self._unmended[one] = self._identify()
        times = self._failures[one][0].times + 1 if one in self._failures else 1
        failure = RecoveryFailure(times=times, error=error, **msgspec.structs.asdict(turn))
        pause = min(self._every * 2.0**times, LONGEST_PAUSE)
        self._failures[one] = (failure, self._hf.env.clock.monotonic() + pause)
        if self._on_error is None:
            text = f"A turn of session {turn.session!r} (frame {turn.frame}) could not be taken up: {error!r:.200}"
            self._warn((one, type(error)), text)
            return
        try:
            self._on_error(failure)
        except Exception as raised:  # noqa: BLE001  # It is the caller's code, and nobody waits here.
            self._warn(type(raised), f"What was given as on_error raised {raised!r:.200}")


def _resolve_tenants(env: Env, wanted: object) -> list[str] | None:
    """Return the tenants to look after; None is all. A tenant's view looks after its own only."""
    if wanted is None:
        return [env.tenant]
    if wanted != ALL_TENANTS and (isinstance(wanted, str) or not isinstance(wanted, Sequence)):
        raise InvalidValue(f'tenants must be a list of names, "all", or None for the agent\'s own, not {wanted!r:.40}.')
    names = None if wanted == ALL_TENANTS else [check_id(name, "tenant") for name in dict.fromkeys(wanted)]
    if not env.whole and names != [env.tenant]:
        raise Refused(
            "These are other tenants' conversations. Ask an agent of the client itself, not of a tenant's view."
        )
    return names
