"""An agent with approval, and a worker behind a queue that delivers again: nothing is paid twice, whoever dies."""

from __future__ import annotations

import threading
from ast import literal_eval
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import holdfast
from examples import agent_with_approval, celery_worker
from examples.celery_worker import Broker, Job
from tests.examples.killed import careful, deadly, killed, whole

ASKED = "Please refund order 17."
JOB = Job("job-1", "alice", ASKED)
LESS = {"order": 17, "amount": 120}


# an agent with approval


class Shop(agent_with_approval.Shop):
    def pay_back(self, order: int, amount: float) -> None:
        deadly("pay_back", lambda: super(Shop, self).pay_back(order, amount))


@pytest.mark.parametrize(
    ("answer", "paid"), [("y", [(17, 240)]), ("n", []), ("120", [(17, 120)]), ("99.5", [(17, 99.5)])]
)
def test_the_agent_pays_what_the_person_says(
    answer: str,
    paid: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["example"])
    monkeypatch.setattr("builtins.input", lambda prompt: (asked.append(prompt), answer)[1])
    agent_with_approval.main()
    agent_with_approval.main()
    assert asked == ["refund(17, 240): may it run? [y/N/amount] "], "the second time it was answered"
    assert [literal_eval(line.split("paid: ")[1][:-1]) for line in capsys.readouterr().out.splitlines()] == [paid, []]


def test_the_agent_is_killed_everywhere_and_pays_the_changed_amount_once() -> None:
    def run(hf: holdfast.Holdfast, shop: Shop) -> None:
        agent_with_approval.work(hf, shop, ASKED, "req-81")

    def answer(question: Any, shop: Shop) -> Any:
        if shop.paid:
            return {"approve": False, "payload": "120 paid back for order 17"}
        return {"approve": True, "args": LESS} if "may it run" in question.reason else True

    def check(hf: holdfast.Holdfast, shop: Shop) -> None:
        assert shop.paid == [(17, 120)]
        whole(hf, "alice", ASKED, "I have asked for your refund, and it is done.")
        calls = [call for message in hf.session("alice") for call in message.tool_calls]
        assert [call.name for call in calls] == ["find_order", "find_policy", "refund"]
        assert calls[-1].args == {"order": 17, "amount": 240}, "what the model had asked for stays"
        answers = [event.content for event in hf.journal.events() if event.type == "question.answered"]
        changed = [getattr(content, "arguments", None) for content in answers]
        assert LESS in changed, "beside what the person made of it"

    killed(run, world=Shop, check=check, answer=answer)


def test_an_agent_whose_person_always_agrees_pays_once_for_each_yes() -> None:
    """Whoever says yes to "may have run. Run again?" without looking gets what was asked for."""

    class Asked(Shop):
        yes = 0

    def answer(question: Any, shop: Asked) -> bool:
        shop.yes += 1
        return True

    def check(hf: holdfast.Holdfast, shop: Asked) -> None:
        assert 1 <= len(shop.paid) <= shop.yes <= 2

    killed(
        lambda hf, shop: agent_with_approval.work(hf, shop, ASKED, "req-81"),
        world=Asked,
        check=check,
        answer=answer,
        stride=25,
    )


# a queue that delivers again


class Mortal(Broker):
    """A queue whose acknowledgements may come before a death or after one."""

    def acknowledge(self, job: Job, reply: str) -> None:
        deadly("acknowledge", lambda: super(Mortal, self).acknowledge(job, reply))


class Office(celery_worker.Shop):
    """A shop and its queue, which both outlive every worker."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.now = 0.0
        self.broker = Mortal(str(path), again_after=30.0, clock=lambda: self.now)
        self.broker.put(JOB)
        self.sent = 0

    def pay_back(self, order: int) -> None:
        deadly("pay_back", lambda: super(Office, self).pay_back(order))

    def mail(self, text: str, key: str) -> None:
        self.sent += 1
        deadly("mail", lambda: super(Office, self).mail(text, key))


def office_in(folder: Path) -> Callable[[], Office]:
    numbers = count()
    return lambda: Office(folder / f"jobs-{next(numbers)}.db")


def test_the_worker_does_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    celery_worker.main()
    celery_worker.main()
    assert capsys.readouterr().out == "job-1 Refunded and told.\n" * 2


def test_what_is_not_acknowledged_is_delivered_again(tmp_path: Path) -> None:
    office = Office(tmp_path / "jobs.db")
    office.broker.put(JOB)
    assert office.broker.take() == JOB
    assert office.broker.take() is None, "somebody has it"
    office.now += 30
    assert office.broker.take() == JOB
    office.broker.acknowledge(JOB, "Done.")
    office.now += 30
    assert office.broker.take() is None
    assert office.broker.replies() == {"job-1": "Done."}


def test_the_worker_is_killed_everywhere(tmp_path: Path) -> None:
    def run(hf: holdfast.Holdfast, office: Office) -> None:
        office.now += 60  # Later: what was not acknowledged is due again.
        celery_worker.deliver(hf, office, office.broker)

    def check(hf: holdfast.Holdfast, office: Office) -> None:
        assert office.paid == [17]
        assert list(office.mails.values()) == ["Your money is on its way."], "sent again, with the same key"
        assert office.sent in (1, 2)
        assert office.broker.replies() == {"job-1": "Refunded and told."}
        whole(hf, "alice", ASKED, "Refunded and told.")

    answer = careful(lambda office: office.paid, "order 17 is paid back")
    killed(run, world=office_in(tmp_path), check=check, answer=answer)


def test_a_job_that_two_workers_get_at_the_same_time_is_done_once(tmp_path: Path) -> None:
    office, inside, go_on = Office(tmp_path / "jobs.db"), threading.Event(), threading.Event()

    def slow(order: int) -> None:
        inside.set()
        assert go_on.wait(10)
        office.paid.append(order)

    office.pay_back = slow  # type: ignore[method-assign]
    with (
        holdfast.open(tmp_path / "a.db", durability="fast") as first,
        holdfast.open(tmp_path / "a.db", durability="fast") as second,
        ThreadPoolExecutor(2) as pool,
    ):
        one = pool.submit(celery_worker.work, first, office, JOB)
        assert inside.wait(10)
        other = pool.submit(celery_worker.work, second, office, JOB)
        other_waits = not other.done()
        go_on.set()
        assert [one.result(20).text, other.result(20).text] == ["Refunded and told."] * 2
    assert other_waits
    assert (office.paid, len(office.mails)) == ([17], 1)
