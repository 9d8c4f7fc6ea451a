"""Kill before and after every port call of every flow on frames: a restart lands in a row of the crash table.

| row | the journal says | resuming does |
|---|---|---|
| nothing | nothing | the caller asks again; the key deduplicates |
| frame | a frame, no request | goes on |
| intent | a request without an outcome | what its `if_interrupted` says: retry, ask or fail |
| outcome | every request has its outcome | goes on; nothing runs again |
| suspended | a question | waits for its answer |

The table is executed: the killed journal is compared with an oracle of a few lines and with the
commits of a run that nobody killed, then the same code is run again with the same keys.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast import system
from holdfast.client.index import IndexView
from holdfast.connect import assemble_env
from holdfast.core.frames.next_step import next_steps
from holdfast.core.journal import load
from holdfast.errors import FrameEnded, QuestionNotFound, Waiting
from holdfast.flow.frames import steps
from holdfast.flow.frames.calls import outcome_key
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.batches import Head
from holdfast.records.frames import Limits, StreamState
from holdfast.records.ids import own_key
from holdfast.records.recovery import Answer
from holdfast.records.settings import Settings
from holdfast.records.usage import Usage
from holdfast.testing.clock import FrozenClock
from holdfast.testing.faults import FaultPoints, SimulatedDeath
from tests.scale import seeded, volume

SCOPE = "actor/main"
ELSEWHERE = "actor/helper"
HOUR = 3_600_000
ROWS = ("nothing", "frame", "intent", "outcome", "suspended")
Holdfast = holdfast.Holdfast


def client(journal: Any, later: int = 0) -> Holdfast:
    """A process: new clock, new ids, new name, nothing in memory."""
    clock = FrozenClock()
    clock.advance(later)
    return Holdfast(assemble_env(journal, Settings(), clock))


def bury(hf: Holdfast, *, known: bool) -> None:
    """The process is dead: its thread is still. It is `known` if others can see that at once."""
    leases: Any = hf.env.leases
    leases._wake.set()
    if known:
        leases.process.name = f"{system._machine_id()}:{2**22 + 1}:1:dead"


# what a restart finds


class Told(NamedTuple):
    """What the events of a stream say, read by eye: the oracle beside `fold` and the rows."""

    live: dict[str, str | None]
    calls: dict[str, tuple[str, str]]
    asked: dict[str, str]
    outcomes: int


def told(hf: Holdfast, scope: str = SCOPE) -> Told:
    found = Told({}, {}, {}, 0)
    outcomes = 0
    for event in hf.journal.events(scope):
        facts: Any = event.facts
        kind, _, verb = event.type.partition(".")
        if event.type == "frame.pushed":
            found.live[facts.frame] = facts.parent
        elif event.type == "frame.popped":
            del found.live[facts.frame]
            found.asked.pop(facts.frame, None)
            outcomes += 1
        elif event.type == "frame.suspended":
            found.asked[facts.frame] = facts.question
        elif event.type == "frame.resumed":
            del found.asked[facts.frame]
        elif kind in ("run", "tool", "model") and verb == "requested":
            found.calls[facts.call] = (facts.frame, facts.if_interrupted)
        elif kind in ("run", "tool", "model"):
            del found.calls[facts.call]
            outcomes += 1
    calls = {call: about for call, about in found.calls.items() if about[0] in found.live}
    return found._replace(calls=calls, outcomes=outcomes)


def landed(hf: Holdfast, scope: str = SCOPE) -> str:
    """The row of the table that a restart finds itself in; fails if it is none, or reported otherwise."""
    said, found = told(hf, scope), hf.index.resume_actor(scope)
    assert {frame.id for frame in found.frames} == set(said.live)
    open_calls = {call: about for call, about in said.calls.items() if about[0] not in said.asked}
    questions = {work.frame: work.question for work in found.pending if work.question is not None}
    assert questions == said.asked
    pending = [work for work in found.pending if work.question is None]
    assert {w.call: (w.frame, w.if_interrupted) for w in pending if w.call} == open_calls
    assert all(work.unsafe_to_retry == (work.if_interrupted != "retry") for work in pending if work.call)
    rest = {work.kind for work in pending if not work.call}
    assert rest <= {"waiting_for_subcall", "unhandled_error"}
    _agrees(hf, scope)
    assert hf.journal.verify().findings == ()
    if said.asked:
        return "suspended"
    if said.calls:
        return "intent"
    if said.outcomes:
        return "outcome"
    return "frame" if said.live else "nothing"


def _agrees(hf: Holdfast, scope: str) -> None:
    """What comes next follows from the journal: each torn call says beforehand what is to be done with it."""
    state = hf.env.journal.load("default", scope)
    for frame in state.frames.values():
        for step in next_steps(frame, live_children=False, now=hf.env.clock.now_ms()):
            assert step.call is None or step.next == step.call.if_interrupted


def types(hf: Holdfast) -> list[str]:
    return [event.type for event in hf.journal.events()]


# the world outside


class World:
    """What survives every process: effects that happened, and a person who answers."""

    def __init__(self, *, approves: bool = True) -> None:
        self.approves = approves
        self.ran: Counter[str] = Counter()
        self.approved: Counter[str] = Counter()
        self.lives = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def effect(self, name: str) -> Callable[[], str]:
        def run() -> str:
            self.ran[name] += 1
            self.meanwhile()
            return f"{name} done"

        return run

    def answer(self, hf: Holdfast, question: str) -> None:
        """A torn call may run again, or the person looks up what it gave; anything else is approved."""
        info = hf.index.question(question)
        if info.call is None:
            hf.answer(question, approve=True)
            return
        name = next(call.name for call in hf.index.get_frame(info.frame).calls if call.id == info.call)
        assert name is not None
        self.approved[name] += self.approves
        hf.answer(question, approve=self.approves, payload=None if self.approves else f"{name} done")


Body = Callable[[Holdfast, World], None]


def live_through(journal: Any, body: Body, world: World, inner: Journal | None = None) -> list[Holdfast]:
    """Run the code until it is done, again after every answer; the person is another process."""
    lives: list[Holdfast] = []
    try:
        for _ in range(20):
            world.lives += 1
            lives.append(client(journal))
            try:
                body(lives[-1], world)
            except Waiting as waiting:
                world.answer(client(inner or journal), waiting.question)
            else:
                return lives
    except SimulatedDeath:
        return lives
    raise AssertionError("the work never ends")


# the work: three levels, as blocks and by hand


def blocks(policy: str) -> Body:
    def body(hf: Holdfast, world: World) -> None:
        with hf.frame("job", key="job", tokens=10_000) as root:
            root.run(world.effect("fetch"), key="fetch", if_interrupted=policy)
            with root.frame("child", key="child", tokens=4_000) as child:
                child.reserve("draft", 500, key="reserve")
                child.attach("url", handle="h", target="x", key="attach")
                with child.frame("leaf", key="leaf", tokens=0.5) as leaf:
                    _model(hf, world, leaf.id)
                    leaf.spend(Usage(input=10, output=20), key="spend")
                    answer = leaf.ask("Publish?", key="ok")
                    done = leaf.run(world.effect("publish"), key="publish", if_interrupted=policy)
                    leaf.result({"approved": answer.approved, "done": done})
                child.detach("h", key="detach")
                child.result(leaf.value())
            root.result(child.value())

    return body


def _model(hf: Holdfast, world: World, frame: str) -> None:
    call = hf.index.begin_model_call(frame, model="m", key=f"{frame}/model")
    if not hf.journal.events_by_key(SCOPE, outcome_key(call)):
        world.effect("model")()
        hf.index.end_model_call(frame, call, usage=Usage(input=100, output=20))


def by_hand(hf: Holdfast, world: World) -> None:
    index = hf.index
    index.resume_actor(SCOPE, incarnation=f"life-{world.lives}")
    try:
        root = index.push_frame("job", scope=SCOPE, tokens=10_000, key="root")
        child = index.push_frame("child", parent=root, tokens=4_000, key="child")
        leaf = index.push_frame("leaf", parent=child, tokens=0.5, key="leaf")
        _model(hf, world, leaf)
        _tool(hf, world, leaf, "fetch")
        index.record_usage(leaf, Usage(input=10, output=20), key="spend")
        answer = _ask(hf, leaf, "Publish?", "ask")
        _tool(hf, world, leaf, "publish")
        value = {"approved": answer.approved, "done": "publish done"}
        for frame in (leaf, child, root):
            index.pop_frame(frame, value=value)
    finally:
        index.release_actor(SCOPE)


def _tool(hf: Holdfast, world: World, frame: str, name: str) -> None:
    """A loop of one's own: a call that was open before this life may have happened, and is asked about."""
    torn = {call.id for call in hf.index.get_frame(frame).calls}
    call = hf.index.begin_tool_call(frame, name, key=f"{frame}/{name}", if_interrupted="ask")
    if hf.journal.events_by_key(SCOPE, outcome_key(call)):
        return
    if call in torn:
        answer = _ask(hf, frame, f"{name} may have run", f"{call}/torn", call)
        if not answer.approved:
            hf.index.end_tool_call(frame, call, value=answer.payload, interrupted=True)
            return
    hf.index.end_tool_call(frame, call, value=world.effect(name)())


