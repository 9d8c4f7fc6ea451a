"""Conversations whose tools wait for each other: whoever would close the circle is refused, and everybody goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, Scripted, ToolCall, tool
from holdfast.errors import ActorBusy, Refused
from holdfast.flow.turns.deadlock import Caller, ConversationNode, TurnWork, WaitGraph, wait_graph
from holdfast.model.scripted import call
from tests.scale import seeded, volume
from tests.turns import agent_world
from tests.turns.loops import check_whole, spoken

Holdfast = holdfast.Holdfast
PATIENCE = 20.0
"""Seconds after which whoever still waits has found a defect."""
until = partial(agent_world.until, seconds=PATIENCE)
until_async = partial(agent_world.until_async, seconds=PATIENCE)
WAITED = "these wait for each other"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever was waited for and given up: afterwards nobody works and nobody waits who did not before."""
    before = {*wait_graph._waiting, *wait_graph._at_work}
    yield
    until(lambda: {*wait_graph._waiting, *wait_graph._at_work} <= before)


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as client:
        yield client
        check_whole(client)


def name(number: int) -> str:
    return f"c{number}"


def line(number: int) -> str:
    return f"session/{name(number)}/thread/main"


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Each in a thread of its own, to its end; gives what they gave or raised."""
    came: list[Any] = [None] * len(works)

    def run(at: int) -> None:
        try:
            came[at] = works[at]()
        except Exception as error:  # The test looks at it.
            came[at] = error

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive(), "it waits for ever"
    return came


def waiting_for(number: int) -> Callable[[], bool]:
    """Whether somebody who works for a turn waits for a conversation."""
    return lambda: any(
        wait.node.thread == line(number) and wait.list_held_turns() for wait in list(wait_graph._waiting)
    )


def one_was_refused(told: list[str], size: int) -> None:
    """One of the ring was told who waits for whom; all others have their replies."""
    refused = [text for text in told if text != "Hi."]
    assert len(refused) == 1, told
    assert WAITED in refused[0]
    assert all(line(number) in refused[0] for number in range(size))
    at = next(number for number in range(size) if f"within a turn of {line(number)} " in refused[0])
    ring = [line((at + step) % size) for step in range(size + 1)]
    assert " → ".join(ring) in refused[0]


def all_was_said(hf: Holdfast, size: int) -> None:
    """No message was lost: each was told to go, and each but one was greeted and answered."""
    said = [text for number in range(size) for role, text in spoken(hf, name(number)) if role == "user"]
    assert (said.count("go"), said.count("hello")) == (size, size - 1)


# agents


def ring_of_agents(clients: list[Holdfast], if_busy: str, wait: float | None = PATIENCE) -> list[str]:
    """Each has a tool that sends to the next one, the last to the first, while all of them are at work."""
    size, met = len(clients), threading.Barrier(len(clients))
    agents: list[Any] = []
    for number, client in enumerate(clients):

        @tool
        def pass_on(call: ToolCall) -> str:
            """Send to the next."""
            following = (int(call.session[1:]) + 1) % size
            met.wait(PATIENCE)
            return str(agents[following].send(name(following), "hello", if_busy=if_busy, wait=wait).text)

        script = {"go": [call("pass_on"), "Done."], "hello": ["Hi."] * 3}
        agents.append(client.agent(f"a{number}", model=Scripted(script), tools=[pass_on], history=False))
    replies = at_once(*(lambda at=at: agents[at].send(name(at), "go") for at in range(size)))
    assert [reply.status for reply in replies] == ["done"] * size, replies
    return [results_of(clients[number], number) for number in range(size)]


def results_of(hf: Holdfast, number: int) -> str:
    found = [one for message in hf.session(name(number)).messages() for one in message.tool_results]
    (result,) = found
    assert result.is_error == (result.result != "Hi.")
    return str(result.result)


@pytest.mark.parametrize("if_busy", ["queue", "join"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_agents_whose_tools_send_to_each_other_end_all_of_them(hf: Holdfast, size: int, if_busy: str) -> None:
    one_was_refused(ring_of_agents([hf] * size, if_busy), size)
    all_was_said(hf, size)


def test_also_if_nobody_says_how_long_to_wait(hf: Holdfast) -> None:
    one_was_refused(ring_of_agents([hf, hf], "queue", wait=None), 2)


def test_also_with_two_clients_of_one_process(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with holdfast.open(path, durability="fast") as one, holdfast.open(path, durability="fast") as other:
        one_was_refused(ring_of_agents([one, other], "queue"), 2)
        all_was_said(one, 2)


def test_a_process_that_looks_for_no_circles_is_found_out(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitGraph, "_find_cycle", lambda self, held, node, *, stopping: None)
    with pytest.raises(AssertionError):
        one_was_refused(ring_of_agents([hf, hf], "queue", wait=0.2), 2)


@pytest.mark.parametrize("if_busy", ["queue", "join"])
@pytest.mark.parametrize("size", [2, 3])
def test_agents_of_one_loop_as_well(size: int, if_busy: str) -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            met, agents = asyncio.Barrier(size), []
            for number in range(size):

                @tool
                async def pass_on(call: holdfast.AsyncToolCall) -> str:
                    """Send to the next."""
                    following = (int(call.session[1:]) + 1) % size
                    await met.wait()
                    reply = await agents[following].send(name(following), "hello", if_busy=if_busy, wait=PATIENCE)
                    return str(reply.text)

                script = {"go": [call("pass_on"), "Done."], "hello": ["Hi."] * 3}
                agents.append(hf.agent(f"a{number}", model=Scripted(script), tools=[pass_on], history=False))
            sent = (agent.send(name(number), "go") for number, agent in enumerate(agents))
            replies = await asyncio.wait_for(asyncio.gather(*sent), 2 * PATIENCE)
            assert [reply.status for reply in replies] == ["done"] * size
            told = [await asyncio.to_thread(results_of, hf._sync, number) for number in range(size)]
            one_was_refused(told, size)
            await asyncio.to_thread(all_was_said, hf._sync, size)

    asyncio.run(main())


def test_a_circle_that_is_streamed_is_refused_as_well(hf: Holdfast) -> None:
    begun, told = threading.Event(), []

    @tool
    def wait_for_b() -> str:
        """Wait for the other."""
        assert begun.wait(PATIENCE)
        return str(b.send(name(1), "hello", wait=PATIENCE).text)

    @tool
    def wait_for_a() -> str:
        """Listen to the other."""
        begun.set()
        until(waiting_for(1))
        for if_busy in ("queue", "join"):
            with pytest.raises(Refused, match=WAITED) as caught:
                list(a.stream(name(0), "hello", if_busy=if_busy, wait=PATIENCE))
            told.append(str(caught.value))
        return "ok"

    a = hf.agent("a", model=Scripted({"go": [call("wait_for_b"), "Done."], "hello": ["Hi."] * 3}), tools=[wait_for_b])
    b = hf.agent("b", model=Scripted({"go": [call("wait_for_a"), "Done."], "hello": ["Hi."] * 3}), tools=[wait_for_a])
    came = at_once(lambda: a.send(name(0), "go").text, lambda: b.send(name(1), "go").text)
    assert (came, len(told)) == (["Done.", "Done."], 2)
    assert results_of(hf, 0) == "Hi."


def test_people_are_never_refused(hf: Holdfast) -> None:
    """They wait for conversations that wait for each other, and keep nobody waiting themselves."""
    begun, asked = threading.Event(), threading.Event()
    queues: Any = hf.env.queues

    @tool
    def wait_for_b() -> str:
        """Wait for the other."""
        assert begun.wait(PATIENCE)
        return str(b.send(name(1), "hello", wait=PATIENCE).text)

    @tool
    def wait_for_a() -> str:
        """Wait for the other once people wait for both."""
        begun.set()
        until(waiting_for(1))
        asked.set()
        until(lambda: sorted(len(waiting) for waiting in queues._waiting.values()) == [1, 2])
        return str(a.send(name(0), "hello", wait=PATIENCE).text)

    def person(agent: Any, number: int) -> str:
        assert asked.wait(PATIENCE)
        return str(agent.send(name(number), "please", wait=PATIENCE).text)

    said = {"hello": ["Hi."] * 3, "please": "Yes."}
    a = hf.agent("a", model=Scripted({"go": [call("wait_for_b"), "Done."], **said}), tools=[wait_for_b])
    b = hf.agent("b", model=Scripted({"go": [call("wait_for_a"), "Done."], **said}), tools=[wait_for_a])
    sent = [lambda: a.send(name(0), "go").text, lambda: b.send(name(1), "go").text]
    came = at_once(*sent, lambda: person(a, 0), lambda: person(b, 1))
    assert came == ["Done.", "Done.", "Yes.", "Yes."]
    one_was_refused([results_of(hf, 0), results_of(hf, 1)], 2)


# stops


def test_an_agent_that_is_interrupted_gives_up_its_wait(hf: Holdfast) -> None:
    begun = threading.Event()

    @tool
    def interrupt_b() -> str:
        """Have the other stopped, which waits for this one."""
        begun.set()
        until(waiting_for(0))
        return str(b.send(name(1), "hello", if_busy="interrupt", wait=PATIENCE).text)

    @tool
    def wait_for_a() -> str:
        """Wait for the other."""
        assert begun.wait(PATIENCE)
        return str(a.send(name(0), "hello", wait=PATIENCE).text)

    a = hf.agent("a", model=Scripted({"go": [call("interrupt_b"), "Done."], "hello": ["Hi."] * 3}), tools=[interrupt_b])
    b = hf.agent("b", model=Scripted({"go": [call("wait_for_a"), "Done."], "hello": ["Hi."] * 3}), tools=[wait_for_a])
    came = at_once(lambda: a.send(name(0), "go"), lambda: b.send(name(1), "go"))
    assert [reply.status for reply in came] == ["done", "stopped"]
    assert results_of(hf, 0) == "Hi."
    until(lambda: ("assistant", "Hi.") in spoken(hf, name(0)))


def test_a_loop_of_ones_own_hears_of_no_stop_so_that_an_interrupt_would_wait_for_ever(hf: Holdfast) -> None:
    met = threading.Barrier(2)

    def waits_for_first() -> Any:
        with hf.session(name(1)).turn("go") as turn:
            met.wait(PATIENCE)
            with hf.session(name(0)).turn("hello", wait=PATIENCE) as inner:
                finish(inner, "Hi.")
            return finish(turn, "Done.")

    def interrupts() -> Any:
        with hf.session(name(0)).turn("go") as turn:
            met.wait(PATIENCE)
            until(waiting_for(0))
            with pytest.raises(Refused, match=WAITED):
                hf.session(name(1)).turn("hello", if_busy="interrupt", wait=PATIENCE).__enter__()
            return finish(turn, "Done.")

    assert at_once(waits_for_first, interrupts) == ["Done.", "Done."]


# loops of one's own


def finish(turn: Any, text: str) -> str:
    """The model says this, and the turn is done."""
    (step,) = turn.steps()
    assert isinstance(step, CallModel)
    step.done(text)
    return str(turn.text)


@pytest.mark.parametrize("size", [2, 3])
def test_loops_of_ones_own_in_threads_as_well(hf: Holdfast, size: int) -> None:
    met = threading.Barrier(size)

    def work(number: int) -> str:
        with hf.session(name(number)).turn("go") as turn:
            met.wait(PATIENCE)
            try:
                with hf.session(name((number + 1) % size)).turn("hello", wait=PATIENCE) as inner:
                    told = finish(inner, "Hi.")
            except Refused as error:
                told = str(error)
            finish(turn, "Done.")
            return told

    one_was_refused(at_once(*(lambda at=at: work(at) for at in range(size))), size)
    all_was_said(hf, size)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_loops_of_ones_own_in_tasks_as_well(size: int) -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            met = asyncio.Barrier(size)
            chats = [await hf.session(name(number)) for number in range(size)]

            async def work(number: int) -> str:
                async with chats[number].turn("go") as turn:
                    await met.wait()
                    try:
                        async with chats[(number + 1) % size].turn("hello", wait=PATIENCE) as inner:
                            (step,) = await inner.steps()
                            await step.done("Hi.")
                            told = "Hi."
                    except Refused as error:
                        told = str(error)
                    (step,) = await turn.steps()
                    await step.done("Done.")
                    return told

            told = await asyncio.wait_for(asyncio.gather(*map(work, range(size))), 2 * PATIENCE)
            if size == 1:
                assert "would wait for itself" in told[0]
            else:
                one_was_refused(told, size)
            await asyncio.to_thread(all_was_said, hf._sync, size)

    asyncio.run(main())


def test_a_loop_of_ones_own_in_a_tool_works_for_the_turn_of_its_agent(hf: Holdfast) -> None:
    begun, told = threading.Event(), []

    @tool
    def in_a_loop() -> str:
        """Take a turn of another conversation, with a loop of its own."""
        assert begun.wait(PATIENCE)
        with hf.session(name(1)).turn("hello", wait=PATIENCE) as turn:
            return finish(turn, "Hi.")

    def person() -> str:
        with hf.session(name(1)).turn("go") as turn:
            begun.set()
            until(waiting_for(1))
            with pytest.raises(Refused, match=WAITED) as caught:
                agent.send(name(0), "hello", wait=PATIENCE)
            told.append(str(caught.value))
            return finish(turn, "Done.")

    script = {"go": [call("in_a_loop"), "Done."], "hello": ["Hi."] * 3}
    agent = hf.agent("a", model=Scripted(script), tools=[in_a_loop], history=False)
    assert at_once(lambda: agent.send(name(0), "go").text, person) == ["Done.", "Done."]
    assert results_of(hf, 0) == "Hi."


# waits that are given up


def test_a_wait_whose_patience_ended_keeps_nobody_from_waiting(hf: Holdfast) -> None:
    gave_up, asked = threading.Event(), threading.Event()

    def impatient() -> str:
        with hf.session(name(0)).turn("go") as turn:
            assert asked.wait(PATIENCE)
            with pytest.raises(ActorBusy):
                hf.session(name(1)).turn("hello", wait=0.01).__enter__()
            gave_up.set()
            until(waiting_for(0))
            return finish(turn, "Done.")

    def patient() -> str:
        with hf.session(name(1)).turn("go") as turn:
            asked.set()
            assert gave_up.wait(PATIENCE)
            with hf.session(name(0)).turn("hello", wait=PATIENCE) as inner:
                finish(inner, "Hi.")
            return finish(turn, "Done.")

    assert at_once(impatient, patient) == ["Done.", "Done."]
    all_was_said(hf, 2)


def test_who_does_not_wait_at_all_is_told_that_it_is_busy(hf: Holdfast) -> None:
    chat = hf.session(name(0))
    with chat.turn("go") as turn:
        for how in ({"if_busy": "reject"}, {"wait": 0}):
            with pytest.raises(ActorBusy, match="Nothing was written"):
                chat.turn("hello", **how).__enter__()
        with pytest.raises(ActorBusy, match="was said"):
            chat.turn("hello", if_busy="join", wait=0).__enter__()
        (step,) = turn.steps()
        assert [one["content"] for one in step.pack.to_openai()["messages"]] == ["go", "hello"]
        step.done("Done.")


def test_a_wait_that_is_cancelled_keeps_nobody_from_waiting() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            first, second = await hf.session(name(0)), await hf.session(name(1))
            async with second.turn("go") as turn:

                async def impatient() -> None:
                    async with first.turn("go") as own:
                        with pytest.raises(TimeoutError):
                            async with asyncio.timeout(0.02):
                                await second.turn("hello").__aenter__()
                        gave_up.set()
                        await until_async(waiting_for(0))
                        await (await own.steps())[0].done("Done.")

                gave_up = asyncio.Event()
                other = asyncio.create_task(impatient())
                await asyncio.wait_for(gave_up.wait(), PATIENCE)
                async with first.turn("hello", wait=PATIENCE) as inner:
                    await (await inner.steps())[0].done("Hi.")
                await (await turn.steps())[0].done("Done.")
                await other

    asyncio.run(main())


def test_a_tool_that_was_given_up_keeps_nobody_waiting(hf: Holdfast) -> None:
    """Its thread still waits, but the turn that it worked for does not wait for it any more."""
    begun, given_up = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def impatient() -> str:
        """Wait for the other, for a short time."""
        assert begun.wait(PATIENCE)
        return str(b.send(name(1), "hello", wait=PATIENCE).text)

    @tool
    def go_on() -> str:
        """The other one waits for this turn now."""
        given_up.set()
        until(waiting_for(0))
        return "ok"

    @tool
    def patient() -> str:
        """Wait for the first."""
        begun.set()
        assert given_up.wait(PATIENCE)
        return str(a.send(name(0), "hello", wait=PATIENCE).text)

    script = {"go": [call("impatient"), call("go_on"), "Done."], "hello": ["Hi."] * 3}
    a = hf.agent("a", model=Scripted(script), tools=[impatient, go_on], history=False)
    b = hf.agent("b", model=Scripted({"go": [call("patient"), "Done."], "hello": ["Hi."] * 3}), tools=[patient])
    came = at_once(lambda: a.send(name(0), "go").text, lambda: b.send(name(1), "go").text)
    assert (came, results_of(hf, 1)) == (["Done.", "Done."], "Hi.")
    until(lambda: ("assistant", "Hi.") in spoken(hf, name(1)))


def test_the_same_names_in_another_journal_are_other_conversations() -> None:
    with holdfast.open("memory:") as one, holdfast.open("memory:") as other:
        busy, free = [threading.Event(), threading.Event()], threading.Event()

        def person(client: Holdfast, number: int) -> str:
            with client.session(name(number)).turn("go") as turn:
                busy[number].set()
                assert free.wait(PATIENCE)
                return finish(turn, "Done.")

        def work(client: Holdfast, number: int) -> str:
            with client.session(name(number)).turn("go") as turn:
                assert all(event.wait(PATIENCE) for event in busy)
                with client.session(name(1 - number)).turn("hello", wait=PATIENCE) as inner:
                    finish(inner, "Hi.")
                return finish(turn, "Done.")

        def freed() -> str:
            until(lambda: waiting_for(0)() and waiting_for(1)())
            free.set()
            return "Done."

        works = [
            lambda: person(one, 1),
            lambda: work(one, 0),
            lambda: person(other, 0),
            lambda: work(other, 1),
            freed,
        ]
        assert at_once(*works) == ["Done."] * 5


# the rule by itself


def test_a_wait_is_refused_if_it_closes_a_circle_and_only_then() -> None:
    """Against a list of who waits for what, looked through in full each time."""
    made = seeded("circles")
    for _ in range(volume(100, 20_000)):
        found, nodes = WaitGraph(), [ConversationNode(b"", "t", str(number)) for number in range(6)]
        ways: dict[Any, tuple[set[ConversationNode], ConversationNode]] = {}
        for _ in range(30):
            if ways and made.random() < 0.3:
                wait = made.choice(list(ways))
                found.end_wait(wait)
                del ways[wait]
                continue
            held, target = made.sample(nodes, made.randrange(3)), made.choice(nodes)
            inherited = made.randrange(len(held) + 1)
            who = Caller(((found, threading.Thread()),), tuple(TurnWork(node) for node in held[:inherited]))
            for node in held[inherited:]:
                found.begin_work(who, node)
            reached = {target}
            while more := {to for holds, to in ways.values() if holds & reached} - reached:
                reached |= more
            try:
                ways[found.begin_wait(who, target, "queue")] = (set(held), target)
                refused = False
            except Refused:
                refused = True
            assert refused == bool(reached & set(held))
        assert len(found._waiting) == sum(bool(holds) for holds, _ in ways.values()), "people are not noted"


def forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WaitGraph, "end_wait", lambda self, wait: None)


def looks_one_step_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def direct(
        self: WaitGraph, held: set[Any], node: ConversationNode, *, stopping: bool
    ) -> list[ConversationNode] | None:
        return [node] if node in held else None

    monkeypatch.setattr(WaitGraph, "_find_cycle", direct)


@pytest.mark.parametrize("bug", [forgets_nothing, looks_one_step_ahead])
def test_a_rule_that_is_wrong_is_found_out(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_wait_is_refused_if_it_closes_a_circle_and_only_then()


def test_what_a_tool_left_running_holds_nobody_that_does_not_wait_for_it() -> None:
    outer, inner = TurnWork(ConversationNode(b"", "t", "outer")), TurnWork(ConversationNode(b"", "t", "inner"))
    first, second = TurnWork(), TurnWork()
    who = Caller(((None, threading.current_thread()),), (outer, first, inner, second))
    assert who.list_held_turns() == [inner, outer]
    first.going_on = False
    assert who.list_held_turns() == [inner], "the tool that sent to it is waited for no more"
    second.going_on = False
    assert who.list_held_turns() == []
