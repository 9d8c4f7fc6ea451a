"""kill_everywhere: a program that can be killed passes, and one that cannot is found out, at a point that is named."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.errors import InvalidValue
from holdfast.model.scripted import Scripted
from holdfast.records.messages import ModelCall
from holdfast.system import ProcessName
from holdfast.testing import KillReport, kill_everywhere, kill_point, killable, lives
from holdfast.testing.clock import FrozenClock
from holdfast.testing.faults import SimulatedDeath
from tests.scale import volume
from tests.turns.loops import SESSION

pytest_plugins = ["pytester"]
HOUR_MS = 3_600_000


class Bank:
    """A world outside: what was paid stays paid, whoever dies."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.allowed = 0

    def pay(self, order: int) -> int:
        self.paid.append(order)
        return order


def once(hf: Any, bank: Bank) -> None:
    assert bank.paid == [17]
    assert hf.journal.verify().findings == ()
    assert not list(hf.questions())


def looking(question: Any, bank: Bank) -> bool:
    """A person who looks at the bank before a payment is repeated."""
    return not bank.paid


def refund(hf: holdfast.Holdfast, bank: Bank) -> None:
    with hf.frame("refund 17", key="refund-17") as frame:
        frame.run(bank.pay, 17, key="pay")


async def refund_async(hf: holdfast.AsyncHoldfast, bank: Bank) -> None:
    async with hf.frame("refund 17", key="refund-17") as frame:
        await frame.run(bank.pay, 17, key="pay")


def kill_quickly(run: Any, check: Any = once, answer: Any = looking, **how: Any) -> KillReport:
    return kill_everywhere(run, world=Bank, check=check, answer=answer, journal="memory", **how)


# programs that can be killed


def test_a_program_that_pays_in_a_step_pays_once() -> None:
    seen: list[tuple[int, int]] = []
    report = kill_quickly(refund, progress=lambda done, all: seen.append((done, all)))
    assert report.killed == report.points > 15
    assert report.questions == 2  # Right before the payment, and right after it.
    assert report.runs == 1 + 2 * report.points + report.questions
    assert seen == [(number, report.points) for number in range(1, report.points + 1)]


@pytest.mark.parametrize("run", [refund, refund_async])
def test_a_file_is_killed_at_the_same_points_as_a_journal_in_memory(run: Any) -> None:
    quick, some = kill_quickly(run), range(1, 99, volume(4, 1))
    report = kill_everywhere(run, world=Bank, check=once, answer=looking, points=some)
    assert (report.points, report.killed) == (quick.points, len([point for point in some if point <= quick.points]))


def test_a_program_that_asks_is_killed_before_and_after_the_answer() -> None:
    def careful(hf: holdfast.Holdfast, bank: Bank) -> None:
        with hf.frame("refund 17", key="refund-17") as frame:
            if frame.ask("Pay 17?", key="may").approved:
                frame.run(bank.pay, 17, key="pay")

    def allow(question: Any, bank: Bank) -> Any:
        bank.allowed += question.reason == "Pay 17?"
        return {"approve": not bank.paid, "note": "looked at the bank", "by": "alice"}

    def allowed_once(hf: Any, bank: Bank) -> bool:
        return bank.paid == [17] and bank.allowed == 1

    report = kill_quickly(careful, check=allowed_once, answer=allow)
    assert report.questions == report.points + 1 + 2


def test_an_async_program_and_an_async_check() -> None:
    async def check(hf: holdfast.AsyncHoldfast, bank: Bank) -> None:
        assert isinstance(hf, holdfast.AsyncHoldfast)
        assert (await hf.journal.verify()).findings == ()
        assert bank.paid == [17]

    report = kill_quickly(refund_async, check=check)
    assert report.killed == report.points > 15


