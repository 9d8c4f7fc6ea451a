"""kill_everywhere: run a program, kill it at every point that it passes, run it again, and check it.

    def run(hf, bank):
        with hf.frame("refund 17", key="refund-17") as frame:
            frame.run(bank.pay, 17, key="pay")

    kill_everywhere(run, world=Bank, check=lambda hf, bank: bank.paid == [17],
                    answer=lambda question, bank: not bank.paid)

The points are before and after each call of the journal, including reads. Intents and outcomes are appended to the
journal, so there is a point right before and right after each action between them: a tool call in a turn, a function
in `frame.run`. `killable` and `kill_point` add points inside those.

Death is an exception that no `except Exception` catches, and from then on the journal of the dead client refuses
every call, in every thread. Only holdfast's own work can be stopped this way: a program's `finally` still runs, which
it would not after kill -9. Do nothing visible to the outside world there, or make it `killable`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.aio.executor import ThreadPools
from holdfast.aio.holdfast import AsyncHoldfast, open_async
from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_sync
from holdfast.connect import assemble_env, open_journal
from holdfast.errors import InvalidValue, Waiting
from holdfast.ports.journal import Journal
from holdfast.records.recovery import QuestionInfo
from holdfast.records.reports import Progress
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.faults import SimulatedDeath
from holdfast.testing.lives import KillHistory, Life

JOURNALS: Final = ("sqlite", "memory")
MISSED_SHARE: Final = 10
BETWEEN_LIVES_MS: Final = 1_000


class KillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `kill_everywhere`."""

    points: int
    """Points that the program passes if it is not killed."""
    killed: int
    """Points at which it was killed."""
    runs: int
    """The number of runs, in total."""
    questions: int
    """Questions that were answered."""


def kill_everywhere(
    run: Callable[..., Any],
    *,
    check: Callable[..., Any],
    answer: Callable[..., Any] | None = None,
    world: Callable[[], Any] | None = None,
    open: Callable[[Path], Any] | None = None,
    journal: str = "sqlite",
    points: Iterable[int] | None = None,
    runs: int = 10,
    progress: Progress | None = None,
    folder: Path | None = None,
) -> KillReport:
    """Run a program once for each point that it passes, kill it there, run it again to its end, and check the result.

    `run(hf)` gets a client on a new journal; if it is an `async def`, an `AsyncHoldfast`. After its death, and after
    `Waiting`, it is called again with a new client on the same journal, at most `runs` times, until it returns and no
    question is open. So the program must be restartable: the same keys each time, nothing kept in memory.

    `check(hf)` raises, or returns False, if something is wrong. `answer(question)` returns True or False to approve or
    deny, or keyword arguments of `hf.answer`; None leaves the question open. `world()` creates the object that
    outlives processes, such as a counting sink; it becomes the last argument of `run`, `check` and `answer`.

    Journals are SQLite files with `durability="fast"`, as no power fails here. `journal="memory"` is ten times faster
    and passes the same points. The clock is frozen: it advances by a second between lives and, if the program waits
    for a time, to that time. `open(path)` opens clients in your own way. `points` selects the numbers of the points
    to try; the default is all. With a `folder`, the journal of a failure is left in it.

    Raise `AssertionError` with the name of the point, and how to repeat only that one.
    """
    plan = KillPlan(run=run, check=check, answer=answer, world=world, open=open, journal=journal, runs=runs)
    _check_plan(plan)
    wanted = None if points is None else _check_points(points)
    found = _run_trial(plan, None, folder)
    reached = _select_points(wanted, found.points)
    for done, number in enumerate(reached, 1):
        one = _run_trial(plan, number, folder)
        found = KillReport(
            points=found.points,
            killed=found.killed + one.killed,
            runs=found.runs + one.runs,
            questions=found.questions + one.questions,
        )
        if progress is not None:
            progress(done, len(reached))
    _check_repeatable(len(reached), found.killed)
    return found


