"""A worker behind a queue that delivers again what was not acknowledged, as Celery does with `acks_late=True`.

    MODEL=openai:gpt-5-mini OPENAI_API_KEY=… python examples/celery_worker.py
    python examples/celery_worker.py                        without a key: a script plays the model

A queue like that gives a job to another worker when the first one is slow or dead, sometimes while it still runs. The
job's id is the key of its turn, so a job that comes again goes on, waits for the worker that has it, or gets the answer
that it had. The queue here is a small SQLite file in place of Celery's broker; `work` is the body of your task.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import holdfast
from holdfast import Agent, Holdfast, Reply, Scripted, ToolCall, tool
from holdfast.testing import call


class Job(NamedTuple):
    """One delivery."""

    id: str
    customer: str
    text: str


class Broker:
    """A queue in a file. What is not acknowledged within `again_after` seconds is delivered again."""

    def __init__(self, path: str, again_after: float = 30.0, clock: Callable[[], float] = time.time) -> None:
        self._path, self._again_after, self._clock = path, again_after, clock
        self._run("CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, customer, text, due REAL, reply TEXT)")

    def put(self, job: Job) -> None:
        """A new job; the same id is the same job."""
        self._run("INSERT INTO jobs VALUES (?, ?, ?, 0, NULL) ON CONFLICT DO NOTHING", *job)

    def take(self) -> Job | None:
        """A job that is due. It comes again unless it is acknowledged in time."""
        now = self._clock()
        found = self._run(
            "UPDATE jobs SET due = ? WHERE id = (SELECT id FROM jobs WHERE reply IS NULL AND due <= ? ORDER BY due, id "
            "LIMIT 1) RETURNING id, customer, text",
            now + self._again_after,
            now,
        )
        return Job(*found[0]) if found else None

    def acknowledge(self, job: Job, reply: str) -> None:
        """The job is done and does not come again."""
        self._run("UPDATE jobs SET reply = ? WHERE id = ?", reply, job.id)

    def replies(self) -> dict[str, str | None]:
        """What came of the jobs."""
        return dict(self._run("SELECT id, reply FROM jobs ORDER BY id"))

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as connection, connection:
            return connection.execute(statement, values).fetchall()


class Shop:
    """Your systems. What is done here stays done, whatever becomes of this process."""

    def __init__(self) -> None:
        self.mails: dict[str, str] = {}
        self.paid: list[int] = []

    def mail(self, text: str, key: str) -> None:
        """Takes an idempotency key: twice with the same one is once."""
        self.mails[key] = text

    def pay_back(self, order: int) -> None:
        """Takes none: it must not run twice."""
        self.paid.append(order)


def tools_of(shop: Shop) -> list[Any]:
    """What the model may do."""

    @tool
    def refund(order: int) -> str:
        """Pay an order back."""
        shop.pay_back(order)
        return f"order {order} is paid back"

    @tool(if_interrupted="retry")  # because of the key
    def mail(text: str, call: ToolCall) -> str:
        """Write to the customer."""
        shop.mail(text, key=call.key)
        return "sent"

    return [refund, mail]


SCRIPT = Scripted([call("refund", order=17), call("mail", text="Your money is on its way."), "Refunded and told."])


def work(hf: Holdfast, shop: Shop, job: Job) -> Reply[Any]:
    """The task: the job's id is the key, and that is all that redelivery needs."""
    agent: Agent[Any] = hf.agent("refunds", model=os.environ.get("MODEL") or SCRIPT, tools=tools_of(shop))
    return agent.send(job.customer, job.text, key=job.id)


def deliver(hf: Holdfast, shop: Shop, broker: Broker) -> int:
    """Do what is due; gives how many deliveries that were."""
    count = 0
    while (job := broker.take()) is not None:
        count += 1
        reply = work(hf, shop, job)
        if reply.status != "waiting":  # Else it comes again, until somebody has answered.
            broker.acknowledge(job, reply.text or str(reply.reason))
    return count


def main() -> None:
    """A worker: start it as often as you like, kill it when you like."""
    broker, shop = Broker("jobs.db", again_after=2.0), Shop()
    broker.put(Job("job-1", "alice", "Please refund order 17."))
    with holdfast.open("agent.db") as hf, hf.graceful_shutdown(grace=25) as stop:
        while None in broker.replies().values() and not stop.requested:
            if not deliver(hf, shop, broker):
                for question in hf.questions():
                    print(f"{question.reason}  → holdfast answer agent.db {question.id} --approve")
                stop.wait(1.0)
    for id, reply in broker.replies().items():
        print(id, reply)


if __name__ == "__main__":
    main()
