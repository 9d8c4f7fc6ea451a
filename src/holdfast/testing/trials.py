"""One trial of `kill_everywhere`: a program from a new journal to its end, killed at most once on the way."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.aio.holdfast import AsyncHoldfast, open_async
from holdfast.aio.threads import Threads
from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_sync
from holdfast.connect import assemble, open_journal
from holdfast.errors import Waiting
from holdfast.journal_port import Journal
from holdfast.records.resume import QuestionInfo
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.dying import Life, Story
from holdfast.testing.faults import Died

BETWEEN_LIVES_MS: Final = 1_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `kill_everywhere` was given."""

    run: Callable[..., Any]
    check: Callable[..., Any]
    answer: Callable[..., Any] | None
    world: Callable[[], Any] | None
    open: Callable[[Path], Any] | None
    journal: str
    runs: int

    @property
    def is_async(self) -> bool:
        """Whether the program runs on a loop."""
        return is_async(self.run)


def is_async(fn: Any) -> bool:
    """Whether it must be awaited."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


class _Lasting:
    """A journal in memory that outlives its clients, as a file does."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def close(self) -> None:
        pass


class Trial:
    """All lives of a program, and of the person who answers what it asks."""

    def __init__(self, plan: Plan, die_at: int | None, path: Path) -> None:
        self._plan, self._path = plan, path
        self._clock = FrozenClock()
        self._memory: Any = _Lasting(open_journal("memory:", Settings())) if plan.journal == "memory" else None
        self._world = () if plan.world is None else (plan.world(),)
        self.story = Story(die_at)
        self.lives = self.answered = 0
        self.well = False

    def play(self) -> None:
        """To the end; raises whatever is wrong."""
        ended, waits = False, True
        with self._open(self._path) as person:
            while not ended or waits:
                if self.lives == self._plan.runs:
                    raise AssertionError(f"it was run {self.lives} times and has not come to its end.")
                self._clock.advance(BETWEEN_LIVES_MS)
                ended = self._lived()
                waits = self._waits(person)
            if self._checked(person) is False:
                raise AssertionError("check gave False.")
        self.well = True

    # lives

    def _lived(self) -> bool:
        """One life; whether the program came to its end in it."""
        self.lives += 1
        life = Life(self.story)
        live = self._live_on_a_loop if self._plan.is_async else self._live
        try:
            contextvars.copy_context().run(life.within, lambda: live(life))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if not life.dead and not _is_waiting(error):
                raise
            return False
        return not life.dead

    def _live(self, life: Life) -> None:
        mortal = life.client((self._plan.open or self._open)(self._path))
        try:
            self._plan.run(mortal, *self._world)
        finally:
            try:
                mortal.close()
            except (Exception, Died):
                if not life.dead:
                    raise
            finally:
                life.bury(mortal)

    def _live_on_a_loop(self, life: Life) -> None:
        asyncio.run(self._live_async(life))

    async def _live_async(self, life: Life) -> None:
        loop = asyncio.get_running_loop()
        # What the tasks of the dead say is nobody's business.
        loop.set_exception_handler(lambda loop, told: None if life.dead else loop.default_exception_handler(told))
        opened = await _awaited((self._plan.open or self._open_async)(self._path))
        mortal, threads = life.client(opened._client), opened._threads
        hf = AsyncHoldfast(mortal, threads)
        try:
            try:
                await self._plan.run(hf, *self._world)
            finally:
                if not life.dead:  # Else at once and without an await, or other tasks would go on.
                    await hf.close()
        finally:
            threads.close()
            life.bury(mortal)

    def _open(self, path: Path) -> Holdfast:
        if self._memory is not None:
            return Holdfast(assemble(self._memory, Settings(), self._clock))
        return open_sync(path, durability="fast", clock=self._clock)

    def _open_async(self, path: Path) -> Any:
        if self._memory is not None:
            return AsyncHoldfast(self._open(path), Threads())
        return open_async(path, durability="fast", clock=self._clock)

    # between lives

    def _waits(self, person: Holdfast) -> bool:
        """Answer what is asked, and let time pass for who waits for it; whether there was anything of the kind."""
        views = [person.tenant(tenant) for tenant in person._ports.journal.tenants()]
        found = [(view, question) for view in views for question in view.questions()]
        later = [self._asked(view, question) for view, question in found if not question.answered]
        self._clock.advance(max(0, max(later, default=0) - self._clock.now_ms()))
        return bool(found)

    def _asked(self, view: Holdfast, question: QuestionInfo) -> int:
        """Have a question answered; gives the time when it need not be any more."""
        given = None if self._plan.answer is None else self._plan.answer(question, *self._world)
        if given is None:
            until = question.until or question.expires_at
            if until is None:
                raise AssertionError(f"it asks {question.reason!r}, and nobody answers. Give answer=….")
            return until
        view.answer(question.id, **({"approve": given} if isinstance(given, bool) else given))
        self.answered += 1
        return 0

    # in the end

    def _checked(self, person: Holdfast) -> Any:
        if is_async(self._plan.check):
            return asyncio.run(self._checked_async())
        if self._plan.open is None or self._plan.is_async:
            return self._plan.check(person, *self._world)
        with self._plan.open(self._path) as hf:
            return self._plan.check(hf, *self._world)

    async def _checked_async(self) -> Any:
        async with await _awaited((self._plan.open or self._open_async)(self._path)) as hf:
            return await self._plan.check(hf, *self._world)


async def _awaited(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


def _is_waiting(error: BaseException) -> bool:
    """Whether the program only stopped to wait; a task group wraps what its tasks raise."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_waiting(part) for part in error.exceptions)
    return isinstance(error, Waiting)