def _ask(hf: Holdfast, frame: str, reason: str, key: str, call: str | None = None) -> Answer:
    asked = hf.index.suspend_frame(frame, reason, key=key, call=call)
    answer = hf.index.answer_to(SCOPE, asked.question)
    if answer is None:
        raise Waiting(question=asked.question)
    if any(question.id == asked.question for question in hf.questions()):
        hf.index.resume_frame(asked.question)
    return answer


def failing(hf: Holdfast, world: World) -> None:
    """Work that fails for good: also its end can be killed."""
    try:
        with hf.frame("job", key="job", tokens=1_000) as root:
            hf.index.push_frame("aside", parent=root.id, tokens=100, key="aside")
            with root.frame("child", key="child", tokens=500) as child:
                child.run(world.effect("fetch"), key="fetch")
                raise RuntimeError("it cannot be done")
    except (RuntimeError, FrameEnded):
        # A key that stands for a failed frame is refused. The child may have failed alone: then end its parent.
        pass


def interrupted(hf: Holdfast, world: World) -> None:
    """A deploy in the middle: the block is left by KeyboardInterrupt once, and entered again."""
    for leave in (True, False):
        try:
            with hf.frame("job", key="job", tokens=1_000) as root:
                root.run(world.effect("fetch"), key="fetch")
                if leave:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass


