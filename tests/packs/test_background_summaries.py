"""Rules that compact in the background: the caller does not wait, nothing is covered twice, a crash loses nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Session
from holdfast.compaction import CompactionConfig
from holdfast.errors import InvalidValue
from holdfast.flow.compaction import rules, summaries
from holdfast.flow.frames import leases
from holdfast.testing.journal_contract import dump_projections

PATIENCE = 60.0
"""Seconds after which a test that hangs fails."""


def count(text: str) -> int:
    return len(text) // 4 + 1


class Writer:
    """A summarizer that waits for permission before each summary."""

    def __init__(self) -> None:
        self.begun, self.go, self.made = threading.Event(), threading.Event(), 0

    def __call__(self, messages: Any) -> str:
        self.made += 1
        self.begun.set()
        assert self.go.wait(PATIENCE)
        return f"{len(messages)} messages"


def settle() -> None:
    """Wait for every compaction in the background."""
    for thread in threading.enumerate():
        if thread.name == "holdfast-background":
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture(params=["memory:", "a.db"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = request.param if request.param == "memory:" else tmp_path / request.param
    with holdfast.open(url, tokenizer=count) as client:
        yield client
        settle()
        assert client.journal.verify().findings == ()
        live = dump_projections(client.env.journal)
        client.journal.rebuild()
        assert dump_projections(client.env.journal) == live


def background(writer: Callable[..., Any], **options: Any) -> CompactionConfig:
    return CompactionConfig(threshold=3, keep=1, summarizer=writer, background=True, **options)


def check_covered_once(chat: Session) -> None:
    covered = [message.id for one in chat.compaction.summaries() for message in chat.compaction.expand(one)]
    assert len(covered) == len(set(covered))


def test_an_append_does_not_wait_for_its_summary(hf: Holdfast) -> None:
    chat, writer = hf.session("a"), Writer()
    chat.compaction.add_rule(background(writer))
    chat.append(["One.", "Two.", "Three.", "Four."])
    assert writer.begun.wait(PATIENCE)
    chat.append("Five.")
    assert chat.compaction.summaries() == []
    assert writer.made == 1, "one at a time"
    writer.go.set()
    settle()
    assert [one.messages for one in chat.compaction.summaries()] == [3]
    check_covered_once(chat)
    assert [message.text for message in chat.messages()] == ["One.", "Two.", "Three.", "Four.", "Five."]


def test_messages_that_come_meanwhile_are_summarised_without_another_append(hf: Holdfast) -> None:
    chat, writer = hf.session("a"), Writer()
    chat.compaction.add_rule(background(writer))
    chat.append(["One.", "Two.", "Three.", "Four."])
    assert writer.begun.wait(PATIENCE)
    chat.append([f"And {number}." for number in range(6)])
    writer.go.set()
    settle()
    assert sum(one.messages for one in chat.compaction.summaries()) == 9
    check_covered_once(chat)


@pytest.mark.parametrize("planted", [False, True])
def test_an_occasion_that_comes_while_a_rule_looks_is_not_missed(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    chat, looked, go, is_due = hf.session("a"), threading.Event(), threading.Event(), rules._is_due

    def look(*given: Any) -> bool:
        found = is_due(*given)
        if threading.current_thread().name == "holdfast-background" and not looked.is_set():
            looked.set()
            assert go.wait(PATIENCE)
        return found

    monkeypatch.setattr(rules, "_is_due", look)
    chat.append("One.")
    chat.compaction.add_rule(background(lambda messages: "They counted."))
    assert looked.wait(PATIENCE)
    if planted:  # Occasions that come meanwhile are forgotten.
        monkeypatch.setattr(hf.env.leases, "run_later", lambda *given: None)
    chat.append(["Two.", "Three.", "Four."])
    go.set()
    settle()
    assert [one.messages for one in chat.compaction.summaries()] == ([] if planted else [3])


def test_a_range_that_is_retracted_meanwhile_is_not_covered(hf: Holdfast) -> None:
    chat, writer = hf.session("a"), Writer()
    chat.compaction.add_rule(background(writer))
    chat.append(["One.", "Two.", "Three.", "Four."])
    assert writer.begun.wait(PATIENCE)
    chat.rewind(to=chat.messages()[1])
    writer.go.set()
    settle()
    covered = [message.text for one in chat.compaction.summaries() for message in chat.compaction.expand(one)]
    assert set(covered) <= {"One.", "Two."}


def write_from_two_clients(folder: Path) -> int:
    """Let two clients summarise the same messages at once, and return how many summaries were written."""
    first, second = Writer(), Writer()
    with (
        holdfast.open(folder / "a.db", tokenizer=count) as hf,
        holdfast.open(folder / "a.db", tokenizer=count) as other,
    ):
        chat, same = hf.session("a"), other.session("a")
        chat.compaction.add_rule(background(first))
        chat.append(["One.", "Two.", "Three.", "Four."])
        same.compaction.add_rule(background(second))
        assert first.begun.wait(PATIENCE)
        assert second.begun.wait(PATIENCE)
        first.go.set()
        second.go.set()
        settle()
        assert [made.messages for made in chat.compaction.summaries()] == [3]
        return len(list(hf.journal.events(types=["summary.made"])))


def test_two_clients_write_one_summary(tmp_path: Path) -> None:
    assert write_from_two_clients(tmp_path) == 1


CRASH = """
import os, sys, threading
import holdfast

