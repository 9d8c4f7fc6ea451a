"""A conversation that ends is handed over to memory: all of it, once, whatever fails or happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.client.holdfast import Holdfast
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.core.journal import fold, project
from holdfast.errors import SessionClosed
from holdfast.flow.frames.leases import StreamLeases
from holdfast.flow.sessions import sessions
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.ports import EndedConversation
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from tests.model.sessions_walk import Engine, count_fours

HOUR = 3_600_000
ENDS: dict[str, Callable[[Holdfast], object]] = {
    "close": lambda hf: hf.session("a").close(),
    "reset": lambda hf: hf.session("a").reset(),
    "timeout": lambda hf: hf.sweep_sessions(),
}


def client(
    journal: Any, memory: Any, *, later: int = 0, attempts: int = 10, clock: FrozenClock | None = None
) -> Holdfast:
    """A process: new clock, new ids, new name, nothing in mind."""
    clock = clock or FrozenClock()
    clock.advance(later)
    settings = Settings(handover_attempts=attempts, lease_ms=1_000)
    return Holdfast(
        assemble_env(journal, settings, clock, None, ClientExtensions(tokenizer=count_fours, memory=memory))
    )


def talk(hf: Holdfast) -> dict[str, list[str]]:
    """A session with two threads, in which something was taken back, summarised and answered late."""
    chat = hf.session("a", idle_timeout=60)
    chat.append(["one", "two", "gone", "gone too"])
    chat.rewind(to=chat.messages()[1])
    call = {"id": "p", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    asked = chat.append({"role": "assistant", "content": "three", "tool_calls": [call]})
    chat.append("four")
    chat.append_result(asked.tool_calls[0], "five")
    other = chat.fork(thread="other")
    other.append("six")
    chat.rewind(to=asked)
    chat.append(["seven", "eight"])
    chat.compact(keep=1, summarizer=lambda messages: "short")
    return {
        "main": ["one", "two", "three", "seven", "eight"],
        "other": ["one", "two", "three", "four", "five", "six"],
    }


def only(engine: Engine) -> tuple[str, str, dict[str, list[str]]]:
    (found,) = engine.taken.values()
    return found


# the whole history, once


@pytest.mark.parametrize("cause", ENDS)
def test_memory_is_given_the_whole_history_once(cause: str) -> None:
    journal, engine = MemoryJournal(), Engine()
    said = talk(client(journal, engine))
    hf = client(journal, engine, later=HOUR)
    ENDS[cause](hf)
    assert only(engine) == ("a", cause, said)
    assert hf.session("a").details.status == ("closed" if cause == "close" else "ended")
    for again in (hf, client(journal, engine, later=2 * HOUR)):
        assert again.sweep_sessions().handed_over == 0
    assert engine.asked == 1


def test_the_history_comes_in_pages_however_long_it_is() -> None:
    hf = client(MemoryJournal(), engine := Engine())
    texts = [f"t{number}" for number in range(300)]
    hf.session("a").append(texts)
    hf.session("a").close()
    assert only(engine)[2] == {"main": texts}


def test_a_session_in_which_nothing_was_said_is_not_offered() -> None:
    hf = client(MemoryJournal(), engine := Engine())
    chat = hf.session("a")
    chat.rewind(before=chat.append("never mind"))
    chat.close()
    assert (chat.details.status, engine.asked) == ("closed", 0)


def test_what_is_said_after_a_reset_is_not_in_the_old_history() -> None:
    hf = client(MemoryJournal(), engine := Engine())
    chat = hf.session("a")
    chat.append("old")
    engine.fails = True
    chat.reset()
    chat.append("new")
    engine.fails = False
    assert hf.sweep_sessions().handed_over == 1
    assert only(engine) == ("a", "reset", {"main": ["old"]})
    chat.close()
    assert [found[2] for found in engine.taken.values()] == [{"main": ["old"]}, {"main": ["new"]}]


def test_memory_that_reads_later_still_reads_what_ended() -> None:
    kept: list[EndedConversation] = []

    class Lazy:
        def take(self, ended: EndedConversation) -> None:
            kept.append(ended)

    hf = client(MemoryJournal(), Lazy())
    said = talk(hf)
    chat = hf.session("a")
    chat.reset()
    chat.append(["quite", "other"])
    chat.rewind(to=chat.messages()[0])
    chat.reset()
    first = kept[0]
    assert {name: list(_labels(first, name)) for name in first.threads} == said


def _labels(ended: EndedConversation, thread: str) -> Iterator[str]:
    for message in ended.messages(thread):
        yield str(message.tool_results[0].result) if message.tool_results else message.text


# memory that fails


def test_memory_that_fails_is_asked_again_and_given_up_at_last() -> None:
    hf = client(MemoryJournal(), engine := Engine(), attempts=3)
    chat = hf.session("a")
    chat.append("one")
    engine.fails = True
    chat.close()
    with pytest.raises(SessionClosed):
        chat.close()
    for attempts in (1, 2):
        assert (chat.details.status, engine.asked) == ("closing", attempts)
        assert [info.id for info in hf.sessions(status="closing")] == ["a"]
        hf.sweep_sessions()
    assert (chat.details.status, engine.asked) == ("closed", 3)
    engine.fails = False
    assert hf.sweep_sessions().handed_over == 0
    assert _offers(hf) == [(1, False, False), (2, False, False), (3, False, True)]
    reasons = [event.content.reason for event in hf.journal.events("session/a", types=["session.offered"])]
    assert all("memory is not there" in reason for reason in reasons)
    assert hf.journal.verify().findings == ()


def test_memory_that_recovers_takes_it() -> None:
    hf = client(MemoryJournal(), engine := Engine(), attempts=3)
    chat = hf.session("a")
    chat.append("one")
    engine.fails = True
    chat.reset()
    hf.sweep_sessions()
    engine.fails = False
    assert hf.sweep_sessions().handed_over == 1
    assert (chat.details.status, _offers(hf)[-1]) == ("ended", (3, True, False))


class Killed(BaseException):
    """The process ends here."""


class Fatal:
    """Memory that kills whoever offers it something, as often as it is told."""

    def __init__(self, kills: int) -> None:
        self.left, self.asked = kills, 0

    def take(self, ended: EndedConversation) -> None:
        self.asked += 1
        if self.left:
            self.left -= 1
            raise Killed


def die_of(hf: Holdfast, work: Callable[[], object]) -> None:
    """Do something and die of it: whatever this process holds stays as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "release_stream", lambda *given: None)
        with pytest.raises(Killed):
            work()
    hf.env.leases.after_fork()