# killing it


class Reference(NamedTuple):
    """A run that nobody killed: its events, and where its commits were."""

    types: list[str]
    commits: set[int]


def reference(inner: Journal, body: Body, world: World) -> Reference:
    commits = {0}
    undo = inner.watch(lambda: commits.add(inner.position()))
    live_through(inner, body, world)
    undo()
    return Reference(types(client(inner)), commits)


def deaths(
    make: Callable[[], Journal], body: Body, *, approves: bool, only: str = ""
) -> Iterator[tuple[str, Journal, World]]:
    """Die at each point once; gives the point and what is left."""
    passing: Any = FaultPoints(make())
    live_through(passing, body, World(approves=approves), passing._journal)
    for number, name in enumerate(passing.passed, 1):
        if only not in name:
            continue
        inner, world = make(), World(approves=approves)
        points: Any = FaultPoints(inner, die_at=number)
        for hf in live_through(points, body, world, inner):
            bury(hf, known=bool(number % 2))
        assert points.passed == passing.passed[:number], "the work is not repeatable"
        yield f"{number}: {name}", inner, world


def torture(
    make: Callable[[], Journal],
    body: Body,
    check: Callable[[Holdfast, World, str], None],
    *,
    approves: bool,
    only: str = "",
) -> Counter[str]:
    """Kill everywhere; every time the journal is a row of the table, and the same code goes on to the same end."""
    whole = reference(make(), body, World(approves=approves))
    rows: Counter[str] = Counter()
    for point, inner, world in deaths(make, body, approves=approves, only=only):
        found = types(client(inner))
        assert len(found) in whole.commits, point
        assert found == whole.types[: len(found)], point
        rows[landed(client(inner))] += 1
        live_through(inner, body, world)
        hf = client(inner)
        check(hf, world, point)
        assert hf.journal.verify().findings == (), point
        assert hf.index.resume_actor(SCOPE).holder is None, point
        inner.close()
    return rows


