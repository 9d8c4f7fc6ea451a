"""Kill a loop of one's own before and after every port call: nothing is paid twice, nothing that was said is lost.

The loop calls a model, a tool that may be repeated and one that must not and that needs a yes; somebody says more
while the model works. Whoever comes next runs the same code with the same key, until the turn is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Ask, CallModel, CallTool
from holdfast.core.frames import next_step as core_step
from holdfast.errors import ActorBusy
from holdfast.flow.turns import append, calls, turns
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.sessions import ThreadState
from holdfast.records.usage import Usage
from holdfast.testing.faults import FaultPoints, SimulatedDeath
from tests.crash.test_frame_crashes import bury, client
from tests.scale import seeded, volume
from tests.turns.loops import SESSION, asks, check_valid, place, spoken

Holdfast = holdfast.Holdfast
FIRST, SECOND = "Refund order 17.", "And say when."
LOOK, PAY = ("look", {"order": 17}), ("pay", {"order": 17, "amount": 240})


class World:
    """What survives every process: effects that happened, a person who answers, and another who says something."""

    def __init__(self, *, again: bool) -> None:
        self.again = again
        """What the person answers when something may have run."""
        self.ran: Counter[str] = Counter()
        self.yes: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.meanwhile: Callable[[], None] = lambda: None

    def model(self, hf: Holdfast, inner: Journal, step: CallModel) -> None:
        self.ran["model"] += 1
        self.meanwhile()
        shown = step.pack.to_openai()["messages"]
        if not any(message["role"] == "tool" for message in shown):
            step.done(asks(LOOK, PAY), usage=Usage(input=100, output=10))
            return
        if SECOND not in self.acknowledged:
            say_more(inner)
            self.acknowledged.add(SECOND)
        heard = SECOND in [message["content"] for message in shown]
        step.done("Refunded, today." if heard else "Refunded.", usage=Usage(input=100, output=10))

    def tool(self, step: CallTool) -> None:
        self.ran[step.name] += 1
        self.meanwhile()
        step.done(f"{step.name} done")

    def answer(self, hf: Holdfast, ask: Ask) -> None:
        """The person is another process."""
        for info in ask.questions:
            torn = info.call is not None
            name = str(hf.index.get_frame(info.frame).goal).partition("(")[0]
            self.asked[f"{name} {'again' if torn else 'first'}"] += 1
            yes = self.again if torn else True
            self.yes[name] += yes
            hf.answer(info.id, approve=yes, payload=None if yes else f"{name} done")


def say_more(inner: Journal) -> None:
    """Another process joins the turn, and does not wait for its reply."""
    turn = client(inner).session(SESSION).turn(SECOND, key="more", if_busy="join", wait=0)
    with pytest.raises(ActorBusy, match="was said"):
        turn.engine.open()


def run(hf: Holdfast, inner: Journal, world: World) -> Any:
    """The code that everybody runs: a new turn, one to go on with, or one that is answered already."""
    chat = hf.session(SESSION, system="Be terse.", model="gpt-4o")
    rules: Any = {"look": "retry"}
    with chat.turn(FIRST, key="first", if_interrupted=rules, needs_approval=["pay"]) as turn:
        world.acknowledged.add(FIRST)
        for step in turn:
            if isinstance(step, CallModel):
                world.model(hf, inner, step)
            elif isinstance(step, CallTool):
                world.tool(step)
            else:
                return step
    raise AssertionError("a turn ends, or waits")


def live_through(journal: Any, inner: Journal, world: World) -> list[Holdfast]:
    """Run it until it is done, again after every answer; ends with a death."""
    lives: list[Holdfast] = []
    try:
        for _ in range(12):
            lives.append(client(journal))
            last = run(lives[-1], inner, world)
            if not isinstance(last, Ask):
                return lives
            world.answer(client(inner), last)
    except SimulatedDeath:
        return lives
    raise AssertionError("the turn never ends")


def check(inner: Journal, world: World, point: str) -> None:
    """What must hold however often it died."""
    hf = client(inner)
    assert world.ran["pay"] <= 1 + max(0, world.yes["pay"] - 1), (point, "paid without a yes", world.ran, world.yes)
    assert world.ran["pay"] >= 1 or world.asked["pay again"] > world.yes["pay"] - 1, (point, "never paid")
    assert world.asked["pay first"] == 1, (point, "a yes is asked for once")
    assert world.asked["look again"] == 0, (point, "what may be repeated is not asked about")
    texts = [text for role, text in spoken(hf) if role == "user"]
    assert sorted(texts) == sorted(world.acknowledged), (point, "each once", texts)
    assert world.acknowledged == {FIRST, SECOND}, point
    results = [text for role, text in spoken(hf) if role == "tool"]
    assert sorted(results) == [["look done"], ["pay done"]], (point, results)
    assert spoken(hf)[-1] == ("assistant", "Refunded, today."), (point, spoken(hf))
    resumed = hf.index.resume_actor(place())
    assert (resumed.frames, resumed.holder, list(hf.questions())) == ((), None, []), point
    _check_outcomes(hf, point)
    check_valid(hf)
    assert hf.journal.verify().findings == (), point
    for message, key in ((FIRST, "first"), (SECOND, "more")):
        with hf.session(SESSION).turn(message, key=key) as turn:
            assert [step.text for step in turn] == ["Refunded, today."], (point, "the keys stand for the answer")


def _check_outcomes(hf: Holdfast, point: str) -> None:
    """Every intent has its outcome, and every outcome that says so has its message."""
    begun, ended = set(), []
    said = {event.version for event in hf.journal.events(f"session/{SESSION}/thread/main", types=["message.appended"])}
    for event in hf.journal.events(place()):
        kind, _, verb = event.type.partition(".")
        if kind not in ("tool", "model"):
            continue
        facts: Any = event.facts
        if verb == "requested":
            begun.add(facts.call)
        else:
            ended.append(facts.call)
            assert facts.message in said, (point, "an outcome without its message")
    assert begun == set(ended), point
    assert len(ended) == len(set(ended)), point


def torture(make: Callable[[], Journal], *, again: bool, writes: int = 1, reads: int = 0) -> Counter[str]:
    """Die at each point once, go on, and look; gives how often what was asked.

    Points are thinned out: `writes` and `reads` say that every how-manyth is died at, 0 that none is.
    """
    first = make()
    passing: Any = FaultPoints(first)
    live_through(passing, first, World(again=again))
    asked: Counter[str] = Counter()
    for number, name in enumerate(passing.passed, 1):
        every = writes if "append" in name else reads
        if not every or (number + len(name)) % every:
            continue
        inner, world = make(), World(again=again)
        points: Any = FaultPoints(inner, die_at=number)
        for hf in live_through(points, inner, world):
            bury(hf, known=bool(number % 2))
        assert points.passed == passing.passed[:number], "the work is not repeatable"
        live_through(inner, inner, world)
        check(inner, world, f"{number}: {name}")
        asked += world.asked
        inner.close()
    return asked


def test_nothing_is_wrong_when_nobody_dies() -> None:
    inner, world = MemoryJournal(), World(again=True)
    live_through(inner, inner, world)
    check(inner, world, "nobody died")
    assert (world.ran["pay"], world.ran["look"], world.asked["pay again"]) == (1, 1, 0)


@pytest.mark.parametrize("again", [True, False])
def test_a_turn_that_is_killed_anywhere(again: bool) -> None:
    asked = torture(MemoryJournal, again=again, reads=volume(24, 1))
    assert asked["pay again"] > 0, "some deaths leave nobody sure"


def test_a_turn_that_is_killed_anywhere_on_a_file(quick_path: Path) -> None:
    made = []

    def make() -> Journal:
        made.append(SqliteJournal(quick_path / f"{len(made)}.db", durability="fast"))
        return made[-1]

    assert torture(make, again=True, writes=volume(4, 1), reads=volume(0, 7))["pay first"] > 0


def test_a_turn_that_is_killed_again_and_again() -> None:
    random = seeded("turn crashes")
    for number in range(volume(12, 2_000)):
        inner, world = MemoryJournal(), World(again=True)
        for _ in range(random.randint(2, 5)):
            world.again = random.random() < 0.7
            _one_death(inner, world, random)
        world.meanwhile = lambda: None
        live_through(inner, inner, world)
        check(inner, world, f"turn {number}")


def _one_death(inner: Journal, world: World, random: Random) -> None:
    """Somewhere between two port calls, or in the middle of an effect, which nobody but the world has seen then."""
    points: Any = FaultPoints(inner, die_at=random.randint(1, 250))

    def meanwhile() -> None:
        if random.random() < 0.3:
            points._dead = True
            raise SimulatedDeath("in the middle of an effect")

    world.meanwhile = meanwhile
    for hf in live_through(points, inner, world):
        bury(hf, known=random.random() < 0.5)


# tests that can fail


def outcome_apart_from_its_message(patch: pytest.MonkeyPatch) -> None:
    """The result is said in one commit, and what that means for the turn is written in another."""
    original = append.decide_and_append

    def change(env: Any, streams: Any, decide: Any, **how: Any) -> Any:
        decided: dict[str, Any] = {}

        def line_first(states: Any) -> Any:
            decided.update(decide(states))
            return {streams[1]: decided.get(streams[1], [])}

        if how.get("key") is None:
            original(env, streams, line_first, **how)
            return original(env, streams, lambda states: {streams[0]: decided[streams[0]]})
        return original(env, streams, decide, **how)

    patch.setattr(append, "decide_and_append", change)


def intent_not_journaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calls, "begin_tool_calls", lambda env, turn, wanted: None)


def torn_not_asked_about(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core_step, "interruption_policy", lambda call: "retry")


def answer_lost(patch: pytest.MonkeyPatch) -> None:
    """The frame goes on in one commit, and the intent is written in another: a yes may be used up by nothing."""
    original = calls.begin_tool_calls

    def begin_tools(env: Any, turn: Any, wanted: Any) -> None:
        for one in wanted:
            frame = calls.load_current_state(env, turn.actor).frames.get(one.request.id)
            if frame is not None and frame.question is not None:
                holdfast.flow.frames.questions.resume_frame(env, frame.id)
        original(env, turn, wanted)

    patch.setattr(calls, "begin_tool_calls", begin_tools)


def key_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = turns.append_to_turn
    patch.setattr(turns, "append_to_turn", lambda *args, **how: original(*args, **{**how, "key": None}))


def joined_not_answered(patch: pytest.MonkeyPatch) -> None:
    """A turn ends with the next reply, whoever spoke meanwhile."""
    original = calls.append_to_turn

    def write(env: Any, place: Any, messages: Any, decide: Any, **how: Any) -> Any:
        def careless(state: Any, speech: Any) -> Any:
            line = ThreadState() if messages else speech.thread
            return decide(state, replace(speech, thread=line))

        return original(env, place, messages, careless, **how)

    patch.setattr(calls, "append_to_turn", write)


PLANTED = [
    outcome_apart_from_its_message,
    intent_not_journaled,
    torn_not_asked_about,
    answer_lost,
    key_forgotten,
    joined_not_answered,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, holdfast.HoldfastError)):
            torture(MemoryJournal, again=True)
