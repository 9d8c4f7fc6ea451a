"""Keys that callers choose never meet the keys that holdfast makes, whatever they look like.

A story with a turn, questions, steps, a child and effects is told while somebody writes into all its streams under
keys made from everything the journal shows. It must end as it does when nobody is there.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Scripted, ToolCall, tool
from holdfast.effects import OperatorOutput
from holdfast.errors import HoldfastError, InvalidValue, KeyReused
from holdfast.extras.dual_write import DualWrite
from holdfast.flow.effects import outbox, settle
from holdfast.model.scripted import call
from holdfast.records import ids
from holdfast.testing.clock import FrozenClock
from tests.effects.sinks import Noting, notes
from tests.scale import seeded, volume

SESSION, LANE, BUSY = "s", "operator/test", "operator/busy"
KINDS = ("answer", "stop", "end", "torn", "do", "run", "ask", "child", "effect", "settled", "overdue/0", "frame")
Story = Callable[[Holdfast, Callable[[], None], str], list[Any]]


def tell(hf: Holdfast, intrude: Callable[[], None], key: str) -> list[Any]:
    """Tell the story, with one key of the caller's for everything; give what a caller sees of it."""
    numbers, told, taken = itertools.count(), [], Noting()

    @tool
    def close(name: str, call: ToolCall) -> list[Any]:
        """Close an account."""
        intrude()
        return [call.ask("Close?").payload, call.ask("Certain?", key=key).payload, call.ask("Now?").payload]

    agent = hf.agent("clerk", model=Scripted([call("close", name="Eve"), "Done."]), tools=[close], history=False)
    reply = agent.send(SESSION, "Close.", key=key)
    for number in range(3):
        intrude()
        (question,) = reply.questions
        hf.answer(question.id, approve=True, payload=number)
        intrude()
        reply = agent.send(SESSION, "Close.", key=key)
    told += [reply.text, [one.result for message in hf.session(SESSION).messages() for one in message.tool_results]]
    for again in (False, True):
        with hf.frame("job", key=key, actor="worker") as frame:
            intrude()
            told.append(frame.run(lambda: next(numbers), key=key))
            intrude()
            with frame.frame("part", key=key) as child:
                told.append(child.run(lambda: next(numbers), key=key))
                intrude()
            if not again:
                told.append(len({frame.attach("url", description="x", target="https://a", key=key) for _ in range(2)}))
    hf.effects.add_sink("crm", taken.deliver)
    notes(hf, 1, 2, scope=LANE)
    notes(hf, 3, scope=BUSY)
    for _ in range(3):
        intrude()
        hf.effects.dispatch()
    return [*told, sorted(one.payload for one in taken.asked)]


class Intruder:
    """Writes into every stream, under keys made from all that the journal shows."""

    def __init__(self, hf: Holdfast, random: Random, limit: int) -> None:
        self.hf, self.random, self.limit = hf, random, limit
        self.used: set[tuple[str, str]] = set()
        self.refused = self.written = 0

    def __call__(self) -> None:
        events = list(self.hf.journal.events())
        known = [(event.stream, event.key) for event in events if event.key is not None]
        made = []
        for event in events:
            facts = [getattr(event.facts, name) for name in getattr(event.facts, "__struct_fields__", ())]
            minted = [text for text in facts if isinstance(text, str) and len(text) == ids.ULID_CHARS]
            made += [(event.stream, f"{id}/{kind}") for id in minted for kind in KINDS]
            made += [(event.stream, f"effect/{id}/settled") for id in minted]
        made = self.random.sample(made, min(self.limit, len(made)))
        tries = [*known, *made, *((stream, f"holdfast/{key}") for stream, key in made)]
        tries += [(stream, key.removeprefix("holdfast/")) for stream, key in known]
        for stream, key in tries:
            if (stream, key) not in self.used:
                self.used.add((stream, key))
                self.write(stream, key)

    def write(self, stream: str, key: str) -> None:
        hf = self.hf
        ways: list[Callable[[], object]] = [
            lambda: hf.journal.append(stream, "app.noted", key=key),
            lambda: hf.state(stream).write("n", 1, key=key),
            lambda: hf.effects.operate(lambda given, view: OperatorOutput(None, []), scope=stream, name="x", key=key),
        ]
        before = hf.journal.position()
        try:
            self.random.choice(ways)()
            self.written += 1
        except InvalidValue:
            assert key.startswith("holdfast/")
            self.refused += 1
        except KeyReused:
            assert not key.startswith("holdfast/")
        else:
            return
        assert hf.journal.position() == before


def check_one(url: str, random: Random, story: Story = tell) -> Intruder:
    """Tell the story alone and with an intruder, under the same key of the caller's."""
    kind = random.choice(["/", "ä", "\U0001f600", *KINDS])
    key = (
        "".join(random.choices([*string.ascii_letters, "/", ":", kind], k=random.randint(1, 100)))[:100].strip() or "k"
    )
    with holdfast.open("memory:", clock=FrozenClock()) as alone:
        expected = story(alone, lambda: None, key)
    with holdfast.open(url, clock=FrozenClock(), durability="fast") as hf:
        intruder = Intruder(hf, random, 16)
        assert story(hf, intruder, key) == expected, f"{key!r}"
        assert hf.journal.verify().findings == ()
    return intruder