def settled(policy: str) -> Callable[[Holdfast, World, str], None]:
    def check(hf: Holdfast, world: World, point: str) -> None:
        for name in ("fetch", "publish"):
            # None too many without somebody's word: once beforehand, or each time it is asked for.
            allowed = 1 + (1 if policy == "retry" else world.approved[name])
            assert world.ran[name] <= allowed, (point, name, world.ran)
        assert world.ran["model"] >= 1, point
        assert list(hf.index.stack(SCOPE)) == [], point
        ended = {frame.goal: frame for frame in _frames(hf)}
        root, child = ended["job"], ended["child"]
        assert [frame.status for frame in ended.values()] == ["completed"] * 3, point
        assert (root.tokens.used, root.tokens.lent, root.tokens.reserved) == (150, 0, 0), point
        assert (child.tokens.used, child.tokens.lent) == (150, 0), point
        assert root.usage.spent == 150, point
        assert root.value == {"approved": True, "done": "publish done"}, point

    return check


def _frames(hf: Holdfast) -> list[holdfast.types.FrameInfo]:
    pushed: list[Any] = [event.facts for event in hf.journal.events(SCOPE, types=["frame.pushed"])]
    return [hf.index.get_frame(facts.frame) for facts in pushed]


@pytest.mark.parametrize(("policy", "approves"), [("ask", True), ("ask", False), ("retry", True)])
def test_a_job_of_three_levels_in_blocks(policy: str, approves: bool) -> None:
    rows = torture(MemoryJournal, blocks(policy), settled(policy), approves=approves)
    assert set(rows) == set(ROWS)


def test_a_job_of_three_levels_in_blocks_on_a_file(quick_path: Path) -> None:
    numbers = itertools.count()
    rows = torture(
        lambda: SqliteJournal(quick_path / f"{next(numbers)}.db", durability="fast"),
        blocks("ask"),
        settled("ask"),
        approves=False,
    )
    assert set(rows) == set(ROWS)


@pytest.mark.parametrize("approves", [True, False])
def test_a_job_of_three_levels_by_hand(approves: bool) -> None:
    rows = torture(MemoryJournal, by_hand, settled("ask"), approves=approves)
    assert set(rows) == set(ROWS)


def test_a_job_that_is_killed_again_and_again() -> None:
    random = seeded("frame crashes")
    work, check = blocks("ask"), settled("ask")
    for number in range(volume(40, 4_000)):
        inner, world = MemoryJournal(), World()
        for _ in range(random.randint(2, 6)):
            world.approves = random.random() < 0.7
            _one_death(inner, work, world, random)
            assert landed(client(inner)) in ROWS
        world.meanwhile = lambda: None
        live_through(inner, work, world)
        check(client(inner), world, f"job {number}")
        assert client(inner).journal.verify().findings == ()


def _one_death(inner: Journal, work: Body, world: World, random: Random) -> None:
    """Somewhere between two port calls, or in the middle of an effect, which nobody but the world has seen then."""
    points: Any = FaultPoints(inner, die_at=random.randint(1, 300))

    def meanwhile() -> None:
        if random.random() < 0.4:
            points._dead = True
            raise SimulatedDeath("in the middle of an effect")

    world.meanwhile = meanwhile
    for hf in live_through(points, work, world, inner):
        bury(hf, known=random.random() < 0.5)


def test_a_torn_step_that_counts_as_failed_never_runs_twice_by_itself() -> None:
    def body(hf: Holdfast, world: World) -> None:
        with hf.frame("job", key="job", on_error="leave") as root:
            try:
                root.run(world.effect("fetch"), key="fetch", if_interrupted="fail")
            except holdfast.EffectFailed:
                world.approved["fetch"] += 1
                root.run(world.effect("fetch"), key="fetch", if_interrupted="fail")

    def check(hf: Holdfast, world: World, point: str) -> None:
        assert world.ran["fetch"] <= 1 + world.approved["fetch"], point

    assert set(torture(MemoryJournal, body, check, approves=True)) >= {"nothing", "frame", "intent", "outcome"}