def test_memory_that_kills_its_process_is_given_up_at_last() -> None:
    hf = client(MemoryJournal(), memory := Fatal(100), attempts=3)
    chat = hf.session("a")
    chat.append("one")
    die_of(hf, chat.close)
    for _ in range(3):
        assert chat.details.status == "closing"
        die_of(hf, hf.sweep_sessions)
    assert hf.sweep_sessions().handed_over == 0
    assert (chat.details.status, memory.asked) == ("closed", 4)  # Nothing says of the first one what it died of.
    assert _offers(hf) == [(1, False, False), (2, False, False), (3, False, False), (3, False, True)]
    assert hf.journal.verify().findings == ()


def test_memory_that_survives_its_last_attempt_has_taken_it() -> None:
    hf = client(MemoryJournal(), memory := Fatal(3), attempts=3)
    chat = hf.session("a")
    chat.append("one")
    die_of(hf, chat.reset)
    for _ in range(2):
        die_of(hf, hf.sweep_sessions)
    assert hf.sweep_sessions().handed_over == 1
    assert (chat.details.status, _offers(hf)[-1], memory.asked) == ("ended", (3, True, False), 4)


def _offers(hf: Holdfast) -> list[tuple[int, bool, bool]]:
    found: list[Any] = [event.facts for event in hf.journal.events("session/a", types=["session.offered"])]
    return [(facts.attempts, facts.taken, facts.given_up) for facts in found]


# tests that can fail


def taken_twice(patch: pytest.MonkeyPatch) -> None:
    """That it was taken is not remembered."""
    patch.setitem(fold.SESSION_RULES, "session.offered", lambda session, facts, version, at: session)
    patch.setitem(project.SESSION_ROW_RULES, "session.offered", lambda facts, version, at: [])


def history_of_the_window(patch: pytest.MonkeyPatch) -> None:
    original = sessions.iter_segment_messages
    patch.setattr(sessions, "iter_segment_messages", lambda *args: list(original(*args))[-2:])


def end_and_hand_over_apart(patch: pytest.MonkeyPatch) -> None:
    """A session that ends does not say in the same commit that memory is owed something."""
    original = sessions._end_drafts

    def ending(env: Any, *args: Any) -> Any:
        return original(replace(env, memory=None), *args)

    patch.setattr(sessions, "_end_drafts", ending)


def deaths_uncounted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamLeases, "was_abandoned", lambda *given: False)


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (deaths_uncounted, test_memory_that_kills_its_process_is_given_up_at_last),
        (taken_twice, lambda: test_memory_is_given_the_whole_history_once("close")),
        (history_of_the_window, lambda: test_memory_is_given_the_whole_history_once("reset")),
        (end_and_hand_over_apart, lambda: test_memory_is_given_the_whole_history_once("timeout")),
    ],
    ids=["deaths_uncounted", "taken_twice", "history_of_the_window", "end_and_hand_over_apart"],
)
def test_a_planted_bug_is_caught(plant: Any, test: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, ValueError, holdfast.HoldfastError, Killed)):
            test()
    test()


def test_a_memory_that_gives_something_to_await_has_not_taken_it(tmp_path: Path) -> None:
    class Sneaky:
        async def _later(self) -> None: ...

        def take(self, ended: holdfast.types.EndedConversation) -> Any:
            return self._later()

    with holdfast.open(tmp_path / "a.db", memory=Sneaky()) as hf:
        chat = hf.session("a")
        chat.append("hello")
        chat.close()
        assert chat.details.status == "closing"
