"""Streams in asyncio loops of one's own: a stop is heard while the provider is silent, and the stream is let go of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

import holdfast
from holdfast import CallModel
from holdfast.aio import turn as aio_turn
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.flow.turns.engine import TurnEngine
from tests.model_server import Fault, model_server
from tests.turns.agent_world import SESSION
from tests.turns.stream_kit import AsyncSource, Broken, Source


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_turn, "STOP_POLL_SECONDS", 0.01)
    monkeypatch.setattr("holdfast.aio.turn.STOP_POLL_SECONDS", 0.01)


def run(work: Callable[[AsyncHoldfast], Awaitable[None]]) -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            await work(hf)
            assert (await hf.journal.verify()).findings == ()

    asyncio.run(asyncio.wait_for(main(), 20))


async def heard(hf: AsyncHoldfast, source: Any, words: list[str], key: str = "k") -> Any:
    """A turn of a loop of one's own; gives its last step."""
    async with (await hf.session(SESSION)).turn("Tell me.", key=key) as turn:
        async for step in turn:
            if not isinstance(step, CallModel):
                return step
            async for word in step.stream(source):
                words.append(word)
    return None


async def partial(hf: AsyncHoldfast) -> list[str]:
    return [one.text for one in await (await hf.session(SESSION)).messages() if one.partial]


async def stalled(hf: AsyncHoldfast, source: Source, words: list[str]) -> Any:
    """Stop a turn once the stream has said what it says."""
    going = asyncio.create_task(heard(hf, source, words))
    while len(words) < len(source._words):
        await asyncio.sleep(0.001)
    assert await (await hf.session(SESSION)).stop("enough")
    began = time.monotonic()
    done = await going
    assert time.monotonic() - began < 5
    return done


@pytest.mark.parametrize("kind", [Source, AsyncSource])
def test_a_stop_is_heard_while_the_provider_is_silent(kind: type[Source]) -> None:
    async def work(hf: AsyncHoldfast) -> None:
        ended: list[str] = []

        async def silent() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("ended")

        source, words = kind("One ", "two ", then=silent), list[str]()
        done = await stalled(hf, source, words)
        assert (done.status, done.reason, done.text) == ("stopped", "enough", "One two ")
        assert await partial(hf) == ["One two "]
        assert (source.closed, ended) == (1, ["ended"])
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()

    run(work)


def test_a_stop_is_heard_by_a_real_client_of_a_silent_provider() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        with model_server(["word " * 50], [Fault("stall", after=0.3)]) as server:
            client = openai.AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0, timeout=30)
            asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
            stream = await client.chat.completions.create(**asked)
            words: list[str] = []
            going = asyncio.create_task(heard(hf, stream, words))
            while len(words) < 5:
                await asyncio.sleep(0.001)
            assert await (await hf.session(SESSION)).stop("enough")
            done = await asyncio.wait_for(going, 5)
            assert (done.status, done.text) == ("stopped", "".join(words))
            assert stream.response.is_closed
            await client.close()

    run(work)


def test_a_planted_client_that_does_not_look_in_silence_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(aio_turn, "_watch_for_stop", never)

    async def work(hf: AsyncHoldfast) -> None:
        stalling = stalled(hf, Source("One ", then=lambda: asyncio.sleep(60)), [])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stalling, 0.2)

    run(work)


def test_an_sdk_that_makes_something_else_of_a_cancellation_is_stopped_as_well() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        async def silent() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise Broken from None

        done = await stalled(hf, Source("One ", then=silent), [])
        assert (done.status, done.text) == ("stopped", "One ")

    run(work)


def test_a_timeout_of_the_sdk_is_its_own_unless_somebody_stopped_it() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        chat = await hf.session(SESSION)
        for error in (TimeoutError, Broken):

            async def broken(error: type[Exception] = error) -> None:
                await asyncio.sleep(0.03)
                raise error

            source = AsyncSource("One ", then=broken)
            with pytest.raises(error):
                await heard(hf, source, [])
            assert source.closed == 1
        assert await partial(hf) == []

        async def stopped() -> None:
            await chat.stop("enough")
            raise Broken

        done = await heard(hf, Source("One ", then=stopped), [])
        assert (done.status, done.text) == ("stopped", "One ")

    run(work)


def test_streams_that_end_too_early_are_no_reply_unless_somebody_stopped_them() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        chat = await hf.session(SESSION)
        with pytest.raises(ModelFailed):
            await heard(hf, Source("One "), [])
        with pytest.raises(InvalidValue):
            await heard(hf, Source(), [])
        done = await heard(hf, Source("One ", then=lambda: chat.stop("enough")), [])
        assert (done.status, done.reason, done.text) == ("stopped", "enough", "One ")

    run(work)


def test_a_cancelled_task_lets_go_of_the_stream() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        source, words = AsyncSource("One ", then=lambda: asyncio.sleep(60)), list[str]()
        going = asyncio.create_task(heard(hf, source, words))
        while not words:
            await asyncio.sleep(0.001)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert source.closed == 1
        assert await partial(hf) == []
        left = [task for task in asyncio.all_tasks() if "_watch" in repr(task)]
        await asyncio.sleep(0)
        assert all(task.done() for task in left)

    run(work)


def test_a_stream_that_does_not_let_itself_be_closed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_turn, "CLOSE_SECONDS", 0.01)

    async def work(hf: AsyncHoldfast) -> None:
        class Stubborn(Source):
            async def aclose(self) -> None:
                await asyncio.sleep(60)

        done = await stalled(hf, Stubborn("One ", then=lambda: asyncio.sleep(60)), [])
        assert done.status == "stopped"

    run(work)


def test_a_journal_that_cannot_be_read_for_a_moment_does_not_break_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = TurnEngine.load_stop_reason

    def look(self: TurnEngine) -> str | None:
        looks.append(1)
        if len(looks) < 3:
            raise holdfast.Unavailable
        return real(self)

    monkeypatch.setattr(TurnEngine, "load_stop_reason", look)

    async def work(hf: AsyncHoldfast) -> None:
        assert (await stalled(hf, Source("One ", then=lambda: asyncio.sleep(60)), [])).status == "stopped"
        assert len(looks) >= 3

    run(work)


def test_a_call_that_is_not_streamed_can_be_raced_against_a_stop() -> None:
    async def work(hf: AsyncHoldfast) -> None:
        chat = await hf.session(SESSION)
        async with chat.turn("Tell me.") as turn:
            async for step in turn:
                if not isinstance(step, CallModel):
                    break
                assert await turn.is_stopping() is False
                assert await turn.wait_for_stop(timeout=0.02) is None
                call = asyncio.create_task(asyncio.sleep(60))
                asked = asyncio.create_task(turn.wait_for_stop())
                assert await chat.stop("enough")
                await asyncio.wait((call, asked), return_when=asyncio.FIRST_COMPLETED)
                assert not call.done()
                call.cancel()
                done = await turn.stop(asked.result() or "")
                assert (done.status, done.reason) == ("stopped", "enough")
                assert await turn.is_stopping() is True
        async with chat.turn("And now?", key="l") as turn:
            (step,) = await turn.steps()
            await step.done("This.")
            assert await turn.wait_for_stop() is None

    run(work)
