"""A model's reply while it streams: its words as they come, and what becomes of them if somebody stops the turn.

A stop is looked for now and then, and once more when the stream breaks or ends too early: whoever stopped it wants to
keep what was shown, and has no use for a timeout. A stream that is not read to its end is closed, because what nobody
reads is paid for all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.wire.streaming import accumulator
from holdfast.errors import HoldfastError, InvalidValue, ModelFailed
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.client.steps import CallModel
    from holdfast.client.turn import Turn

EMPTY_STREAM = "The stream was empty. Use step.fail(…), so that the model is called again."
LOOK_EVERY = 0.5
"""Seconds between looks for a request to stop, while a reply is on its way."""


def streamed(turn: Turn, step: CallModel, chunks: Iterable[Any]) -> Iterator[str]:
    """The words of a stream; the whole reply is journaled at its end."""
    gathered = None
    with closing(_heard(turn, chunks)) as heard:
        for chunk in heard:
            if gathered is None:
                gathered = accumulator()
                turn._words = partial(getattr, gathered, "text")
            for delta in gathered.add(chunk):
                if delta.kind == "text" and delta.text:
                    yield delta.text
    if turn._ended is None and (gathered is None or not gathered.ended):
        turn._heed_stop()
    if turn._ended is not None:
        step.answered = True
        return
    if gathered is None:
        raise InvalidValue(EMPTY_STREAM)
    try:
        whole = gathered.whole()
    except ModelFailed as error:
        step.fail(error, retryable=True, usage=used(error.usage))
        raise
    step.done(whole)


def _heard(turn: Turn, chunks: Iterable[Any]) -> Generator[Any, None, None]:
    """The chunks, until they end, or the turn does."""
    given, clock, at_end = iter(chunks), turn._ports.clock, False
    looked = clock.monotonic()
    try:
        while True:
            try:
                chunk = next(given)
            except StopIteration:
                at_end = True
                return
            except Exception:
                with suppress(HoldfastError):  # What happened is what the stream raised.
                    turn._heed_stop()
                if turn._ended is None:
                    raise
                return
            yield chunk
            if turn._ended is None and clock.monotonic() - looked > LOOK_EVERY:
                looked = clock.monotonic()
                turn._heed_stop()
            if turn._ended is not None:
                return
    finally:
        if not at_end:
            _close(given)
            if chunks is not given:
                _close(chunks)


def _close(stream: object) -> None:
    """Let go of a stream, if it can be; what it says to that is of no use to anybody."""
    close = getattr(stream, "close", None)
    if callable(close):
        with suppress(Exception):
            made = close()
            if inspect.iscoroutine(made):
                made.close()


def used(usage: object) -> Usage:
    """What an error reports as used, if it does."""
    return usage if isinstance(usage, Usage) else Usage()