def test_tasks_and_threads_of_a_program_die_with_it() -> None:
    async def tasks(hf: holdfast.AsyncHoldfast, bank: Bank) -> None:
        async def pay(order: int) -> None:
            async with hf.frame(f"refund {order}", key=f"r{order}", actor=f"a{order}") as frame:
                await frame.run(bank.pay, order, key="pay", if_interrupted="ask")

        async with asyncio.TaskGroup() as group:
            for order in (1, 2):
                group.create_task(pay(order))

    def threads(hf: holdfast.Holdfast, bank: Bank) -> None:
        def pay(order: int) -> None:
            with hf.frame(f"refund {order}", key=f"r{order}", actor=f"a{order}") as frame:
                frame.run(bank.pay, order, key="pay")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(pay, (1, 2)))

    def paid(question: Any, bank: Bank) -> bool:
        return int(question.scope[-1]) not in bank.paid

    for run in (tasks, threads):
        report = kill_quickly(run, check=lambda hf, bank: sorted(bank.paid) == [1, 2], answer=paid)
        assert report.points > 30


def test_time_passes_for_a_program_that_waits_for_it() -> None:
    def tomorrow(hf: holdfast.Holdfast, bank: Bank) -> None:
        with hf.frame("refund 17", key="refund-17") as frame:
            frame.ask("Wait.", key="wait", kind="timer", until=1_750_000_000_000 + HOUR_MS)
            frame.run(bank.pay, 17, key="pay", if_interrupted="ask")

    report = kill_quickly(tomorrow, answer=lambda question, bank: None if question.until else not bank.paid)
    assert report.questions == 2


def test_other_tenants_are_answered_as_well() -> None:
    def elsewhere(hf: holdfast.Holdfast, bank: Bank) -> None:
        refund(hf.tenant("acme"), bank)

    kill_quickly(elsewhere)


class Impatient(FrozenClock):
    def sleep(self, seconds: float) -> None:
        raise AssertionError("somebody watches an owner that is dead")


def test_a_client_of_ones_own_and_nobody_watches_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path) -> holdfast.Holdfast:
        return holdfast.open(path, durability="fast", clock=Impatient(), redact=lambda text: text.replace("17", "**"))

    def redacted(hf: holdfast.Holdfast, bank: Bank) -> None:
        once(hf, bank)
        assert "refund 17" not in repr(list(hf.journal.events()))

    def kill() -> None:
        kill_everywhere(refund, world=Bank, check=redacted, answer=looking, open=opened, points=range(1, 99, 3))

    kill()
    monkeypatch.setattr(lives._SimulatedProcessName, "is_gone", ProcessName.is_gone)
    with pytest.raises(AssertionError, match=r"Killed .*: somebody watches"):
        kill()


def test_without_a_world_the_journal_is_all_there_is() -> None:
    def note(hf: holdfast.Holdfast) -> None:
        hf.journal.append("notes", "app.noted", {"n": 1}, key="one")

    report = kill_everywhere(note, check=lambda hf: len(list(hf.journal.events("notes"))) == 1)
    assert (report.questions, report.killed) == (0, report.points)


def test_signs_of_life_are_no_points_and_the_dead_give_none(tmp_path: Path) -> None:
    life = lives.Life(lives.KillHistory())
    hf = life.wrap_client(holdfast.open(tmp_path / "a.db"))
    hf.frame("job").open()
    passed = life.story.passed
    assert hf.env.journal.renew_lease("default", "actor/main", 1)
    assert life.story.passed == passed
    life.dead = True
    assert hf.env.journal.renew_lease("default", "actor/main", 1) is False
    life.release(hf)


# programs that cannot


def pays_beside_the_step(hf: holdfast.Holdfast, bank: Bank) -> None:
    with hf.frame("refund 17", key="refund-17") as frame:
        bank.pay(17)
        frame.run(lambda: 17, key="pay")


def pays_again_without_asking(hf: holdfast.Holdfast, bank: Bank) -> None:
    with hf.frame("refund 17", key="refund-17") as frame:
        frame.run(bank.pay, 17, key="pay", if_interrupted="retry")


def has_no_key(hf: holdfast.Holdfast, bank: Bank) -> None:
    with hf.frame("refund 17") as frame:
        frame.run(bank.pay, 17, key="pay")


def believes_that_it_was_done(hf: holdfast.Holdfast, bank: Bank) -> None:
    if not list(hf.journal.events("actor/main")):
        refund(hf, bank)


async def pays_beside_the_step_async(hf: holdfast.AsyncHoldfast, bank: Bank) -> None:
    async with hf.frame("refund 17", key="refund-17") as frame:
        bank.pay(17)
        await frame.run(lambda: 17, key="pay")