def _check_points(points: object) -> list[int]:
    """Return the points to try, sorted. An empty selection is refused: such a test would always pass."""
    if not isinstance(points, Iterable) or isinstance(points, str | bytes):
        raise InvalidValue(f"points are the numbers of points, such as [17] or range(1, 200, 3), not {points!r:.40}.")
    wanted = list(points)
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 1 for number in wanted):
        raise InvalidValue("Points are whole numbers, counted from 1.")
    if not wanted:
        raise InvalidValue("points names no point, so the program would not be killed. Leave it out to try all.")
    return sorted(set(wanted))


def _select_points(wanted: list[int] | None, passed: int) -> list[int]:
    if wanted is None:
        return list(range(1, passed + 1))
    reached = [number for number in wanted if number <= passed]
    if not reached:
        raise InvalidValue(
            f"The program passes {passed} points, and the first that is wanted is {wanted[0]}: it would not be killed. "
            "Name points from 1 on, or leave points out to try all."
        )
    return reached


def _check_repeatable(tried: int, killed: int) -> None:
    """Refuse a program that misses many points. Tasks and threads may pass a few more or fewer each time."""
    if tried - killed > 2 + tried // MISSED_SHARE:
        raise AssertionError(
            f"Of {tried} points the program came to {killed} when it was run again: it is not repeatable. "
            "Let it do the same each time: no chance, no time of day, nothing that is kept between runs."
        )


def _check_plan(plan: KillPlan) -> None:
    if asyncio._get_running_loop() is not None:
        raise InvalidValue("kill_everywhere runs loops of its own. Call it from a plain test, not from an async one.")
    if plan.journal not in JOURNALS:
        raise InvalidValue(f"journal must be one of {', '.join(JOURNALS)}, not {plan.journal!r}.")
    if plan.journal == "memory" and plan.open is not None:
        raise InvalidValue("open makes a client for a file. Leave out journal='memory', or open.")
    if is_async(plan.check) and not plan.is_async:
        raise InvalidValue("check is async and run is not. Make both async, or check with a plain function.")
    if plan.answer is not None and is_async(plan.answer):
        raise InvalidValue("answer is a plain function of the question.")


def _run_trial(plan: KillPlan, number: int | None, folder: Path | None) -> KillReport:
    """Run one trial and return its report; its folder is removed unless it failed."""
    place = Path(tempfile.mkdtemp(prefix=f"point-{number or 0}-", dir=folder))
    trial = KillTrial(plan, number, place / "a.db")
    try:
        trial.run()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # pytest.fail does not raise an Exception.
        death = "Not killed" if trial.story.died is None else f"Killed {trial.story.died}"
        lines = [f"{death}: {error if isinstance(error, AssertionError) else repr(error)}"]
        lines += [] if number is None else [f"Repeat only this with points=[{number}]."]
        lines += [] if folder is None or plan.journal == "memory" else [f"The journal is {place / 'a.db'}."]
        raise AssertionError("\n".join(lines)) from error
    finally:
        if folder is None or trial.well or plan.journal == "memory":
            shutil.rmtree(place, ignore_errors=True)
    story = trial.story
    killed = int(story.died is not None)
    return KillReport(points=story.passed, killed=killed, runs=trial.lives, questions=trial.answered)


class KillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `kill_everywhere`."""

    run: Callable[..., Any]
    check: Callable[..., Any]
    answer: Callable[..., Any] | None
    world: Callable[[], Any] | None
    open: Callable[[Path], Any] | None
    journal: str
    runs: int

    @property
    def is_async(self) -> bool:
        """True if the program is a coroutine function."""
        return is_async(self.run)


def is_async(fn: Any) -> bool:
    """Return True if calling the function gives a coroutine."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


