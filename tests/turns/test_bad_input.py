"""Whatever tools and models do, the turn goes on, or stays live, or says why it stopped; and the journal tells it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Message, Settings, Usage
from holdfast.errors import FrameSuspended, InvalidTransition, ModelFailed, ToolFailed, Waiting
from holdfast.model.scripted import Scripted, call
from holdfast.models import ModelReply
from holdfast.records.messages import ToolCallRequest
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from holdfast.runtime.tools.result import Bytes
from holdfast.runtime.tools.tool import tool
from tests.turns.agent_world import SESSION, Counted, facts
from tests.turns.loops import check_whole, place, types

Holdfast = holdfast.Holdfast


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    """One backend: what is tried here never comes to it."""
    with holdfast.open("memory:") as client:
        yield client
        check_whole(client)


def ran(hf: Holdfast, given: Any, **arguments: Any) -> Any:
    """Have a tool called once; gives the result that the model was shown."""
    model = Counted([call(given.name, **arguments), "I see."])
    reply = hf.agent("a", model=model, tools=[given], history=False).send(SESSION, "Go.", key="k")
    assert (reply.status, reply.text, model.asked) == ("done", "I see.", 2)
    (result,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    shown = str(model.requests[-1].pack.to_openai()["messages"][-1])
    (returned,) = facts(hf, "tool.returned")
    assert returned.failed == result.is_error, "the journal says the same as the conversation"
    child = hf.index.get_frame(returned.call)
    assert child.status == ("failed" if result.is_error else "completed")
    assert len(shown) < 40_000, "what the model is shown is bounded"
    return result


# tools that do not behave


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def raising(error: BaseException) -> Any:
    @tool
    def fails() -> str:
        """Fail."""
        raise error

    return fails


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("the order is unknown"), "ValueError: the order is unknown"),
        (ToolFailed("Ask for another order."), "Ask for another order."),
        (KeyError("missing"), "missing"),
        (RecursionError("too deep"), "too deep"),
        (SystemExit(3), "end the whole process"),
        (asyncio.CancelledError(), "cancelled"),
        (StopIteration(), "StopIteration"),
        (ExceptionGroup("two", [ValueError("first"), TypeError("second")]), "first"),
        (ValueError("\ud800 \0 \x1b[31m"), "ValueError"),
        (ValueError("long " * 10_000), "long"),
        (Waiting("of another frame", question="q"), "of another frame"),
        (FrameSuspended("of another frame", question="q"), "of another frame"),
    ],
)
def test_a_tool_that_raises_is_told_to_the_model(hf: Holdfast, error: BaseException, told: str) -> None:
    result = ran(hf, raising(error))
    assert result.is_error
    assert told in result.result
    assert len(result.result) < 5_000


def test_an_error_without_words(hf: Holdfast) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert ran(hf, raising(Silent())).is_error


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_tool_that_hangs_is_given_up_after_its_time(hf: Holdfast, kind: str) -> None:
    let_go = threading.Event()

    @tool(timeout=0.01)
    async def hangs() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    @tool(name="hangs", timeout=0.01)
    def hangs_in_thread() -> str:
        """Hang."""
        let_go.wait(10)
        return "never"

    try:
        result = ran(hf, hangs if kind == "async" else hangs_in_thread)
    finally:
        let_go.set()
    assert result.is_error
    assert "may or may not have taken effect" in result.result


def test_bytes_are_kept_and_named(hf: Holdfast) -> None:
    @tool
    def picture() -> Bytes:
        """Paint."""
        return Bytes(b"\x00\x01" * 500, "application/zip", "all.zip")

    result = ran(hf, picture)
    assert (result.is_error, "all.zip" in result.result) == (False, True)
    (returned,) = facts(hf, "tool.returned")
    assert hf.journal.artifact(returned.artifacts[0]) == b"\x00\x01" * 500


@pytest.mark.parametrize("size", [20_000_000])
def test_twenty_megabytes_become_a_file_with_a_marker(size: int) -> None:
    @tool
    def dump() -> str:
        """Give everything."""
        return "0123456789" * (size // 10)

    with holdfast.open("memory:") as hf:
        result = ran(hf, dump)
        assert not result.is_error
        (returned,) = facts(hf, "tool.returned")
        kept = hf.journal.artifact(returned.artifacts[0])
        assert isinstance(kept, bytes)
        assert len(kept) == size


def test_a_file_that_is_over_the_settings_is_told_to_the_model() -> None:
    @tool
    def dump() -> bytes:
        """Give everything."""
        return b"x" * 10_000

    with holdfast.open("memory:", settings=Settings(artifact_bytes=1_000)) as hf:
        result = ran(hf, dump)
        assert result.is_error
        assert result.result.startswith("The tool ran, but")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (lambda: (n for n in range(3)), True),
        (lambda: iter([1]), True),
        (object, True),
        (Odd, True),
        (lambda: threading.Lock(), True),
        (lambda: {"a": object()}, True),
        (lambda: float("nan"), False),
        (lambda: {1: 2}, False),
        (lambda: {3, 1}, False),
        (lambda: "\ud800\0", False),
        (lambda: None, False),
        (lambda: 10**400, False),
    ],
)
def test_whatever_a_tool_gives_becomes_some_result(hf: Holdfast, value: Any, error: bool) -> None:
    @tool
    def gives() -> Any:
        """Give."""
        return value()

    assert ran(hf, gives).is_error == error


def test_what_holds_itself_becomes_an_error(hf: Holdfast) -> None:
    @tool
    def gives() -> Any:
        """Give."""
        loop: list[Any] = []
        loop.append(loop)
        return loop

    assert ran(hf, gives).is_error


# calls that make no sense


def asked(hf: Holdfast, request: ToolCallRequest, *, tools: Any) -> Any:
    model = Counted([[request], "I see."])
    reply = hf.agent("a", model=model, tools=tools, history=False).send(SESSION, "Go.", key="k")
    assert (reply.status, reply.text) == ("done", "I see.")
    (result,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    return result


@tool
def weather(city: str, days: int = 1) -> str:
    """Foretell the weather."""
    raise AssertionError("it is never called")


@pytest.mark.parametrize("name", ["forecast", "Weather", "weather ", "x" * 300, "drop table", "weather.now", "№1"])
def test_a_tool_that_the_model_invented(hf: Holdfast, name: str) -> None:
    result = asked(hf, ToolCallRequest(name=name, arguments="{}"), tools=[weather])
    assert result.is_error
    assert "no tool" in result.result


@pytest.mark.parametrize(
    "arguments",
    [
        "null",
        "[]",
        "17",
        '"Lyon"',
        "{}",
        '{"city": 7}',
        '{"city": "Lyon", "days": "many"}',
        '{"city": "Lyon", "weeks": 2}',
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(hf: Holdfast, arguments: str) -> None:
    result = asked(hf, ToolCallRequest(name="weather", arguments=arguments), tools=[weather])
    assert result.is_error
    assert len(result.result) < 2_000


@pytest.mark.parametrize(
    "arguments", ['{"city": Ly', '{"city": "Lyon"', "", '{"city": "Lyon"} {"city": "Paris"}', "[" * 5_000, '{"a": NaN}']
)
def test_arguments_that_are_no_json_are_no_reply(hf: Holdfast, arguments: str) -> None:
    answers: list[Any] = [[ToolCallRequest(name="weather", arguments=arguments)], "Hi."]
    agent = hf.agent("a", model=Scripted(lambda pack: answers.pop(0)), tools=[weather])
    with pytest.raises(ModelFailed) as caught:
        agent.send(SESSION, "Go.", key="k")
    assert (caught.value.kind, len(str(caught.value)) < 1_000) == ("malformed", True)
    assert len(facts(hf, "model.failed")) == 1
    assert agent.send(SESSION, "Go.", key="k").text == "Hi."


def test_arguments_that_do_not_fit_are_not_worth_a_question(hf: Holdfast) -> None:
    @tool(needs_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        raise AssertionError("it is never called")

    assert asked(hf, ToolCallRequest(name="pay", arguments='{"amount": "lots"}'), tools=[pay]).is_error


# models that do not behave


@pytest.mark.parametrize(
    "nonsense",
    [
        ModelReply(message=Message(role="assistant", content=""), usage=Usage(input=9)),
        ModelReply(message=Message(role="assistant", content=None), usage=Usage(input=9)),
        ModelReply(message=Message(role="user", content="I am you."), usage=Usage(input=9)),
        "just text",
        None,
    ],
)
def test_a_model_that_answers_nonsense_fails_and_the_turn_stays_live(hf: Holdfast, nonsense: Any) -> None:
    answers = [nonsense]

    class Model(Scripted):
        async def reply(self, given: Any, say: Any = None) -> Any:
            return answers.pop() if answers else await super().reply(given, say)

    agent = hf.agent(
        "a", model=Model([ModelReply(message=Message(role="assistant", content="Hi."), usage=Usage(input=5))])
    )
    with pytest.raises(ModelFailed) as caught:
        agent.send(SESSION, "Hello", key="k")
    assert caught.value.kind == "malformed"
    (failed,) = facts(hf, "model.failed")
    assert failed.retryable
    reply = agent.send(SESSION, "Hello", key="k")
    assert (reply.text, reply.usage.input) == ("Hi.", 14 if isinstance(nonsense, ModelReply) else 5), "all is paid once"


def test_half_a_stream_is_forgotten_and_the_turn_stays_live(hf: Holdfast) -> None:
    answers: list[Any] = [
        ModelFailed("It was cut.", kind="cut", retryable=True, partial="Hel", usage=Usage(input=3)),
        "Hi.",
    ]
    agent = hf.agent("a", model=Scripted(lambda pack: answers.pop(0)))
    with pytest.raises(ModelFailed):
        agent.send(SESSION, "Hello", key="k")
    assert [one.role for one in hf.session(SESSION).messages()] == ["user"], "nobody takes half a reply for one"
    assert agent.send(SESSION, "Hello", key="k").text == "Hi."


def test_a_model_that_is_away_for_a_minute(hf: Holdfast) -> None:
    """Six times rate limited: each is journaled, each leaves the turn live, and then it is answered."""
    answers: list[Any] = [ModelFailed("429", kind="rate_limited", retryable=True)] * 6 + ["Hi."]
    agent = hf.agent("a", model=Scripted(lambda pack: answers.pop(0)), loops=3)
    for _ in range(6):
        with pytest.raises(ModelFailed):
            agent.send(SESSION, "Hello", key="k")
        assert hf.index.stack(place())[0].status == "active"
    reply = agent.send(SESSION, "Hello", key="k")
    assert (reply.status, reply.text) == ("done", "Hi."), "failures that say nothing about the request are no loops"
    assert types(hf).count("model.failed") == 6


# questions that are swallowed


@pytest.mark.parametrize("colour", ["thread", "async"])
@pytest.mark.parametrize("how", ["returns", "raises", "asks again", "works on", "hangs"])
def test_a_swallowed_question_does_no_harm(hf: Holdfast, colour: str, how: str) -> None:
    refused: list[str] = []
    effects: list[str] = []

    def tried(work: Any) -> None:
        try:
            work()
        except InvalidTransition as error:
            refused.append(type(error).__name__)

    def work_on(frame: Any, given: Any) -> None:
        tried(lambda: frame.run(lambda: effects.append("ran"), key="later"))
        tried(lambda: frame.frame("child").__enter__())
        tried(lambda: frame.attach("tool_output", description="d", body="b"))
        tried(lambda: given.attach("tool_output", description="d", body="b"))
        tried(lambda: frame.ask("Another?", key="other"))

    @tool(timeout=0.05)
    def careless(call: ToolCall) -> str:
        """Ask, and swallow the question."""
        try:
            answer = call.ask("Really?")
        except Exception:  # that is what this is about
            if how == "works on":
                work_on(call.frame, call)
            elif how == "asks again":
                tried(lambda: call.ask("Really, really?"))
            elif how == "raises":
                raise ValueError("something else") from None
            elif how == "hangs":
                time.sleep(0.06)
            return "I went on without an answer"
        effects.append(f"answered {answer.approved}")
        return "done properly"

    @tool(name="careless", timeout=0.05)
    async def careless_async(call: AsyncToolCall) -> str:
        """Ask, and swallow the question."""
        try:
            answer = await call.ask("Really?")
        except Exception:  # that is what this is about
            if how == "works on":
                await asyncio.to_thread(work_on, call._sync.frame, call._sync)
            elif how == "asks again":
                try:
                    await call.ask("Really, really?")
                except FrameSuspended:
                    refused.append("refused")
            elif how == "raises":
                raise ValueError("something else") from None
            elif how == "hangs":
                await asyncio.sleep(0.06)
            return "I went on without an answer"
        effects.append(f"answered {answer.approved}")
        return "done properly"

    given = careless if colour == "thread" else careless_async
    agent = hf.agent("a", model=Scripted([call("careless"), "Fine."]), tools=[given])
    waiting = agent.send(SESSION, "Go.", key="k")
    assert (waiting.status, waiting.reason) == ("waiting", "Really?")
    assert len(refused) == {"works on": 5, "asks again": 1}.get(how, 0)
    assert (effects, types(hf).count("tool.returned")) == ([], 0), "what it gave does not count"
    assert len(list(hf.questions())) == 1
    hf.answer(waiting.questions[0].id, approve=True)
    assert agent.send(SESSION, "Go.", key="k").text == "Fine."
    results = [one.result for message in hf.session(SESSION).messages() for one in message.tool_results]
    assert (results, effects) == (["done properly"], ["answered True"]), "it ran again, with the answer"


def test_a_planted_turn_that_takes_the_value_of_a_swallowed_question_is_caught(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.flow.turns import calls as calling

    monkeypatch.setattr(calling, "_check_answerable", lambda state, call: None)

    @tool
    def careless(call: ToolCall) -> str:
        """Ask, and swallow the question."""
        try:
            call.ask("Really?")
        except Exception:  # that is what this is about
            return "I went on without an answer"
        return "done properly"

    reply = hf.agent("a", model=Scripted([call("careless"), "Fine."]), tools=[careless]).send(SESSION, "Go.")
    assert reply.status != "waiting", "which is what the tests above would see"