BROKEN = [
    pays_beside_the_step,
    pays_again_without_asking,
    has_no_key,
    believes_that_it_was_done,
    pays_beside_the_step_async,
]


@pytest.mark.parametrize("run", BROKEN)
def test_a_program_that_cannot_be_killed_is_found_out_at_a_point_that_can_be_repeated(run: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"^Killed (before|after) \w+ #\d+") as caught:
        kill_quickly(run, folder=tmp_path)
    (number,) = map(int, re.findall(r"^Repeat only this with points=\[(\d+)\]", str(caught.value), re.MULTILINE))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(AssertionError) as again:
        kill_everywhere(run, world=Bank, check=once, answer=looking, points=[number], folder=tmp_path)
    first, *_, journal = str(again.value).splitlines()
    assert first == str(caught.value).splitlines()[0]
    assert Path(journal.removeprefix("The journal is ").removesuffix(".")).is_file()
    assert len(list(tmp_path.iterdir())) == 1
    kill_everywhere(run, world=Bank, check=once, answer=looking, points=[1])


def test_what_was_written_is_named() -> None:
    with pytest.raises(AssertionError, match=r"^Killed after append #\d+ \(run\.requested\): check gave False"):
        kill_quickly(refund, check=lambda hf, bank: bank.paid == [17], answer=lambda question, bank: False)