class _LastingMemoryJournal:
    """A journal in memory that outlives its clients, as a file does."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def close(self) -> None:
        pass


class KillTrial:
    """All lives of a program, and the person who answers its questions."""

    def __init__(self, plan: KillPlan, die_at: int | None, path: Path) -> None:
        self._plan, self._path = plan, path
        self._clock = FrozenClock()
        self._memory: Any = (
            _LastingMemoryJournal(open_journal("memory:", Settings())) if plan.journal == "memory" else None
        )
        self._world = () if plan.world is None else (plan.world(),)
        self.story = KillHistory(die_at)
        self.lives = self.answered = 0
        self.well = False

    def run(self) -> None:
        """Run the program to its end and check it."""
        ended, waits = False, True
        with self._open(self._path) as person:
            while not ended or waits:
                if self.lives == self._plan.runs:
                    raise AssertionError(f"it was run {self.lives} times and has not come to its end.")
                self._clock.advance(BETWEEN_LIVES_MS)
                ended = self._run_life()
                waits = self._answer_questions(person)
            if self._run_check(person) is False:
                raise AssertionError("check gave False.")
        self.well = True

    # lives

    def _run_life(self) -> bool:
        """Run one life; return True if the program came to its end in it."""
        self.lives += 1
        life = Life(self.story)
        is_async = self._plan.is_async
        try:
            contextvars.copy_context().run(
                life.run, lambda: asyncio.run(self._run_async(life)) if is_async else self._run_sync(life)
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if not life.dead and not _is_waiting(error):
                raise
            return False
        return not life.dead

    def _run_sync(self, life: Life) -> None:
        mortal = life.wrap_client((self._plan.open or self._open)(self._path))
        try:
            self._plan.run(mortal, *self._world)
        finally:
            try:
                mortal.close()
            except (Exception, SimulatedDeath):
                if not life.dead:
                    raise
            finally:
                life.release(mortal)

    async def _run_async(self, life: Life) -> None:
        loop = asyncio.get_running_loop()
        # Ignore errors of the dead client's tasks.
        loop.set_exception_handler(lambda loop, told: None if life.dead else loop.default_exception_handler(told))
        opened = await _await_if_needed((self._plan.open or self._open_async)(self._path))
        mortal, threads = life.wrap_client(opened._sync), opened._threads
        hf = AsyncHoldfast(mortal, threads)
        try:
            try:
                await self._plan.run(hf, *self._world)
            finally:
                if not life.dead:  # Without an await after death, or other tasks would continue.
                    await hf.close()
        finally:
            threads.close()
            life.release(mortal)

    def _open(self, path: Path) -> Holdfast:
        if self._memory is not None:
            return Holdfast(assemble_env(self._memory, Settings(), self._clock))
        return open_sync(path, durability="fast", clock=self._clock)

    def _open_async(self, path: Path) -> Any:
        if self._memory is not None:
            return AsyncHoldfast(self._open(path), ThreadPools())
        return open_async(path, durability="fast", clock=self._clock)

    # between lives

    def _answer_questions(self, person: Holdfast) -> bool:
        """Answer open questions and let time pass for waiting ones; return True if there were any."""
        views = [person.tenant(tenant) for tenant in person.env.journal.tenants()]
        found = [(view, question) for view in views for question in view.questions()]
        later = [self._answer_question(view, question) for view, question in found if not question.answered]
        self._clock.advance(max(0, max(later, default=0) - self._clock.now_ms()))
        return bool(found)

    def _answer_question(self, view: Holdfast, question: QuestionInfo) -> int:
        """Have a question answered; if it is left open, return the time when it ends, else 0."""
        given = None if self._plan.answer is None else self._plan.answer(question, *self._world)
        if given is None:
            until = question.until or question.expires_at
            if until is None:
                raise AssertionError(f"it asks {question.reason!r} and gets no answer. Give answer=….")
            return until
        view.answer(question.id, **({"approve": given} if isinstance(given, bool) else given))
        self.answered += 1
        return 0

    # check

    def _run_check(self, person: Holdfast) -> Any:
        if is_async(self._plan.check):
            return asyncio.run(self._run_check_async())
        if self._plan.open is None or self._plan.is_async:
            return self._plan.check(person, *self._world)
        with self._plan.open(self._path) as hf:
            return self._plan.check(hf, *self._world)

    async def _run_check_async(self) -> Any:
        async with await _await_if_needed((self._plan.open or self._open_async)(self._path)) as hf:
            return await self._plan.check(hf, *self._world)


async def _await_if_needed(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


def _is_waiting(error: BaseException) -> bool:
    """Return True if the program only stopped to wait; a task group wraps the errors of its tasks."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_waiting(part) for part in error.exceptions)
    return isinstance(error, Waiting)
