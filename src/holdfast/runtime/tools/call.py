"""The call object of a tool: its key and frame, and methods to ask questions and report progress.

A question stops the tool: its frame is suspended and `Waiting` is raised. Once it is answered, the tool runs again
from the beginning, and the same question returns the answer. Code that swallows the exception gains nothing, because
everything else in that frame is refused until then. So ask first and act afterwards, or keep results with
`call.frame.run(…)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.aio.executor import AsyncTwin, ThreadPools, make_async
from holdfast.aio.frame import AsyncFrame
from holdfast.client.frame import Frame
from holdfast.core.journal.codec import encode
from holdfast.core.numbers import is_number
from holdfast.errors import InvalidValue
from holdfast.flow.frames import evidence
from holdfast.flow.frames.takeover import check_not_suspended, frame_key
from holdfast.ports import Env
from holdfast.records.events.frames import HandleContent
from holdfast.records.ids import SessionId, own_key
from holdfast.records.recovery import Answer

Tell = Callable[[str, dict[str, Any]], None]


class ToolCall:
    """The call, for tools made with `def`: annotate a parameter with this type."""

    def __init__(
        self,
        env: Env,
        frame: Frame,
        *,
        turn_id: str,
        name: str,
        session: SessionId,
        attempt: int,
        answer: Answer | None,
        tell: Tell,
    ) -> None:
        self.env, self.frame, self.turn_id = env, frame, turn_id
        self.name, self.session, self.attempt, self.answer = name, session, attempt, answer
        self._tell, self._asked = tell, 0

    @property
    def key(self) -> str:
        """The call's id: the idempotency key for the tool's own effects, the same in every attempt."""
        return self.frame.id

    def ask(
        self,
        reason: str,
        *,
        key: str | None = None,
        kind: str = "approval",
        options: Sequence[str] | None = None,
        **how: Any,
    ) -> Answer:
        """Ask a person and return the answer. The tool stops here until there is one."""
        return self.frame.ask(reason, key=self._question_key(key), kind=kind, options=options, **how)

    def sleep(self, seconds: float, *, key: str | None = None) -> None:
        """Pause the tool without a waiting process. After that time it runs again and passes this point."""
        if not is_number(seconds, least=0, most=10**9, whole=False):
            raise InvalidValue(f"Sleep for a number of seconds, 0 or more, not {seconds!r:.40}.")
        until = self.env.clock.now_ms() + round(seconds * 1000)
        self.frame.ask(f"Sleeping for {seconds:g} seconds.", key=self._question_key(key), kind="timer", until=until)

    def _question_key(self, key: str | None) -> str:
        """Return a key for each question, the same in every run."""
        self._asked += 1
        return key if key is not None else own_key("question", self._asked)

    def progress(self, text: str, **more: Any) -> None:
        """Report progress to current listeners. It is not journaled."""
        self._tell("progress", {"text": str(text), "call": self.key, "name": self.name, **more})

    def attach(self, kind: str, *, key: str | None = None, **how: Any) -> str:
        """Attach evidence to the turn, so that the model is shown it; return the handle's id. See Frame.attach.

        A tool that runs again attaches the same thing only once.
        """
        known = {name: how.pop(name, None) for name in ("description", "target", "body")}
        if key is None:
            key = own_key("attached", hashlib.sha256(encode([kind, known, how])).hexdigest()[:32])
        check_not_suspended(self.env, self.frame.scope, self.key, key)
        return evidence.add_handle(
            self.env,
            self.turn_id,
            kind,
            HandleContent(**known),
            trust="tool",
            call=self.key,
            key=frame_key(self.key, key),
            **how,
        )

    def __repr__(self) -> str:
        return f"ToolCall({self.name!r}, key={self.key!r})"


class AsyncToolCall(AsyncTwin[ToolCall]):
    """The call, for tools made with `async def`: methods that wait for the journal are awaited."""

    def __init__(self, call: ToolCall, threads: ThreadPools) -> None:
        super().__init__(call, threads)
        self.frame = AsyncFrame(call.frame, threads)
        self.name, self.session, self.attempt, self.answer = call.name, call.session, call.attempt, call.answer

    @property
    def key(self) -> str:
        """See ToolCall.key."""
        return self._sync.key

    async def ask(
        self,
        reason: str,
        *,
        key: str | None = None,
        kind: str = "approval",
        options: Sequence[str] | None = None,
        **how: Any,
    ) -> Answer:
        """See ToolCall.ask."""
        return await self._threads.run(lambda: self._sync.ask(reason, key=key, kind=kind, options=options, **how))

    sleep = make_async(ToolCall.sleep)

    def progress(self, text: str, **more: Any) -> None:
        """See ToolCall.progress."""
        self._sync.progress(text, **more)

    async def attach(self, kind: str, *, key: str | None = None, **how: Any) -> str:
        """See ToolCall.attach."""
        return await self._threads.run(lambda: self._sync.attach(kind, key=key, **how))