def test_generated_keys_of_callers_change_nothing_that_holdfast_does(tmp_path: Path) -> None:
    random = seeded("callers' keys")
    done = [
        check_one("memory:" if number % 2 else str(tmp_path / f"{number}.db"), random)
        for number in range(volume(4, 400))
    ]
    print(f"{sum(one.written for one in done)} written, {sum(one.refused for one in done)} refused")
    assert all(one.written and one.refused for one in done)


class _NoPrefix(tuple):  # type: ignore[type-arg]
    """A planted bug: holdfast's own keys look like anybody's."""

    __slots__ = ()

    def __add__(self, other: str) -> str:  # type: ignore[override]
        return other


class _NotRefused(tuple):  # type: ignore[type-arg]
    """A planted bug: holdfast's own keys have a form of their own, and callers may give them."""

    __slots__ = ()

    def __add__(self, other: str) -> str:  # type: ignore[override]
        return f"holdfast/{other}"


@pytest.mark.parametrize("planted", [_NoPrefix(), _NotRefused()], ids=["no reserved form", "not refused"])
def test_a_collision_of_keys_is_noticed(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "RESERVED_PREFIX", planted)
    with pytest.raises((AssertionError, ValueError, HoldfastError)):
        _ = [check_one("memory:", Random(number)) for number in range(20)]


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, clock=FrozenClock(), durability="fast") as client:
        yield client


def test_a_question_stays_answerable_whatever_the_next_message_has_for_a_key(hf: Holdfast) -> None:
    paid = []

    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        paid.append(17)
        return "paid"

    agent = hf.agent("clerk", model=Scripted([call("pay"), "Done."]), tools=[pay], history=False)
    (question,) = agent.send(SESSION, "Pay.", key="k").questions
    agent.send(SESSION, "And hurry.", key=f"{question.id}/answer", if_busy="join")
    with pytest.raises(InvalidValue, match="holdfast's own"):
        agent.send(SESSION, "And hurry.", key=f"holdfast/{question.id}/answer", if_busy="join")
    hf.answer(question.id, approve=True)
    agent.send(SESSION, "Pay.", key="k")
    assert paid == [17]


def test_a_question_with_a_key_is_not_taken_for_one_without(hf: Holdfast) -> None:
    @tool
    def close(call: ToolCall) -> list[Any]:
        """Close an account."""
        return [call.ask("Close?", key="question-2").payload, call.ask("Certain?").payload]

    agent = hf.agent("clerk", model=Scripted([call("close"), "Done."]), tools=[close], history=False)
    reply = agent.send(SESSION, "Close.", key="k")
    for number in range(2):
        (question,) = reply.questions
        hf.answer(question.id, payload=number)
        reply = agent.send(SESSION, "Close.", key="k")
    (result,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    assert result.result == [0, 1]


def test_a_message_with_a_key_is_not_taken_for_an_entry_of_a_list(hf: Holdfast) -> None:
    hf.session(SESSION).append("said elsewhere", key="list/0")
    chat = DualWrite([{"role": "user", "content": "said here"}], hf, SESSION)
    assert [message.text for message in chat.session.messages()] == ["said elsewhere", "said here"]


def poison(monkeypatch: pytest.MonkeyPatch) -> Noting:
    """Let the outcomes of one lane be refused, as those of a damaged or contended stream would be."""
    settled = settle.settle_effect

    def refuse(env: Any, stream: str, *given: Any, **more: Any) -> Any:
        if stream == LANE:
            raise KeyReused("This lane is poisoned.")
        return settled(env, stream, *given, **more)

    monkeypatch.setattr(outbox, "settle_effect", refuse)
    return Noting()


def dispatch_poisoned(hf: Holdfast, taken: Noting) -> None:
    """Dispatch beside a poisoned lane: all other lanes, of its own sink and of others, are delivered and settled."""
    for name in ("crm", "mail"):
        hf.effects.add_sink(name, taken.deliver)
        notes(hf, 3, 4, scope=LANE, sink=name)
        notes(hf, 1, 2, scope=BUSY, sink=name)
    with pytest.raises(KeyReused, match="poisoned") as raised:
        hf.effects.dispatch()
    assert raised.value.__notes__ == [f"The effects of {LANE} for crm were left; others were dispatched."]
    assert [one.payload for one in taken.asked] == [1, 3, 2] * 2
    assert {one.scope for one in hf.effects.pending()} == {LANE}


def test_one_poisoned_lane_does_not_stop_the_others(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch_poisoned(hf, poison(monkeypatch))


def test_a_dispatch_that_ends_with_the_first_error_is_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "LANE_ERRORS", ())
    with pytest.raises((AssertionError, AttributeError)):
        dispatch_poisoned(hf, poison(monkeypatch))