def test_a_program_that_is_wrong_without_any_death_is_found_out_first() -> None:
    with pytest.raises(AssertionError, match=r"^Not killed: assert \[17\] == \[\]") as caught:
        kill_everywhere(refund, world=Bank, check=_unpaid, answer=looking)
    assert "points=" not in str(caught.value)
    with pytest.raises(AssertionError, match=r"^Not killed: ZeroDivisionError"):
        kill_everywhere(lambda hf: 1 // 0, check=lambda hf: True)
    with pytest.raises(AssertionError, match=r"^Not killed: .*no good"):
        kill_everywhere(lambda hf: None, check=lambda hf: pytest.fail("no good"))


def _unpaid(hf: Any, bank: Bank) -> None:
    assert bank.paid == []


def test_questions_that_nobody_answers_are_named() -> None:
    with pytest.raises(AssertionError, match=r"Killed .*: it asks .*may have run.* gets no answer. Give answer="):
        kill_quickly(refund, answer=None)


def test_a_program_without_an_end_is_named() -> None:
    def waiting(hf: holdfast.Holdfast) -> None:
        raise holdfast.errors.Waiting

    with pytest.raises(AssertionError, match="run 3 times and has not come to its end"):
        kill_everywhere(waiting, check=lambda hf: True, runs=3)


def test_a_program_that_does_something_else_each_time_is_named() -> None:
    left = [40]

    def fickle(hf: holdfast.Holdfast) -> None:
        for _ in range(left[0]):
            hf.journal.version("notes")
        left[0] = 1

    with pytest.raises(AssertionError, match="not repeatable"):
        kill_everywhere(fickle, check=lambda hf: True, journal="memory")


def test_calls_that_cannot_be_meant_are_refused() -> None:
    async def check(hf: Any, bank: Bank) -> None:
        pass

    async def test() -> None:
        kill_everywhere(refund, world=Bank, check=once)

    for call in (
        lambda: kill_everywhere(refund, world=Bank, check=check),
        lambda: kill_everywhere(refund, world=Bank, check=once, answer=check),
        lambda: kill_everywhere(refund, world=Bank, check=once, points=[0]),
        lambda: asyncio.run(test()),
        lambda: kill_everywhere(refund, world=Bank, check=once, journal="paper"),
        lambda: kill_quickly(refund, open=holdfast.open),
        lambda: killable(3),
    ):
        with pytest.raises(holdfast.errors.InvalidValue):
            call()


# death


def haunting(hf: holdfast.Holdfast, bank: Bank) -> None:
    """Goes on after death, as a careless `except` may."""
    try:
        refund(hf, bank)
    except SimulatedDeath:
        hf.journal.append("ghosts", "app.noted", key="ghost")


def no_ghosts(hf: holdfast.Holdfast, bank: Bank) -> None:
    once(hf, bank)
    assert not [event.stream for event in hf.journal.events("ghosts")]


def test_the_dead_write_nothing_even_if_the_program_goes_on() -> None:
    report = kill_quickly(haunting, check=no_ghosts)
    assert report.killed == report.points


def test_a_kit_in_which_the_dead_can_write_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(self: Any, name: Any) -> None:
        self.story.passed += 1
        if self.story.passed == self.story.die_at:
            self.dead, self.story.died = True, name()
            raise SimulatedDeath

    monkeypatch.setattr(lives.Life, "pass_point", lenient)
    with pytest.raises(AssertionError, match=r"assert not \['session/ghosts'\]"):
        kill_quickly(haunting, check=no_ghosts)


def test_points_of_ones_own_and_what_is_killable_does_nothing_after_death() -> None:
    def run(hf: holdfast.Holdfast, bank: Bank) -> None:
        def pay(order: int) -> None:
            kill_point("before the bank")
            bank.pay(order)
            kill_point("after the bank")

        late = killable(bank.pay)
        try:
            with hf.frame("refund 17", key="refund-17") as frame:
                frame.run(killable(pay), 17, key="pay")
        except SimulatedDeath:
            late(99)

    plain, report = kill_quickly(refund), kill_quickly(run)
    assert report.points == plain.points + 4
    assert report.questions == plain.questions + 4
    kill_point("nobody is killed here")


def test_a_killable_model_and_async_tool() -> None:
    async def pay(order: int, bank: Bank) -> int:
        """Pays."""
        return bank.pay(order)

    tool = killable(pay)
    assert (tool.__name__, tool.__doc__, asyncio.iscoroutinefunction(tool)) == ("pay", "Pays.", True)

    async def run(hf: holdfast.AsyncHoldfast, bank: Bank) -> None:
        model = killable(Scripted(["Yes."]))
        assert (model.name, len(model.requests)) == ("scripted", 0)
        chat = await hf.session("s")
        async with hf.frame("refund 17", key="refund-17", session="s") as frame:
            await chat.append("Pay?", key="asked")
            pack = await chat.pack()
            await model.reply(ModelCall(pack=pack))
            await frame.run(tool, 17, bank, key="pay")
        await model.close()

    report = kill_quickly(run, points=range(1, 999, volume(2, 1)))
    assert report.points > 40


# pytest


def test_the_plugin_brings_everything_to_a_users_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        from holdfast.testing import call
        from holdfast.records.messages import ModelCall

        def test_killing(kill_everywhere, tmp_path):
            def note(hf):
                hf.journal.append("notes", "app.noted", key="one")
            report = kill_everywhere(note, check=lambda hf: len(list(hf.journal.events("notes"))) == 1)
            assert report.killed == report.points > 1
            assert list(tmp_path.iterdir()) == []

        def test_talking(memory_client, scripted_model, frozen_clock):
            chat = memory_client.session("s")
            chat.append("Hello")
            model = scripted_model({"hello": [call("wave"), "Hi."]})
            reply = asyncio.run(model.reply(ModelCall(pack=chat.pack())))
            assert reply.message.tool_calls == (call("wave"),)
            assert {event.at for event in memory_client.journal.events()} == {frozen_clock.now_ms()}
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist").assert_outcomes(passed=2)


def test_a_report_says_what_was_done() -> None:
    assert kill_everywhere(lambda hf: None, check=lambda hf: None) == KillReport(
        points=0, killed=0, runs=1, questions=0
    )


# bad values


@pytest.mark.parametrize(
    ("points", "why"),
    [
        (0, "points are the numbers"),
        ("17", "points are the numbers"),
        ([], "names no point"),
        (range(0), "names no point"),
        ([0, 1], "counted from 1"),
        ([True], "counted from 1"),
        ([1.5], "counted from 1"),
        ([99_998, 99_999], "the first that is wanted is 99998"),
    ],
)
def test_killing_nowhere_is_refused(points: Any, why: str) -> None:
    def run(hf: Holdfast) -> None:
        hf.session(SESSION)

    with pytest.raises(InvalidValue, match=why):
        kill_everywhere(run, check=lambda hf: True, journal="memory", points=points)
