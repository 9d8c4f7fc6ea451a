"""`async with hf.frame(…) as frame:` the block of `client/frame.py`, by the same table, for asyncio.

Once the block is left, the frame is left and its lease released, also when the task is
cancelled again at every await, or the coroutine is closed. Cancelled while it is entered, a
frame that was pushed already stays live, with its lease released: its key takes it up again.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from holdfast.aio.line import AsyncFrameLine
from holdfast.aio.step import Step
from holdfast.aio.threads import WAITING, gave, settle
from holdfast.client.frame import Frame, return_type
from holdfast.core.values import typed
from holdfast.errors import Refused
from holdfast.records.budget import TokenBudget
from holdfast.records.frames import FrameLimits, Limits
from holdfast.records.resume import Answer, Asked, FrameInfo
from holdfast.records.usage import Usage

T = TypeVar("T")


class RootFrame(Frame):
    """A root frame that can be given up while it waits for another owner, and not after."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gate = threading.Lock()
        self._waited = self._given_up = False

    def give_up(self) -> bool:
        """Whether it was in time: then nothing will be written."""
        with self._gate:
            self._given_up = not self._waited
            return self._given_up

    def _begin_writing(self) -> None:
        with self._gate:
            if self._given_up:
                raise Refused("Whoever wanted this frame was cancelled meanwhile. Nothing was written.")
            self._waited = True


class AsyncFrame(AsyncFrameLine):
    """A live frame, to be used in an `async with` block. Make one with `hf.frame` or `frame.frame`."""

    # entering and leaving

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def open(self) -> None:
        """See Frame.open. Waiting for another owner can be cancelled at any time."""
        opening = self._threads.submit(WAITING, self._frame.open)
        give_up = self._frame.give_up if isinstance(self._frame, RootFrame) else lambda: False
        stop = await settle(opening, lambda: opening.cancel() or give_up())
        if stop is None:
            return opening.result()
        if gave(opening):
            await self.leave(stop)
        raise stop

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave(error)

    async def leave(self, error: BaseException | None = None) -> None:
        """See Frame.leave. Not before it is left does this return, or raise a cancellation."""
        if isinstance(error, GeneratorExit):
            return self._frame.leave(error)  # A coroutine that is being closed may not await: it is one commit.
        leaving = self._threads.must(partial(self._frame.leave, error))
        stop = await settle(leaving)
        if stop is None or not (error is None or isinstance(error, Exception)):
            return leaving.result()  # What ends the block ends the task as well: it goes on unchanged.
        failure = leaving.exception()
        if failure is not None:
            stop.add_note(f"Frame {self.id} could not be ended: {failure}")
        raise stop

    # what it is

    @property
    def id(self) -> str:
        """The frame's id."""
        return self._frame.id

    @property
    def scope(self) -> str:
        """Where the frame lives."""
        return self._frame.scope

    async def info(self) -> FrameInfo:
        """See Frame.info."""
        return await self._threads.run(self._frame.info)

    async def status(self) -> str:
        """See Frame.status."""
        return await self._threads.run(lambda: self._frame.status)

    async def tokens(self) -> TokenBudget:
        """See Frame.tokens."""
        return await self._threads.run(lambda: self._frame.tokens)

    async def left(self) -> int | None:
        """See Frame.left."""
        return await self._threads.run(lambda: self._frame.left)

    async def limits(self) -> FrameLimits:
        """See Frame.limits."""
        return await self._threads.run(lambda: self._frame.limits)

    # work

    def frame(
        self,
        goal: str,
        *,
        key: str | None = None,
        inputs: Any = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        inherit: Sequence[str] = (),
        on_error: str = "fail",
    ) -> AsyncFrame:
        """See Frame.frame: a child, for an `async with` block of its own."""
        child = self._frame.frame(
            goal, key=key, inputs=inputs, tokens=tokens, limits=limits, inherit=inherit, on_error=on_error
        )
        return AsyncFrame(child, self._threads)

    @overload
    async def run(
        self, fn: Callable[..., Awaitable[T]], *args: Any, key: str, if_interrupted: str = "ask", as_: Any = None
    ) -> T: ...

    @overload
    async def run(
        self, fn: Callable[..., T], *args: Any, key: str, if_interrupted: str = "ask", as_: Any = None
    ) -> T: ...

    async def run(
        self, fn: Callable[..., Any], *args: Any, key: str, if_interrupted: str = "ask", as_: Any = None
    ) -> Any:
        """See Frame.run. An async function is awaited here, any other runs in a thread."""
        kind = return_type(fn, as_)
        return typed(await Step(self._frame, self._threads, key, if_interrupted).run(fn, args), kind)

    async def result(self, value: Any, *, summary: str | None = None) -> Any:
        """See Frame.result."""
        return await self._threads.run(self._frame.result, value, summary=summary)

    async def value(self, as_: Any = None) -> Any:
        """See Frame.value."""
        return await self._threads.run(self._frame.value, as_)

    async def spend(self, usage: Usage | int, *, purpose: str | None = None, key: str | None = None) -> None:
        """See Frame.spend."""
        await self._threads.run(self._frame.spend, usage, purpose=purpose, key=key)

    async def reserve(self, purpose: str, amount: int, *, key: str | None = None) -> None:
        """See Frame.reserve."""
        await self._threads.run(self._frame.reserve, purpose, amount, key=key)

    async def release(self, purpose: str, amount: int | None = None, *, key: str | None = None) -> None:
        """See Frame.release."""
        await self._threads.run(self._frame.release, purpose, amount, key=key)

    async def attach(
        self,
        kind: str,
        *,
        handle: str | None = None,
        description: str | None = None,
        target: str | None = None,
        body: str | None = None,
        priority: str | None = None,
        policy: str | None = None,
        tokens: int | None = None,
        key: str | None = None,
    ) -> str:
        """See Frame.attach."""
        return await self._threads.run(
            self._frame.attach,
            kind,
            handle=handle,
            description=description,
            target=target,
            body=body,
            priority=priority,
            policy=policy,
            tokens=tokens,
            key=key,
        )

    async def detach(self, *handles: str, reason: str | None = None, key: str | None = None) -> str | None:
        """See Frame.detach."""
        return await self._threads.run(self._frame.detach, *handles, reason=reason, key=key)

    # questions

    async def suspend(
        self,
        reason: str,
        *,
        kind: str = "approval",
        options: Sequence[str] | None = None,
        recommended: str | None = None,
        arguments: Any = None,
        payload: Any = None,
        token: bool = False,
        expires_ms: int | None = None,
        on_expiry: str | None = None,
        until: int | None = None,
        subtree: bool = False,
        release_budget: bool = True,
        key: str | None = None,
    ) -> Asked:
        """See Frame.suspend."""
        return await self._threads.run(
            self._frame.suspend,
            reason,
            kind=kind,
            options=options,
            recommended=recommended,
            arguments=arguments,
            payload=payload,
            token=token,
            expires_ms=expires_ms,
            on_expiry=on_expiry,
            until=until,
            subtree=subtree,
            release_budget=release_budget,
            key=key,
        )

    async def ask(self, reason: str, *, key: str, **how: Any) -> Answer:
        """See Frame.ask."""
        return await self._threads.run(partial(self._frame.ask, reason, key=key, **how))

    def __repr__(self) -> str:
        return f"Async{self._frame!r}"
