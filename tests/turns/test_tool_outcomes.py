"""What a tool gave, as a result for a model: nearly anything, and never an exception."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import gc
import io
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pydantic
import pytest

import holdfast
from holdfast import Holdfast, Scripted, Tool, ToolDef, tool
from holdfast.core.journal.codec import encode
from holdfast.model.scripted import call
from holdfast.runtime.tools import result as tool_result
from holdfast.runtime.tools import tool as tool_run
from holdfast.runtime.tools.result import Bytes, ToolOutcome, build_outcome
from tests.backends import IN_MEMORY
from tests.scale import seeded, volume
from tests.turns.loops import SESSION


class Mood(enum.Enum):
    GOOD = "good"


class Name(str, enum.Enum):  # noqa: UP042
    ANNA = "anna"


@dataclasses.dataclass
class Order:
    id: int
    paid: bool = True


class Line(msgspec.Struct):
    text: str


class Person(pydantic.BaseModel):
    born: datetime.date


class Text(str):
    __slots__ = ()


class Array:
    def tolist(self) -> list[int]:
        return [1, 2]


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("text", "text"),
        ("", ""),
        (Text("mine"), "mine"),
        (None, "Done."),
        (0, 0),
        (False, False),
        (2.5, 2.5),
        ([], []),
        ({"a": [1, None]}, {"a": [1, None]}),
        ((1, 2), [1, 2]),
        ({1: "one"}, {"1": "one"}),
        (Order(7), {"id": 7, "paid": True}),
        ([Line("x"), Order(1)], [{"text": "x"}, {"id": 1, "paid": True}]),
        (Person(born=datetime.date(2000, 1, 2)), {"born": "2000-01-02"}),
        ({"who": [Person(born=datetime.date(2000, 1, 2))]}, {"who": [{"born": "2000-01-02"}]}),
        (Mood.GOOD, "good"),
        (Name.ANNA, "anna"),
        (decimal.Decimal("1.50"), "1.50"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({3}, [3]),
        (Array(), [1, 2]),
    ],
)
def test_plain_data_is_given_as_it_is(value: Any, result: Any) -> None:
    assert build_outcome(value) == ToolOutcome(result=result)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("a\0b", "a\\0b"),
        ("a\ud800b", "a\\ud800b"),
        ({"a": "x\0y"}, '{"a":"x\\u0000y"}'),
        ([2**80], "[1208925819614629174706176]"),
        ({"rate": float("nan")}, '{"rate":NaN}'),
    ],
)
def test_what_the_journal_would_refuse_is_written_so_that_it_does_not(value: Any, result: str) -> None:
    found = build_outcome(value)
    assert (found.result, found.is_error) == (result, False)
    encode(found.result)


class Stubborn:
    @property
    def tolist(self) -> Any:
        raise OSError("no")


def numbers() -> Iterator[int]:
    raise AssertionError("nobody may run it")
    yield 1


async def later() -> AsyncIterator[int]:
    yield 1


async def forgotten() -> int:
    return 1


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


UNFIT: list[tuple[Any, str]] = [
    (numbers, "is an iterator (generator). Return a list"),
    (lambda: map(str, [1]), "is an iterator (map). Return a list"),
    (later, "is an iterator (async_generator). Return a list"),
    (lambda: io.StringIO("x"), "is an iterator (StringIO)"),
    (lambda: {"a": [iter([1])]}, "Return a list"),
    (forgotten, "Make the tool with async def"),
    (object, "object is not plain data. Return text"),
    (threading.Lock, "lock is not plain data"),
    (Stubborn, "OSError: no"),
    (lambda: Order, "type is not plain data"),
    (circle, "holds itself"),
    (lambda: ValueError("given, not raised"), "ValueError is not plain data"),
    (lambda: {(1, 2): 3}, "cannot be shown"),
    (lambda: b"x" * 11_000, "is 11,000 bytes. Return less"),
    (lambda: "é" * 10_001, "is 20,002 bytes of text. Return less"),
]


@pytest.mark.parametrize(("make", "said"), UNFIT)
def test_what_cannot_be_shown_says_that_the_tool_ran_and_what_to_return(make: Any, said: str) -> None:
    found = build_outcome(make(), most_text=10_000, most_bytes=10_000)
    assert found.is_error
    assert said in found.result
    assert found.result.startswith("The tool ran, but what it gave cannot be shown:")
    assert len(found.result) < 600


def test_an_outcome_that_raises_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_result, "build_outcome", lambda value: tool_result._convert_result(value, 10_000, 10_000))
    caught = 0
    for make, _ in UNFIT:
        given = make()
        try:
            tool_result.build_outcome(given)
        except Exception:
            caught += 1
        if hasattr(given, "close"):
            given.close() if not hasattr(given, "aclose") else None
    assert caught == len(UNFIT)


# files


def test_bytes_are_kept_as_a_file_that_the_result_names() -> None:
    for value in (b"\x00\x01\x02", bytearray(3), memoryview(b"abc")):
        found = build_outcome(value)
        assert found.result == "[file result, application/octet-stream, 3 bytes: kept, not shown]"
        assert found.files == (Bytes(bytes(value)),)


def test_pictures_and_documents_are_shown_with_the_texts_around_them() -> None:
    found = build_outcome(
        ["See:", Bytes(b"\x89PNG", "image/png"), Bytes(b"%PDF", "application/pdf", "bill.pdf"), {"n": 1}]
    )
    assert found.result == [
        {"type": "text", "text": "See:"},
        {"type": "image", "data": b"\x89PNG", "media_type": "image/png"},
        {"type": "file", "data": b"%PDF", "media_type": "application/pdf", "name": "bill.pdf"},
        {"type": "text", "text": '{"n":1}'},
    ]
    assert found.files == ()


def test_twenty_megabytes_of_text_are_kept_whole_and_shown_by_both_ends() -> None:
    text = "begin" + "x" * 20_000_000 + "end"
    found = build_outcome(text)
    assert not found.is_error
    assert found.result.startswith("begin")
    assert found.result.endswith("end")
    assert "19,990,008 of 20,000,008 characters left out; the whole text is kept as the file result.txt" in found.result
    assert len(found.result) < 11_000
    assert found.files == (Bytes(text.encode(), "text/plain", "result.txt"),)


def test_a_lot_of_data_becomes_text_that_the_journal_takes() -> None:
    found = build_outcome({"rows": list(range(50_000))})
    assert isinstance(found.result, str)
    assert found.result.startswith('{"rows":[0,1,2')


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def test_deep_nesting_is_data_then_text_then_refused() -> None:
    assert build_outcome(nested(60)).result == nested(60)
    assert build_outcome(nested(100)).result == "[" * 100 + "1" + "]" * 100
    assert build_outcome(nested(100_000)).is_error


def test_whatever_a_tool_gives_its_result_can_be_journaled() -> None:
    rng = seeded("outcomes")
    odd: list[Any] = [
        None,
        "",
        "\0",
        "\ud800",
        2**70,
        float("inf"),
        b"x",
        Order(1),
        {1},
        object(),
        iter([1]),
        Bytes(b"y"),
    ]
    odd += [Bytes(b"p", "image/png"), {"type": "text", "text": "part"}, {"type": "image"}, "word", 1.5, Mood.GOOD]
    with holdfast.open("memory:") as hf:
        chat = hf.session("alice", model="gpt-5-mini")
        for _ in range(volume(60, 3_000)):
            value: Any = rng.choice(odd)
            for _ in range(rng.randrange(4)):
                shape = rng.choice(["list", "dict", "pair"])
                value = [value] if shape == "list" else {"k": value} if shape == "dict" else [value, rng.choice(odd)]
            found = build_outcome(value)
            asked = holdfast.Message(role="assistant", tool_calls=(holdfast.ToolCallRequest(name="look"),))
            call = chat.append(asked).tool_calls[0]
            chat.append_result(call, found.result, is_error=found.is_error)


# what tools raise


def raising(error: BaseException, *, is_async: bool) -> Any:
    def plain() -> str:
        """Fail."""
        raise error

    async def awaited() -> str:
        """Fail."""
        await asyncio.sleep(0)
        raise error

    return tool(name="fail")(awaited if is_async else plain)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError(), StopIteration(), StopAsyncIteration()])
@IN_MEMORY
def test_whatever_a_tool_raises_is_told_to_the_model(hf: Holdfast, error: BaseException, is_async: bool) -> None:
    agent: Any = hf.agent("a", model=Scripted([call("fail"), "Done."]), tools=[raising(error, is_async=is_async)])
    assert agent.send(SESSION, "Go.").text == "Done."
    (told,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    assert told.is_error
    assert "fail " in str(told.result) or "Stop" in str(told.result)


@IN_MEMORY
def test_what_comes_out_of_a_tool_as_it_is_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_run, "_failure", lambda name, error: GeneratorExit())
    for is_async in (False, True):
        with pytest.raises(GeneratorExit):
            test_whatever_a_tool_raises_is_told_to_the_model(hf, GeneratorExit(), is_async)
        hf.session(SESSION).stop()


def test_a_tool_that_is_closed_is_closed() -> None:
    closed: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except GeneratorExit:
            closed.append("closed")
            raise

    async def begun() -> Any:
        at_work = Tool(waits, ToolDef(name="waits")).run({}, None, lambda work: asyncio.sleep(0))
        at_work.send(None)
        return at_work

    asyncio.run(begun()).close()  # A failure here would be raised in whoever lets go of it.
    gc.collect()
    assert closed == ["closed"]
