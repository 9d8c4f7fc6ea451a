"""`@tool`: what it makes of a function, what it refuses, when it asks, and how it runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

import holdfast
from holdfast.errors import EffectFailed, InvalidValue, ToolFailed, ToolTimedOut
from holdfast.runtime.tools import tool as tool_running
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from holdfast.runtime.tools.result import failure_text
from holdfast.runtime.tools.schema import parse_docstring
from holdfast.runtime.tools.sources import check_tools, load_tools
from holdfast.runtime.tools.tool import AnyTool, tool


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


def ran(made: AnyTool, call: object = None, **args: Any) -> Any:
    return asyncio.run(made.run(args, call, in_thread))


# what is made of a function


@tool
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(name="wait-for", description="Wait.", timeout=5, if_interrupted="retry", tokens=100, needs_approval=True)
async def wait(event: str) -> str:
    """Never shown."""
    return event


def test_a_tool_is_still_the_function() -> None:
    assert add(1) == 3
    assert add(a=1, b=4) == 5
    assert asyncio.run(wait("x")) == "x"  # type: ignore[arg-type]
    assert add.__name__ == "add"
    assert add.__doc__ == "Add two numbers."


def test_a_tool_knows_what_it_was_made_with() -> None:
    assert (add.name, add.description, add.is_async, add.wants_call) == ("add", "Add two numbers.", False, False)
    assert (add.needs_approval, add.if_interrupted, add.timeout, add.tokens) == (False, "ask", None, None)
    assert (wait.name, wait.description, wait.is_async) == ("wait-for", "Wait.", True)
    assert (wait.needs_approval, wait.if_interrupted, wait.timeout, wait.tokens) == (True, "retry", 5.0, 100)
    assert add.definition == holdfast.ToolDef(name="add", description="Add two numbers.", parameters=add.parameters)


def test_the_call_is_given_and_the_model_never_hears_of_it() -> None:
    @tool
    def sync(order: int, call: ToolCall) -> Any:
        return order, call

    @tool
    async def later(order: int, mine: AsyncToolCall | None = None) -> Any:
        return order, mine

    mark = object()
    for made in (sync, later):
        assert made.wants_call
        assert list(made.parameters["properties"]) == ["order"]
        assert ran(made, mark, **made.read('{"order": 3}')) == (3, mark)
        with pytest.raises(InvalidValue, match="is not known"):
            made.read('{"order": 3, "call": 1, "mine": 1}')


def by_hand(x: str) -> str:
    return x


def untyped(x) -> None: ...  # type: ignore[no-untyped-def]
def starred(*things: int) -> None: ...
def keyed(**things: int) -> None: ...
def positional(x: int, /) -> None: ...
def odd_type(x: Iterable[int]) -> None: ...
def odd_object(x: object) -> None: ...
def odd_lock(x: list[threading.Thread]) -> None: ...
def many(x: list[int] | set[int]) -> None: ...
def lost(x: NotThere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def wrong_call(call: AsyncToolCall) -> None: ...
async def wrong_async_call(call: ToolCall) -> None: ...
def two_calls(one: ToolCall, two: ToolCall) -> None: ...
def yielding() -> Iterator[int]:
    yield 1


async def yielding_async() -> AsyncIterator[int]:
    yield 1


class Shop:
    def sell(self, thing: str) -> str:
        """Sell it."""
        return f"sold {thing}"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "x of the tool untyped has no type. Write one, as in x: str"),
        (starred, "write each parameter out"),
        (keyed, "write each parameter out"),
        (positional, "write each parameter out"),
        (odd_type, "x of the tool odd_type: Iterable has no form in JSON. Use plain types"),
        (odd_object, "object has no form in JSON"),
        (odd_lock, "Thread has no form in JSON"),
        (many, "cannot be read from JSON: Type unions may not contain more than one array-like"),
        (lost, "cannot be found: name 'NotThere' is not defined. Define and import it at the top"),
        (wrong_call, "is made with def: annotate call as ToolCall"),
        (wrong_async_call, "is made with async def: annotate call as AsyncToolCall"),
        (two_calls, "asks for its call twice: one and two"),
        (yielding, "is a generator. Return a list"),
        (yielding_async, "is a generator. Return a list"),
        (Shop.sell, "Make the tool of thing.sell"),
        (Shop, "Give a function"),
        (len, "Give a function"),
        (add, "is a tool already"),
        (lambda: 1, "cannot name a tool"),
    ],
)
def test_a_function_that_no_model_could_call_is_refused_when_the_tool_is_made(function: Any, said: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        tool(function)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"if_interrupted": "again"}, "Say 'ask', 'retry' or 'fail'"),
        ({"timeout": 0}, "seconds above 0"),
        ({"timeout": float("nan")}, "seconds above 0"),
        ({"timeout": "5"}, "seconds above 0"),
        ({"tokens": -1}, "whole number of tokens"),
        ({"tokens": 0.5}, "whole number of tokens"),
        ({"name": "two words"}, "cannot name a tool"),
        ({"name": "x" * 65}, "cannot name a tool"),
        ({"name": "tool\n"}, "cannot name a tool"),
        ({"needs_approval": "yes"}, "Say True, False, or give a function"),
        ({"needs_approval": lambda y: True}, "asks for y, which the tool does not take"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        tool(**options)(by_hand)
    assert said in str(refused.value)


def test_an_async_predicate_is_refused() -> None:
    async def later(x: str) -> bool:
        return False

    with pytest.raises(InvalidValue, match="Give a plain function"):
        tool(needs_approval=later)(by_hand)  # type: ignore[arg-type]


# docstrings


GOOGLE = """Pay an order
    back.

    More that a model need not read.

    Args:
        order (int): Which order,
            as it was numbered.
        amount: How much: in cents.

    Returns:
        nothing: at all
    """
NUMPY = """Pay an order back.

    Parameters
    ----------
    order : int
        Which order,
        as it was numbered.
    amount
        How much: in cents.

    Returns
    -------
    nothing
        at all
    """
SPHINX = """Pay an order back.

    :param int order: Which order,
        as it was numbered.
    :param amount: How much: in cents.
    :returns: nothing
    """
BARE = """
    Args:
        order: Which order, as it was numbered.
        amount: How much: in cents.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX])