def test_work_that_fails_is_failed_once_with_everything_below_it() -> None:
    def check(hf: Holdfast, world: World, point: str) -> None:
        assert list(hf.index.stack(SCOPE)) == [], point
        ended = {frame.goal: frame.status for frame in _frames(hf)}
        assert ended == {"job": "failed", "aside": "cancelled", "child": "failed"}, point
        assert world.ran["fetch"] <= 1 + world.approved["fetch"], point
        popped: list[Any] = [event.facts for event in hf.journal.events(SCOPE, types=["frame.popped"])]
        assert len(popped) == 3, point

    torture(MemoryJournal, failing, check, approves=True)


def test_a_block_left_by_an_interrupt_is_gone_on_with() -> None:
    def check(hf: Holdfast, world: World, point: str) -> None:
        assert [frame.status for frame in _frames(hf)] == ["completed"], point
        assert world.ran["fetch"] <= 1 + world.approved["fetch"], point

    torture(MemoryJournal, interrupted, check, approves=True)


# every operation of hf.index, alone

Known = dict[str, str]
Setup = Callable[[Holdfast], Known]
Run = Callable[[Holdfast, Known], object]


class Op(NamedTuple):
    """An operation, on what was prepared, and how a retry of it looks."""

    setup: Setup
    run: Run
    again: Run | None = None
    later: int = 0


def root(hf: Holdfast) -> Known:
    frame = hf.index.push_frame("g", scope=SCOPE, tokens=1_000)
    return {"frame": frame, "handle": hf.index.add_handle(frame, "url", handle="h", target="x")}


def reserved(hf: Holdfast) -> Known:
    known = root(hf)
    hf.index.reserve(known["frame"], "draft", 100)
    return known


def removed(hf: Holdfast) -> Known:
    known = root(hf)
    return {**known, "removal": str(hf.index.remove_handle(known["frame"], "h"))}


def model_begun(hf: Holdfast) -> Known:
    known = root(hf)
    return {**known, "call": hf.index.begin_model_call(known["frame"])}


def tool_begun(hf: Holdfast) -> Known:
    known = root(hf)
    return {**known, "call": hf.index.begin_tool_call(known["frame"], "search")}


def asked(hf: Holdfast) -> Known:
    known = root(hf)
    question = hf.index.suspend_frame(known["frame"], "Well?", token=True)
    return {**known, "question": question.question, "token": str(question.token)}


def answered(hf: Holdfast) -> Known:
    known = asked(hf)
    hf.answer(known["question"], approve=True)
    return known


def family(hf: Holdfast) -> Known:
    """A root with a child beside it and one in another actor's stream, with work below that one."""
    known = root(hf)
    child = hf.index.push_frame("child", parent=known["frame"], tokens=300)
    away = hf.index.push_frame("away", parent=known["frame"], scope=ELSEWHERE, tokens=300)
    below = hf.index.push_frame("below", parent=away, tokens=100)
    hf.index.record_usage(below, 7)
    return {**known, "child": child, "away": away, "below": below}


def away_alone(hf: Holdfast) -> Known:
    known = root(hf)
    away = hf.index.push_frame("away", parent=known["frame"], scope=ELSEWHERE, tokens=300)
    hf.index.record_usage(away, 7)
    return {**known, "away": away}


def subtree(hf: Holdfast) -> Known:
    known = root(hf)
    return {**known, "child": hf.index.push_frame("child", parent=known["frame"], tokens=300)}


def late(hf: Holdfast) -> Known:
    """A timer that rings, a question that expires, a frame past its deadline."""
    for number, how in enumerate(({"kind": "timer", "until": 1}, {"expires_ms": 1, "on_expiry": "fail"})):
        frame = hf.index.push_frame(f"g{number}", scope=SCOPE)
        hf.index.suspend_frame(frame, "Well?", **how)  # type: ignore[arg-type]
    return {"frame": hf.index.push_frame("late", scope=SCOPE, limits=Limits(timeout_ms=1))}


