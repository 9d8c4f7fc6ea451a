"""kill_everywhere: a program of yours, killed at every point that it passes, run again, and checked.

    def run(hf, bank):
        with hf.frame("refund 17", key="refund-17") as frame:
            frame.run(bank.pay, 17, key="pay")

    kill_everywhere(run, world=Bank, check=lambda hf, bank: bank.paid == [17],
                    answer=lambda question, bank: not bank.paid)

The points are before and after each call of the journal, reads as well. Intents and outcomes are appended to the
journal, so there is a point right before and right after each thing that a program does between them: a tool's call
in a turn, a function in `frame.run`. `killable` and `kill_point` add points inside of those.

Death is an exception that no `except Exception` catches, and the journal of the dead client refuses everything from
then on, in every thread. Only what holdfast does can be stopped so: a program's own `finally` still runs, as it would
not after kill -9. Do there nothing that the world can see, or make it `killable`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.reports import Progress
from holdfast.testing.dying import Story
from holdfast.testing.trials import Plan, Trial, is_async

JOURNALS: Final = ("sqlite", "memory")
MISSED_SHARE: Final = 10


class KillReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `kill_everywhere` did."""

    points: int
    """Points that the program passes if nobody kills it."""
    killed: int
    """Points at which it was killed."""
    runs: int
    """How often it was run, in all."""
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
    `Waiting`, it is called again with a new client on the same journal, `runs` times at most, until it returns and no
    question is open. So it must be a program that can be started again: the same keys, nothing kept in memory.

    `check(hf)` raises, or gives False, if something is wrong. `answer(question)` gives True or False to approve or
    not, or keyword arguments of `hf.answer`; None leaves the question open. `world()` makes what outlives processes,
    a counting sink for example; it is then the last argument of `run`, `check` and `answer`.

    Journals are SQLite files, with `durability="fast"`, as no power fails here. `journal="memory"` is ten times as
    quick and passes the same points. The clock is frozen: it goes on by a second between lives and, if the program
    waits for a time, to that time. `open(path)` makes other clients. `points` are the numbers of those to try, if not
    all. With a `folder` the journal of a failure is left in it.

    Raises `AssertionError` that names the point, and how to repeat only that one.
    """
    plan = Plan(run=run, check=check, answer=answer, world=world, open=open, journal=journal, runs=runs)
    _check_plan(plan)
    wanted = None if points is None else _numbers(points)
    found = _tried(plan, None, folder)
    reached = _reached(wanted, found.points)
    for done, number in enumerate(reached, 1):
        one = _tried(plan, number, folder)
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


def _numbers(points: object) -> list[int]:
    """The points that somebody wants tried. None at all would be a test that passes whatever the program does."""
    if not isinstance(points, Iterable) or isinstance(points, str | bytes):
        raise InvalidValue(f"points are the numbers of points, such as [17] or range(1, 200, 3), not {points!r:.40}.")
    wanted = list(points)
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 1 for number in wanted):
        raise InvalidValue("Points are whole numbers, counted from 1.")
    if not wanted:
        raise InvalidValue("points names no point, so the program would not be killed. Leave it out to try all.")
    return sorted(set(wanted))


def _reached(wanted: list[int] | None, passed: int) -> list[int]:
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
    """Tasks and threads may pass a few points more or less each time; a program that cannot be killed is no program."""
    if tried - killed > 2 + tried // MISSED_SHARE:
        raise AssertionError(
            f"Of {tried} points the program came to {killed} when it was run again: it is not repeatable. "
            "Let it do the same each time: no chance, no time of day, nothing that is kept between runs."
        )


def _check_plan(plan: Plan) -> None:
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


def _tried(plan: Plan, number: int | None, folder: Path | None) -> KillReport:
    """One trial that went well; its folder is gone."""
    place = Path(tempfile.mkdtemp(prefix=f"point-{number or 0}-", dir=folder))
    trial = Trial(plan, number, place / "a.db")
    try:
        trial.play()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # pytest.fail raises no Exception.
        lines = [f"{_where(trial.story)}: {error if isinstance(error, AssertionError) else repr(error)}"]
        lines += [] if number is None else [f"Repeat only this with points=[{number}]."]
        lines += [] if folder is None or plan.journal == "memory" else [f"The journal is {place / 'a.db'}."]
        raise AssertionError("\n".join(lines)) from error
    finally:
        if folder is None or trial.well or plan.journal == "memory":
            shutil.rmtree(place, ignore_errors=True)
    story = trial.story
    return KillReport(
        points=story.passed, killed=int(story.died is not None), runs=trial.lives, questions=trial.answered
    )


def _where(story: Story) -> str:
    return "Not killed" if story.died is None else f"Killed {story.died}"
