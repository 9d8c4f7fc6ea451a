"""A loop of your own for asyncio: word by word, tools beside each other, a stop button, and a limit in dollars.

    OPENAI_API_KEY=… python examples/own_loop_async.py
    python examples/loopback.py own_loop_async.py           without a key

`turn.steps()` gives everything that can be done now. Ctrl-C stops the turn: what was shown is kept, and the next
request begins behind it. Kill the process instead, start it again with the same key, and it goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import openai

import holdfast
from holdfast import Ask, AsyncCallModel, AsyncCallTool, AsyncHoldfast, Done

MODEL = "gpt-5-mini"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city, now.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

Tools = dict[str, Callable[..., Awaitable[object]]]


async def weather(city: str) -> str:
    """Only reads, so it may run again after a crash."""
    await asyncio.sleep(0)
    return f"sunny in {city}"


async def work(
    hf: AsyncHoldfast, client: openai.AsyncOpenAI, tools: Tools, text: str, key: str, say: Callable[[str], object]
) -> str | None:
    """Answer one request, word by word. None: it waits for a person."""
    chat = await hf.session("carol", system="You know the weather. Be brief.", model=MODEL, tools=TOOLS)
    async with chat.turn(text, key=key, if_interrupted="retry", budget_usd=0.05) as turn:
        while steps := await turn.steps():
            match steps[0]:
                case Done() as done:
                    return done.text
                case Ask():
                    return None
                case AsyncCallModel() as step:
                    await _answered(client, step, say)
                case _:
                    await asyncio.gather(*(_called(step, tools) for step in steps if isinstance(step, AsyncCallTool)))
    return None


async def _answered(client: openai.AsyncOpenAI, step: AsyncCallModel, say: Callable[[str], object]) -> None:
    """One reply. A stop is heard also while the provider is silent, and closes its stream."""
    chunks = await client.chat.completions.create(
        model=step.model,
        stream=True,
        stream_options={"include_usage": True},  # Else what was used is estimated, and its cost unknown.
        **step.pack.to_openai(),
    )
    async for words in step.stream(chunks):
        say(words)


async def _called(step: AsyncCallTool, tools: Tools) -> None:
    try:
        result = await tools[step.name](**step.args)
    except Exception as error:  # The model is told, and goes on.
        await step.fail(error)
    else:
        await step.done(result)


def shown(words: str) -> None:
    """Word by word, as they come."""
    print(words, end="", flush=True)


async def main_async() -> None:
    """One request. Ctrl-C is the stop button."""
    text, key = " ".join(sys.argv[1:]) or "How is the weather in Oslo?", os.environ.get("KEY", "req-81")
    async with holdfast.open_async("agent.db") as hf, openai.AsyncOpenAI() as client:
        chat = await hf.session("carol")
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, lambda: asyncio.ensure_future(chat.stop("the person left")))
        try:
            reply = await work(
                hf, client, {"weather": weather}, text, key, lambda words: print(words, end="", flush=True)
            )
        finally:
            loop.remove_signal_handler(signal.SIGINT)
        print("" if reply else "It waits for a person: holdfast questions agent.db")


def main() -> None:
    """From the command line."""
    asyncio.run(main_async())


if __name__ == "__main__":
    main()
