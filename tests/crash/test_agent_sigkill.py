"""Real kill -9 at random moments of an agent that calls a model, tools that may run twice and tools that may not.

The world outside is two files that nobody can take back. Whoever is asked whether a torn payment may run again looks
into one of them, as a person would look at the bank's statement.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import holdfast
from holdfast import Settings, tool
from holdfast.client.holdfast import Holdfast
from holdfast.flow.turns.calls import TurnToolCall
from holdfast.flow.turns.engine import TurnEngine
from holdfast.model.scripted import Scripted, call
from tests.scale import seeded, volume
from tests.sessions.provider_rules import openai_problems

SESSIONS = 3
QUICK = Settings(lease_ms=500)
CLASSES = {("model", None): "retry", ("tool", "look_up"): "retry", ("tool", "pay"): "ask"}


class World:
    """What happened outside, in files."""

    def __init__(self, folder: Path) -> None:
        self.paid, self.looked = folder / "paid.txt", folder / "looked.txt"
        for file in (self.paid, self.looked):
            file.touch()

    def note(self, file: Path, line: str) -> None:
        with open(file, "ab", buffering=0) as out:
            out.write(f"{line}\n".encode())

    def payments(self) -> list[str]:
        return self.paid.read_text().split()


def agent_of(hf: Holdfast, world: World) -> Any:
    @tool(if_interrupted="retry")
    def look_up(order: int, call: holdfast.ToolCall) -> str:
        """Find an order."""
        world.note(world.looked, call.key)
        return f"order {order} costs 240"

    @tool
    def pay(order: int, call: holdfast.ToolCall) -> str:
        """Pay money back."""
        world.note(world.paid, call.key)
        time.sleep(0.005)  # The bank has it; its answer takes a while.
        return "paid"

    script = [[call("look_up", order=17), call("look_up", order=18)], call("pay", order=17), "Paid."]
    return hf.agent("clerk", model=Scripted(script), tools=[look_up, pay], history=False)


def live(path: Path, folder: Path, jobs: int, ready: int | None = None) -> None:
    """One life: every job again with its key, from the first; what is done is not done again."""
    world = World(folder)
    with holdfast.open(path, durability="fast", settings=QUICK) as hf:
        agent = agent_of(hf, world)
        if ready is not None:
            os.write(ready, b".")
        for job in range(jobs):
            session, key = f"s{job % SESSIONS}", f"job-{job}"
            while (reply := agent.send(session, f"Refund order 17, job {job}.", key=key)).status == "waiting":
                for question in reply.questions:
                    happened = question.call in world.payments()
                    hf.answer(question.id, approve=not happened, payload="paid" if happened else None)
            assert reply.status == "done", reply


def warmed_up(folder: Path) -> None:
    """Load here what every child would load for itself before it does anything: vocabularies, modules."""
    folder.mkdir()
    live(folder / "a.db", folder, 1)


def killed(path: Path, folder: Path, jobs: int, after: float) -> bool:
    """A life in a process of its own, killed after some time; False if it was done before."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about forking beside threads.
        child = os.fork()
    if child == 0:
        try:
            live(path, folder, jobs, writing)
        except BaseException as error:
            (folder / "failed.txt").write_text(f"{type(error).__name__}: {error}")
            os._exit(1)
        os._exit(0)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert not (folder / "failed.txt").exists(), (folder / "failed.txt").read_text()
    return os.WIFSIGNALED(status)


def in_flight(path: Path) -> Counter[tuple[str, str | None]]:
    """Every call that was begun and has no outcome, as the journal lists it; each must have its class."""
    found: Counter[tuple[str, str | None]] = Counter()
    with holdfast.open(path, durability="fast", settings=QUICK) as hf:
        for session in range(SESSIONS):
            resumed = hf.index.resume_actor(f"actor/main/session/s{session}/thread/main")
            for work in resumed.pending:
                if work.call is None or work.question is not None:
                    continue
                kind = work.kind.removesuffix("_in_progress")
                name = None if kind == "model" else work.name
                assert work.next == CLASSES[kind, name], work
                assert work.unsafe_to_retry == (work.next == "ask"), work
                found[kind, name] += 1
    return found


def check(path: Path, folder: Path, jobs: int) -> None:
    world = World(folder)
    with holdfast.open(path) as hf:
        assert not hf.journal.verify().findings
        calls: list[str] = []
        for number in range(SESSIONS):
            said = hf.session(f"s{number}").messages()
            mine = [job for job in range(jobs) if job % SESSIONS == number]
            assert [one.text for one in said if one.role == "user"] == [f"Refund order 17, job {job}." for job in mine]
            assert [one.text for one in said if one.role == "assistant" and not one.tool_calls] == ["Paid."] * len(mine)
            assert openai_problems(hf.session(f"s{number}").pack(100_000).to_openai()["messages"]) == []
            calls += [one.id for message in said for one in message.tool_calls if one.name == "pay"]
        assert sorted(world.payments()) == sorted(calls), "each payment happened exactly once"
        assert not list(hf.questions())


def trial(folder: Path, random: Random, kills: int, jobs: int) -> tuple[int, Counter[tuple[str, str | None]]]:
    """Jobs done by processes that are killed again and again; gives how often, and what was in flight."""
    path = folder / "a.db"
    World(folder)
    hits, seen = 0, Counter[tuple[str, str | None]]()
    for _ in range(kills):
        if not killed(path, folder, jobs, random.uniform(0.001, 0.06)):
            break
        hits += 1
        seen += in_flight(path) if path.exists() else Counter()
    live(path, folder, jobs)
    check(path, folder, jobs)
    return hits, seen


def test_an_agent_killed_at_random_moments_pays_once_and_answers_everything(tmp_path: Path) -> None:
    random, wanted = seeded("agent sigkill"), volume(30, 2_000)
    hits, seen, number = 0, Counter[tuple[str, str | None]](), 0
    warmed_up(tmp_path / "warm")
    while hits < wanted:
        folder = tmp_path / str(number)
        folder.mkdir()
        more, found = trial(folder, random, kills=min(50, wanted - hits), jobs=volume(12, 60))
        hits, seen, number = hits + more, seen + found, number + 1
    print(f"{hits} kills, in flight: {dict(seen)}")
    assert sum(seen.values()) > 0


def test_a_program_that_retries_payments_is_caught(tmp_path: Path, monkeypatch: Any) -> None:
    """Planted: the runtime runs what is torn again without asking. The same trial must notice."""
    warmed_up(tmp_path / "warm")
    monkeypatch.setattr("holdfast.core.frames.next_step.interruption_policy", lambda torn: "retry")
    original = TurnEngine.end_tool

    def slow(self: TurnEngine, call: TurnToolCall, *args: Any, **how: Any) -> Any:
        time.sleep(0.02)  # Where the payment has happened, and the journal does not know it yet.
        return original(self, call, *args, **how)

    monkeypatch.setattr(TurnEngine, "end_tool", slow)
    random = seeded("planted")
    noticed = any(_pays_twice(tmp_path / str(number), random) for number in range(10))
    assert noticed, "no payment was repeated, so the trial would not have noticed"


def _pays_twice(folder: Path, random: Random) -> bool:
    """Whether a payment was repeated by processes that are killed at moments that chance decides."""
    folder.mkdir()
    World(folder)
    for _ in range(25):
        if not killed(folder / "a.db", folder, 4, random.uniform(0.01, 0.15)):
            break
    live(folder / "a.db", folder, 4)
    payments = World(folder).payments()
    return len(payments) > len(set(payments))