def test_parameters_are_described_in_each_of_the_three_ways(doc: str) -> None:
    text, about = parse_docstring(doc)
    assert text == "Pay an order back."
    assert about == {"order": "Which order, as it was numbered.", "amount": "How much: in cents."}


@pytest.mark.parametrize(
    ("doc", "text"),
    [
        (None, None),
        ("", None),
        ("One line.", "One line."),
        (BARE, None),
        ("Does it.\n:param x: y", "Does it."),
        ("Note: this is text.", "Note: this is text."),
        ("Args:\n    : nothing\n    ():", None),
    ],
)
def test_a_docstring_of_any_form_is_no_reason_to_refuse(doc: str | None, text: str | None) -> None:
    assert parse_docstring(doc)[0] == text


# approval


def test_a_predicate_is_asked_with_the_arguments_it_names_and_with_defaults() -> None:
    @tool(needs_approval=lambda amount, currency: amount > 100 or currency != "EUR")
    def pay(order: int, amount: float, currency: str = "EUR") -> None: ...

    assert pay.requires_approval({"order": 1, "amount": 101.0})
    assert not pay.requires_approval({"order": 1, "amount": 99.0})
    assert pay.requires_approval({"order": 1, "amount": 99.0, "currency": "USD"})


def test_a_predicate_may_take_all_arguments() -> None:
    both: list[Callable[..., bool]] = [lambda args: bool(args["x"] == "y"), lambda **args: bool(args["x"] == "y")]
    for predicate in both:
        made = tool(needs_approval=predicate)(by_hand)
        assert made.requires_approval({"x": "y"})
        assert not made.requires_approval({"x": "z"})


def check_that_doubt_asks() -> None:
    async def later() -> bool:
        return False

    for predicate in (lambda x: x.result_without_change, lambda x: later(), lambda x, /: False):
        made = tool(needs_approval=predicate)(by_hand)
        assert made.requires_approval({"x": "y"})


def test_a_predicate_that_fails_or_does_not_decide_asks() -> None:
    check_that_doubt_asks()


def test_a_predicate_that_fails_open_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_running.Tool, "requires_approval", lambda self, args: self.needs_approval is True)
    with pytest.raises(AssertionError):
        check_that_doubt_asks()


# running


def test_a_def_runs_in_a_thread_and_an_async_def_does_not() -> None:
    @tool
    def here() -> str:
        return threading.current_thread().name

    @tool
    async def there() -> str:
        return threading.current_thread().name

    assert ran(here) != "MainThread"
    assert ran(there) == "MainThread"


def test_a_tool_that_hangs_is_timed_out_and_says_that_it_may_have_run() -> None:
    release = threading.Event()

    @tool(timeout=0.05)
    def stuck() -> str:
        release.wait(20)
        return "too late"

    @tool(timeout=0.05)
    async def hanging() -> None:
        await asyncio.Event().wait()

    async def both() -> None:
        try:
            for made in (stuck, hanging):
                with pytest.raises(ToolTimedOut) as late:
                    await made.run({}, None, in_thread)
                assert failure_text(late.value) == (
                    f"{made.name} did not end within 0.05 seconds. It may or may not have taken effect."
                )
                assert isinstance(late.value, EffectFailed)
        finally:
            release.set()  # A thread cannot be stopped: it goes on, and what it gives is dropped.

    asyncio.run(both())


