"""Asking a model for one reply, so that nothing it raises looks like something else.

A model may be others' code, and let through whatever its SDK raises. All of that is ModelFailed here, so that it is
journaled and counted like any failure. Its words are not repeated: they may hold the request and its key. They are in
the error that is the cause.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from holdfast.errors import ModelFailed
from holdfast.ports import Model
from holdfast.records.calling import Delta, ModelCall, ModelReply


async def answer(model: Model, asked: ModelCall, say: Callable[[Delta], None]) -> ModelReply:
    """The reply, or ModelFailed. A cancellation comes out as it is: whoever waits knows whether it is theirs."""
    try:
        reply: object = await model.reply(asked, say)
    except (ModelFailed, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # The person's own, and not the model's.
        raise _failed(model, f"raised {type(error).__name__}") from error
    if isinstance(reply, ModelReply):
        return reply
    raise ModelFailed(
        f"The model {model.name} gave {type(reply).__name__} and no ModelReply. Correct its method reply.",
        kind="malformed",
        retryable=True,
    )


def cancelled_itself(model: Model) -> ModelFailed:
    """For a reply that was cancelled although nobody wanted that."""
    return _failed(model, "was cancelled by something that it waited for")


def _failed(model: Model, what: str) -> ModelFailed:
    return ModelFailed(
        f"The model {model.name} {what}. Have it raise ModelFailed with a kind, or send the message again.",
        kind="failed",
        retryable=True,
    )