def nothing(hf: Holdfast) -> Known:
    return {}


def _unless_over(run: Run) -> Run:
    """Resuming and tokens are used once: a retry learns that it was."""

    def again(hf: Holdfast, known: Known) -> None:
        try:
            run(hf, known)
        except QuestionNotFound:
            if hf.index.get_frame(known["frame"]).status == "suspended" and "resume" in known:
                hf.index.resume_frame(known["question"])

    return again


def packed(hf: Holdfast) -> Known:
    known = root(hf)
    return {**known, "call": _call_with_pack(hf, known)}


def _call_with_pack(hf: Holdfast, known: Known) -> str:
    pack = hf.index.assemble_context_pack(frame=known["frame"])
    return hf.index.begin_model_call(known["frame"], pack, request={"a": 1}, key="k")


def _resume(hf: Holdfast, known: Known) -> None:
    hf.index.resume_frame(known["question"], approve=True)


def _resume_by_token(hf: Holdfast, known: Known) -> None:
    known["resume"] = "yes"
    hf.index.resume_frame(token=known["token"], approve=True)


def _answer_by_token(hf: Holdfast, known: Known) -> None:
    hf.answer(token=known["token"], approve=True)


def _fail_orphan(hf: Holdfast, known: Known) -> None:
    hf.index.sweep(fail_orphans=True)


