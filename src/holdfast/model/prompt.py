"""Give a model a single prompt, from code without an event loop: so that it can write summaries.

Apart from summarizers.py, because most summaries need neither asyncio nor a model.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from holdfast.model.registry import model_info
from holdfast.model.summarizers import ModelSummarizer
from holdfast.model.tokenizers import resolve_tokenizer
from holdfast.ports import Model
from holdfast.records.messages import ModelCall, ModelReply


class PromptPack(msgspec.Struct, frozen=True):
    """A prompt in the form of a pack."""

    prompt: str

    def to_openai(self) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": self.prompt}]}

    def to_responses(self) -> dict[str, Any]:
        return {"input": [{"role": "user", "content": self.prompt}]}

    def to_anthropic(self) -> dict[str, Any]:
        return self.to_openai()


def make_model_summarizer(model: Model) -> ModelSummarizer:
    """Return a summarizer that asks a model, in prompts that fit its window by its own tokenizer."""
    info = model_info(model.name)
    count = resolve_tokenizer(info.tokenizer).count
    return ModelSummarizer(partial(ask_model, model), name=model.name, window=info.input_budget, count=count)


def ask_model(model: Model, prompt: str) -> ModelReply:
    """Return a model's reply to a prompt."""
    replied: Future[ModelReply] = Future()

    def run() -> None:
        try:
            replied.set_result(asyncio.run(_await_reply(model, prompt)))
        except BaseException as error:  # noqa: BLE001  # Whoever waits raises it.
            replied.set_exception(error)

    # In a thread of its own, since the caller's may have a running loop, and a daemon, since the model may hang.
    threading.Thread(target=copy_context().run, args=(run,), name="holdfast-prompt", daemon=True).start()
    return replied.result()


async def _await_reply(model: Model, prompt: str) -> ModelReply:
    try:
        return await model.reply(ModelCall(pack=PromptPack(prompt)))
    finally:
        await model.close()  # Connections belong to their loop, and this one ends.