def test_a_timeout_of_the_tools_own_is_not_taken_for_its_end() -> None:
    @tool(timeout=5)
    async def impatient() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError) as own:
        ran(impatient)
    assert not isinstance(own.value, ToolTimedOut)
    assert failure_text(own.value).startswith("TimeoutError")


def test_what_a_tool_raises_comes_out_as_it_is() -> None:
    @tool
    def broken() -> None:
        raise KeyError("no such order")

    with pytest.raises(KeyError, match="no such order"):
        ran(broken)


def check_that_odd_ends_are_failures() -> None:
    @tool
    def leaving() -> None:
        sys.exit("usage: pay [-h]")

    @tool
    async def leaving_async() -> None:
        sys.exit(2)

    @tool
    def exhausted() -> Any:
        return next(iter(()))

    @tool
    def cancelling() -> None:
        raise asyncio.CancelledError

    @tool
    async def cancelled_inside() -> None:
        task = asyncio.ensure_future(asyncio.sleep(9))
        task.cancel()
        await task

    async def all_of_them() -> None:
        for made in (leaving, leaving_async, exhausted, cancelling, cancelled_inside):
            with pytest.raises(ToolFailed, match=made.name):
                async with asyncio.timeout(2):
                    await made.run({}, None, in_thread)

    asyncio.run(all_of_them())


def test_leaving_the_process_stopiteration_and_cancelling_itself_are_failures_of_the_tool() -> None:
    check_that_odd_ends_are_failures()


def test_a_tool_that_could_end_its_caller_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bare(_name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
        return await function(**given)

    monkeypatch.setattr(tool_running, "_run_async", bare)
    with pytest.raises((SystemExit, AssertionError)):
        check_that_odd_ends_are_failures()


def test_whoever_cancels_a_tool_is_heeded() -> None:
    @tool(timeout=20)
    async def hanging() -> None:
        await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.ensure_future(hanging.run({}, None, in_thread))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


# what a model is told of a failure


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such order"), "ValueError: no such order"),
        (KeyError("order"), "KeyError: 'order'"),
        (ToolFailed("The till is shut."), "The till is shut."),
        (ExceptionGroup("several", [ExceptionGroup("more", [OSError("disk")])]), "OSError: disk"),
        (Unspeakable(), "Unspeakable, which cannot say what happened"),
        (ValueError("a\n  b\0\ud800"), "ValueError: a b\\0\\ud800"),
    ],
)
def test_a_failure_is_told_by_its_type_and_message(error: BaseException, text: str) -> None:
    assert failure_text(error) == text


def test_a_failure_is_told_briefly_and_without_a_traceback() -> None:
    try:
        raise ValueError("x" * 100_000)
    except ValueError as error:
        text = failure_text(error)
    assert len(text) == 500
    assert "Traceback" not in text
    assert __file__ not in text


# sources


class Source:
    def __init__(self, *tools: Any) -> None:
        self._tools = tools

    async def tools(self) -> list[Any]:
        return list(self._tools)


def test_functions_methods_tools_and_sources_are_taken_together_in_order() -> None:
    given = [by_hand, Shop().sell, wait, Source(add)]
    found = asyncio.run(load_tools(given))
    assert list(found) == ["by_hand", "sell", "wait-for", "add"]
    assert ran(found["sell"], thing="bread") == "sold bread"
    assert found["wait-for"] is wait


def test_the_tools_for_an_agents_own_past_are_taken_too() -> None:
    with holdfast.open("memory:") as hf:
        chat = hf.session("alice")
        chat.append("My booking code is XK42.")
        found = asyncio.run(load_tools([chat.packs.history_tools()]))
        search = found["search_history"]
        assert search.if_interrupted == "retry"
        assert "XK42" in ran(search, **search.read('{"query": "booking"}'))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([by_hand, by_hand], "Two tools are named by_hand"),
        ([add, Source(add, wait), Source(tool(name="add")(by_hand))], "Two tools are named add"),
        ([5], "is no tool"),
        ([Source], "is no tool"),
        (["add"], "is no tool"),
        ("add", "must be a list"),
        (5, "must be a list"),
        ([Source(by_hand)], "Give what @tool makes"),
    ],
)
def test_what_is_no_tool_or_has_anothers_name_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        asyncio.run(load_tools(given))


def test_what_can_be_known_without_asking_a_source_is_refused_at_once() -> None:
    with pytest.raises(InvalidValue, match="Two tools are named by_hand"):
        check_tools([by_hand, Source(), by_hand])


def test_making_tools_imports_neither_pydantic_nor_mcp() -> None:
    code = (
        "import sys; from holdfast.runtime.tools.tool import tool\n"
        "def f(x: int) -> int: 'F.'; return x\n"
        "tool(f).read('{\"x\": 1}'); print([m for m in ('pydantic', 'mcp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