OPS: dict[str, Op] = {
    "push_frame": Op(nothing, lambda hf, k: hf.index.push_frame("g", scope=SCOPE, tokens=5, key="k")),
    "push_frame child": Op(root, lambda hf, k: hf.index.push_frame("c", parent=k["frame"], tokens=0.5, key="k")),
    "push_frame away": Op(
        root, lambda hf, k: hf.index.push_frame("c", parent=k["frame"], scope=ELSEWHERE, tokens=5, key="k")
    ),
    "push_frame id": Op(
        nothing, lambda hf, k: hf.index.push_frame("g", scope=SCOPE, frame_id="01JXT21Q00YJVQMYHEK2DM60V7")
    ),
    "push_frame inherit": Op(
        root,
        lambda hf, k: hf.index.push_frame("c", parent=k["frame"], scope=ELSEWHERE, tokens=5, inherit=["h"], key="k"),
    ),
    "set_brief": Op(nothing, lambda hf, k: hf.index.set_brief(SCOPE, "planner", system_prompt="Plan.", key="k")),
    "brief": Op(root, lambda hf, k: hf.index.brief(SCOPE)),
    "update_frame": Op(root, lambda hf, k: hf.index.update_frame(k["frame"], goal="other", tokens=7, key="k")),
    "pop_frame": Op(reserved, lambda hf, k: hf.index.pop_frame(k["frame"], value=1, key="k")),
    "pop_frame away": Op(away_alone, lambda hf, k: hf.index.pop_frame(k["away"])),
    "pop_frame cascade": Op(family, lambda hf, k: hf.index.pop_frame(k["frame"], "failed", error="no")),
    "get_frame": Op(root, lambda hf, k: hf.index.get_frame(k["frame"])),
    "ancestry": Op(family, lambda hf, k: hf.index.ancestry(k["below"])),
    "stack": Op(family, lambda hf, k: hf.index.stack(SCOPE)),
    "stacks": Op(family, lambda hf, k: list(hf.index.stacks())),
    "top_of_stack": Op(family, lambda hf, k: hf.index.top_of_stack(SCOPE)),
    "leaves": Op(family, lambda hf, k: hf.index.leaves(SCOPE)),
    "reserve": Op(root, lambda hf, k: hf.index.reserve(k["frame"], "draft", 10, key="k")),
    "release_reservation": Op(reserved, lambda hf, k: hf.index.release_reservation(k["frame"], "draft", 40, key="k")),
    "spend_reserved": Op(reserved, lambda hf, k: hf.index.spend_reserved(k["frame"], "draft", 140, key="k")),
    "record_usage": Op(root, lambda hf, k: hf.index.record_usage(k["frame"], 140, key="k")),
    "add_handle": Op(root, lambda hf, k: hf.index.add_handle(k["frame"], "url", target="y", key="k")),
    "remove_handle": Op(root, lambda hf, k: hf.index.remove_handle(k["frame"], "h", key="k")),
    "restore_handles": Op(removed, lambda hf, k: hf.index.restore_handles(k["frame"], k["removal"], key="k")),
    "compact_context": Op(root, lambda hf, k: hf.index.compact_context(k["frame"], 0, key="k")),
    "compact_context stored": Op(root, lambda hf, k: hf.index.compact_context(k["frame"], 0, store=True, key="k")),
    "handles": Op(removed, lambda hf, k: hf.index.handles(k["frame"])),
    "results": Op(removed, lambda hf, k: hf.index.results(k["frame"])),
    "add_result": Op(root, lambda hf, k: hf.index.add_result(k["frame"], "file", "a.txt", summary="s", key="k")),
    "begin_model_call": Op(root, lambda hf, k: hf.index.begin_model_call(k["frame"], request={"a": 1}, key="k")),
    "begin_model_call pack": Op(root, _call_with_pack),
    "assemble_context_pack": Op(root, lambda hf, k: hf.index.assemble_context_pack(frame=k["frame"])),
    "pack_at": Op(packed, lambda hf, k: hf.index.pack_at(k["call"]).to_openai()),
    "end_model_call": Op(model_begun, lambda hf, k: hf.index.end_model_call(k["frame"], k["call"], usage=9)),
    "end_model_call failed": Op(
        model_begun, lambda hf, k: hf.index.end_model_call(k["frame"], k["call"], usage=9, error="overloaded: wait")
    ),
    "begin_tool_call": Op(root, lambda hf, k: hf.index.begin_tool_call(k["frame"], "search", key="k")),
    "end_tool_call": Op(tool_begun, lambda hf, k: hf.index.end_tool_call(k["frame"], k["call"], value=[1])),
    "suspend_frame": Op(root, lambda hf, k: hf.index.suspend_frame(k["frame"], "Well?", key="k")),
    "suspend_frame subtree": Op(subtree, lambda hf, k: hf.index.suspend_frame(k["frame"], "?", subtree=True, key="k")),
    "answer": Op(asked, lambda hf, k: hf.answer(k["question"], approve=True, payload={"a": 1})),
    "answer token": Op(asked, _answer_by_token, _unless_over(_answer_by_token)),
    "resume_frame": Op(asked, _resume, _unless_over(_resume)),
    "resume_frame token": Op(asked, _resume_by_token, _unless_over(_resume_by_token)),
    "resume_frame answered": Op(
        answered,
        lambda hf, k: hf.index.resume_frame(k["question"]),
        _unless_over(lambda hf, k: hf.index.resume_frame(k["question"])),
    ),
    "questions": Op(asked, lambda hf, k: list(hf.questions())),
    "question": Op(asked, lambda hf, k: hf.index.question(k["question"])),
    "answer_to": Op(answered, lambda hf, k: hf.index.answer_to(SCOPE, k["question"])),
    "resume_actor": Op(tool_begun, lambda hf, k: hf.index.resume_actor(SCOPE)),
    "sweep": Op(late, lambda hf, k: hf.index.sweep(), later=HOUR),
    "sweep fail_orphans": Op(late, _fail_orphan, later=HOUR),
}
REPEATS = {"resume_actor incarnation", "reissue_token", "suspend_frame token", "release_actor"}
"""Operations that may write once more when they are repeated: a lease, or a token that replaces the lost one."""


