"""Taking up what was left: turns of dead processes, turns whose question is answered, turns that a timer wakes.

It looks at what is live and does what anybody with the same agent could do by hand. A turn that somebody works on is
left to that one; one that fails again and again is tried ever more rarely, and never given up.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.errors import ActorBusy, Draining, HoldfastError, InvalidValue
from holdfast.flow.turn import stirring
from holdfast.flow.turn.stirring import Stirring
from holdfast.runtime.crew import crew_of

if TYPE_CHECKING:
    from holdfast.aio.holdfast import AsyncHoldfast

LONGEST_PAUSE = 300.0


class Recovering:
    """A background task that goes on with what is due. Use it in an `async with` block."""

    def __init__(
        self,
        hf: AsyncHoldfast,
        agent: str,
        take_up: Callable[[str, str], Awaitable[Any]],
        *,
        every: float = 1.0,
        at_once: int = 16,
    ) -> None:
        _check(every, at_once)
        self._hf, self._agent, self._take_up = hf, agent, take_up
        self._every, self._slots = every, asyncio.Semaphore(at_once)
        self._crew = crew_of(hf)
        self._task: asyncio.Task[None] | None = None
        self._at_work: set[str] = set()
        self._failures: dict[str, tuple[int, float]] = {}
        self._news, self._warned = asyncio.Event(), False
        self.taken_up = 0
        """How many turns it has gone on with."""

    async def __aenter__(self) -> Self:
        self._undo = self._hf.on("question.answered", lambda event: self._news.set())
        self._task = asyncio.get_running_loop().create_task(self._running())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _running(self) -> None:
        while not self._hf._client._ports.leases.draining:
            try:
                await self.look()
            except Draining:
                return
            except HoldfastError:
                pass  # The journal cannot be read now. The next look may find it again.
            except Exception as error:  # noqa: BLE001  # One look that failed is not to be the last one.
                self._warn(error)
            try:
                await asyncio.wait_for(self._news.wait(), self._every)
            except TimeoutError:
                pass
            self._news.clear()

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"Looking for turns to take up failed: {error!r:.200}", RuntimeWarning, stacklevel=2)

    async def look(self) -> int:
        """Look once, and begin with what is due; gives how many turns that were."""
        client = self._hf._client
        due = await self._hf._threads.run(stirring.stirring, client._ports, client._acting, self._agent)
        now, begun = self._now(), 0
        here = {turn.frame for turn in due} | self._at_work
        self._failures = {frame: counted for frame, counted in self._failures.items() if frame in here}
        for turn in due:
            if turn.frame in self._at_work or self._failures.get(turn.frame, (0, 0.0))[1] > now:
                continue
            self._at_work.add(turn.frame)
            self._crew.begin(self._gone_on(turn))
            begun += 1
        return begun

    def _now(self) -> float:
        return self._hf._client._ports.clock.monotonic()

    async def _gone_on(self, turn: Stirring) -> None:
        try:
            async with self._slots:
                await self._take_up(turn.session, turn.thread)
            self._failures.pop(turn.frame, None)
            self.taken_up += 1
        except (ActorBusy, Draining):
            pass  # Somebody works on it, or it is not for this process any more.
        except Exception:  # noqa: BLE001  # It is journaled where it happened; here it only counts.
            times = self._failures.get(turn.frame, (0, 0.0))[0] + 1
            pause = min(self._every * 2.0**times, LONGEST_PAUSE)
            self._failures[turn.frame] = (times, self._now() + pause)
        finally:
            self._at_work.discard(turn.frame)


def _check(every: float, at_once: int) -> None:
    number = isinstance(every, int | float) and not isinstance(every, bool)
    if not number or not math.isfinite(every) or every <= 0:
        raise InvalidValue(f"every must be a number of seconds above 0, not {every!r:.40}.")
    if not isinstance(at_once, int) or isinstance(at_once, bool) or at_once < 1:
        raise InvalidValue(f"at_once must be a whole number of turns, 1 or more, not {at_once!r:.40}.")