def dies(messages):
    os._exit(9)

hf = holdfast.open(sys.argv[1])
chat = hf.session("a")
chat.append(["One.", "Two.", "Three.", "Four."])
chat.compaction.add_rule(holdfast.compaction.CompactionConfig(threshold=3, keep=1, summarizer=dies, background=True))
threading.Event().wait(60)
"""


def test_what_a_crash_interrupted_is_made_when_the_rule_is_added_again(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path / "a.db")], timeout=PATIENCE, check=False)
    assert died.returncode == 9
    with holdfast.open(tmp_path / "a.db", tokenizer=count) as hf:
        chat = hf.session("a", create=False)
        assert chat.compaction.summaries() == []
        for _ in range(2):
            chat.compaction.add_rule(background(lambda messages: "They counted."))
            settle()
            assert [one.messages for one in chat.compaction.summaries()] == [3]
        assert hf.journal.verify().findings == ()


def test_closing_the_client_abandons_a_summary_and_the_next_one_makes_it(tmp_path: Path) -> None:
    writer = Writer()
    with holdfast.open(tmp_path / "a.db", tokenizer=count) as hf:
        chat = hf.session("a")
        chat.compaction.add_rule(background(writer))
        chat.append(["One.", "Two.", "Three.", "Four."])
        assert writer.begun.wait(PATIENCE)
    writer.go.set()
    settle()
    with holdfast.open(tmp_path / "a.db", tokenizer=count) as hf:
        chat = hf.session("a")
        assert chat.compaction.summaries() == []
        chat.compaction.add_rule(background(writer))
        settle()
        assert [one.messages for one in chat.compaction.summaries()] == [3]


def test_draining_waits_for_a_summary_and_begins_none(hf: Holdfast) -> None:
    chat, other, writer = hf.session("a"), hf.session("b"), Writer()
    chat.compaction.add_rule(background(writer))
    chat.append(["One.", "Two.", "Three.", "Four."])
    assert writer.begun.wait(PATIENCE)
    assert hf.drain(0) == 1
    writer.go.set()
    settle()
    assert hf.drain(0) == 0
    other.compaction.add_rule(background(writer))
    other.append(["One.", "Two.", "Three.", "Four."])
    settle()
    assert other.compaction.summaries() == []


def _append_and_settle(chat: Session) -> None:
    chat.append(["One.", "Two.", "Three.", "Four."])
    settle()


def test_a_summary_that_fails_is_warned_about_and_made_at_the_next_occasion(hf: Holdfast) -> None:
    chat, answers = hf.session("a"), ["", "They counted."]
    chat.compaction.add_rule(background(lambda messages: answers.pop(0)))
    with pytest.warns(RuntimeWarning, match="returned nothing") as told:
        _append_and_settle(chat)
    assert told[0].filename == __file__
    chat.append("Five.")
    settle()
    assert [one.text for one in chat.compaction.summaries()] == ["They counted."]


@pytest.mark.parametrize("planted", [False, True])
def test_more_conversations_than_threads_wait_in_a_queue(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    monkeypatch.setattr(leases, "BACKGROUND_THREADS", 2)
    chats, writer = [hf.session(f"s{number}") for number in range(5)], Writer()
    for chat in chats:
        chat.append(["One.", "Two.", "Three.", "Four."])
    for chat in chats:
        chat.compaction.add_rule(background(writer))
        chat.compaction.add_rule(background(writer))
    if planted:  # What does not find a thread is forgotten.
        hf.env.leases._queue.clear()
    assert sum(thread.name == "holdfast-background" for thread in threading.enumerate()) == 2
    writer.go.set()
    settle()
    assert [len(chat.compaction.summaries()) for chat in chats] == ([1, 1, 0, 0, 0] if planted else [1] * 5)
    assert writer.made == (2 if planted else 5), "a thread waits once for each rule"


def summarise_forks(hf: Holdfast) -> list[int]:
    """Add a rule to a session whose threads are all due, and return how many summaries each of them has."""
    chat = hf.session("a")
    chat.append(["One.", "Two.", "Three.", "Four."])
    threads, writer = [chat, *(chat.fork() for _ in range(4))], Writer()
    for number, fork in enumerate(threads[1:]):
        fork.append([f"Fork {number}.", "Five.", "Six.", "Seven."])
    chat.compaction.add_rule(background(writer))
    assert writer.begun.wait(PATIENCE)
    writer.go.set()
    settle()
    return [len(thread.compaction.summaries()) for thread in threads]


def test_every_thread_of_a_session_is_summarised(hf: Holdfast) -> None:
    assert summarise_forks(hf) == [1] * 5


def test_a_rule_that_is_removed_while_its_summary_is_made_writes_nothing(hf: Holdfast) -> None:
    chat, other, writer = hf.session("a"), hf.session("b"), Writer()
    undo = chat.compaction.add_rule(background(writer))
    other.compaction.add_rule(background(writer))
    for each in (chat, other):
        each.append(["One.", "Two.", "Three.", "Four."])
    assert writer.begun.wait(PATIENCE)
    undo()
    other.compaction.add_rule(background(writer))
    writer.go.set()
    settle()
    assert chat.compaction.summaries() == []
    assert len(other.compaction.summaries()) == 1, "a rule that was replaced writes what it has made"


def test_closing_the_async_client_during_a_summary_warns_of_nothing(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    async def run() -> None:
        async with holdfast.open_async(tmp_path / "a.db", tokenizer=count) as hf:
            chat, begun = await hf.session("a"), asyncio.Event()

            async def write(messages: Any) -> str:
                begun.set()
                await asyncio.Event().wait()
                return "never"

            await chat.compaction.add_rule(background(write))
            await chat.append(["One.", "Two.", "Three.", "Four."])
            await begun.wait()

    asyncio.run(run())
    settle()
    assert [str(told.message) for told in recwarn] == []


def test_the_async_client_summarises_in_the_background_on_its_loop(tmp_path: Path) -> None:
    async def run() -> None:
        async with holdfast.open_async(tmp_path / "a.db", tokenizer=count) as hf:
            chat, begun, go = await hf.session("a"), asyncio.Event(), asyncio.Event()

            async def write(messages: Any) -> str:
                begun.set()
                await go.wait()
                return f"{len(messages)} messages"

            await chat.compaction.add_rule(background(write))
            await chat.append(["One.", "Two.", "Three.", "Four."])
            await begun.wait()
            assert await chat.compaction.summaries() == []
            go.set()
            await asyncio.to_thread(settle)
            assert [one.text for one in await chat.compaction.summaries()] == ["3 messages"]
            await chat.append(["Five.", "Six.", "Seven."])
            await asyncio.to_thread(settle)
            fork = await chat.fork(thread="fork")
            await chat.compaction.add_rule(background(write, strategy="sliding_window"))
            await asyncio.to_thread(settle)
            assert sum(one.messages for one in await fork.compaction.summaries()) == 6

    asyncio.run(run())


def test_background_is_true_or_false(hf: Holdfast) -> None:
    with pytest.raises(InvalidValue, match="background must be True or False"):
        hf.session("a").compaction.add_rule(CompactionConfig(background=1))  # type: ignore[arg-type]


def test_a_summary_that_holds_up_the_append_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_is_background", lambda rule: False)
    seen: list[threading.Thread] = []
    with holdfast.open("memory:", tokenizer=count) as hf:
        chat = hf.session("a")
        chat.compaction.add_rule(background(lambda messages: seen.append(threading.current_thread()) or "x"))
        chat.append(["One.", "Two.", "Three.", "Four."])
    assert seen == [threading.current_thread()]


def test_a_summary_that_is_written_without_comparing_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(summaries, "check_unchanged", lambda env, plan, states: None)
    assert write_from_two_clients(tmp_path) == 2