def test_every_operation_is_killed_here() -> None:
    every = {name for name in dir(IndexView) if not name.startswith("_")} | {"answer", "questions"}
    assert {name.split()[0] for name in (*OPS, *REPEATS)} == every


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
@pytest.mark.parametrize("name", OPS)
def test_an_operation_happens_or_does_not(name: str, backend: str, quick_path: Path) -> None:
    op, numbers = OPS[name], itertools.count()

    def make() -> Journal:
        if backend == "memory":
            return MemoryJournal()
        return SqliteJournal(quick_path / f"{next(numbers)}.db", durability="fast")

    inner = make()
    known = op.setup(client(inner))
    commits = [inner.position()]
    inner.watch(lambda: commits.append(inner.position()))
    op.run(client(inner, op.later), known)
    after = types(client(inner))
    for number in itertools.count(1):
        inner = make()
        known = op.setup(client(inner))
        points: Any = FaultPoints(inner, die_at=number)
        dying = client(points, op.later)
        try:
            op.run(dying, known)
        except SimulatedDeath:
            pass
        if not points._dead:
            break
        point = f"{name}, {number}: {points.passed[-1]}"
        bury(dying, known=bool(number % 2))
        hf = client(inner, op.later)
        found = types(hf)
        assert len(found) in commits, point
        assert found == after[: len(found)], point
        for scope in hf.journal.streams():
            assert landed(hf, scope) in ROWS, point
        (op.again or op.run)(client(inner, op.later), known)
        assert _without_leases(types(hf)) == _without_leases(after), point
        assert hf.journal.verify().findings == (), point
        inner.close()
    assert number > 1, "the operation never touched the journal"


def _without_leases(names: list[str]) -> list[str]:
    """Whoever takes over from the dead takes the lease once more."""
    return [name for name in names if not name.startswith("lease.")]


def test_taking_an_actor_up_and_giving_it_back() -> None:
    def body(hf: Holdfast, world: World) -> None:
        hf.index.resume_actor(SCOPE, incarnation="one")
        hf.index.release_actor(SCOPE)

    for point, inner, world in deaths(_with_torn_tool, body, approves=True):
        hf = client(inner)
        assert landed(hf) == "intent", point
        live_through(inner, body, world)
        assert [event.type for event in hf.journal.events(SCOPE)].count("actor.resumed") == 1, point
        assert hf.index.resume_actor(SCOPE).holder is None, point
        assert landed(hf) == "intent", point


def _with_torn_tool() -> Journal:
    inner = MemoryJournal()
    tool_begun(client(inner))
    return inner


def test_a_question_with_a_token_can_always_be_shown() -> None:
    tokens: dict[int, str] = {}

    def body(hf: Holdfast, world: World) -> None:
        frame = hf.index.push_frame("g", scope=SCOPE, key="root")
        asked = hf.index.suspend_frame(frame, "Well?", token=True, key="ask")
        tokens[world.lives] = hf.index.reissue_token(asked.question) if world.lives % 2 else str(asked.token)

    for point, inner, world in deaths(MemoryJournal, body, approves=True):
        live_through(inner, body, world)
        hf = client(inner)
        assert landed(hf) == "suspended", point
        assert len(list(hf.questions())) == 1, point
        hf.answer(token=tokens[world.lives], approve=True)
        assert hf.journal.verify().findings == (), point


# tests that can fail


def pending_work_lost(patch: pytest.MonkeyPatch) -> None:
    original = load._build_state

    def careless(head: Head, rows: Any) -> StreamState:
        return original(head, {**rows, "frame_calls": []})

    patch.setattr(load, "_build_state", careless)


def outcome_not_remembered(patch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    patch.setattr(steps, "memo_key", lambda frame, key: own_key(frame, "run", key, next(numbers)))


def torn_step_not_asked_about(patch: pytest.MonkeyPatch) -> None:
    original = steps._resume_interrupted

    def careless(env: Any, frame: str, key: str, torn: Any) -> Any:
        if torn.if_interrupted == "ask":
            return steps.RunStart(call=torn.id)
        return original(env, frame, key, torn)

    patch.setattr(steps, "_resume_interrupted", careless)


@pytest.mark.parametrize("plant", [pending_work_lost, outcome_not_remembered, torn_step_not_asked_about])
def test_a_planted_bug_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, holdfast.HoldfastError)):
            torture(MemoryJournal, blocks("ask"), settled("ask"), approves=False)
