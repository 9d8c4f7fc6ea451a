"""Turn: from a user's message to the final reply, as a loop that survives its process.

Each iteration asks the journal for the next step, so the same code begins a turn, continues it after a crash, and
returns a finished one. Leaving the block early, also by an exception, leaves the turn live: the same key continues it.
The decisions are those of the engine in `flow/turns/engine.py`; `turn.frame` is the frame to work in.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from holdfast.client.frame import TurnFrame
from holdfast.client.pack import wrap_pack
from holdfast.client.steps import Ask, CallModel, CallTool, Done, Step
from holdfast.flow.turns import turns
from holdfast.flow.turns.calls import EngineStep, TurnModelCall, TurnQuestions, TurnToolCall
from holdfast.flow.turns.engine import TurnEngine
from holdfast.records.usage import Usage


class Turn:
    """One turn of a conversation. Iterate over it in a `with` block; `session.turn` creates one."""

    def __init__(self, engine: TurnEngine) -> None:
        self.engine = engine
        self._done: Done | None = None

    def __enter__(self) -> Self:
        self.engine.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.leave(error)

    # properties

    @property
    def key(self) -> str | None:
        """The key of the turn."""
        return self.engine.key

    @property
    def id(self) -> str:
        """The id of the turn, which is that of its frame."""
        return self.engine.id

    @property
    def frame(self) -> TurnFrame:
        """The turn's frame: run steps once in it, append, pack, attach, and push children."""
        return make_turn_frame(self.engine)

    @property
    def status(self) -> str:
        """The current status of the turn's frame."""
        return self.frame.status

    @property
    def text(self) -> str:
        """The final reply; empty until there is one."""
        return "" if self.result is None else self.result.text

    @property
    def result(self) -> Done | None:
        """The end of the turn; None until it was reached here."""
        if self._done is None and self.engine.ended is not None:
            self._done = Done(self.engine.ended)
        return self._done

    @property
    def usage(self) -> Usage:
        """The usage of its model calls so far."""
        return self.engine.usage

    # next steps

    def __iter__(self) -> Iterator[Step]:
        while steps := self.steps(at_once=1):
            yield steps[0]
            if isinstance(steps[0], Done) or (isinstance(steps[0], Ask) and not self.engine.can_continue()):
                return

    def steps(self, at_once: int | None = None) -> list[Step]:
        """Return every step that can be done now: one, or several tools that may run in parallel.

        The last ones are `Done`, or `Ask` for as long as the whole turn waits; after `Done` there are none.
        """
        steps = self.engine.next_steps(at_once)
        if self.result is not None:
            return [self.result] if steps else []
        return [make_step(self.engine, step) for step in steps]

    # stopping

    def stop(self, reason: str = turns.STOPPED) -> Done:
        """End the turn now: keep the streamed text as a partial message, and give open calls a result that says so."""
        self.engine.stop(reason)
        assert self.result is not None
        return self.result

    def is_stopping(self) -> bool:
        """Return True if the turn can only stop, by request or because its message is gone. End it with `stop`."""
        return self.engine.load_stop_reason() is not None

    def wait_for_stop(self, timeout: float | None = None) -> str | None:
        """Wait until the turn is asked to stop, and return the reason.

        Returns None after `timeout` seconds, or once the turn has ended with its reply, in any process.
        """
        return self.engine.wait_for_stop(timeout)

    def __repr__(self) -> str:
        found = self.engine.id if self.engine.opener.found else None
        return f"Turn({self.engine.goal!r}, id={found!r})"


def make_turn_frame(engine: TurnEngine) -> TurnFrame:
    """Return the frame of a turn, for work in it."""
    place = engine.opener.turn_place
    return TurnFrame(
        engine.env,
        place.actor,
        place.frame,
        goal=engine.goal,
        replayed=engine.replayed,
        check_inside=engine.check_inside,
    )


def make_step(engine: TurnEngine, step: EngineStep) -> Step:
    """Return an engine's step as the loop gets it."""
    if isinstance(step, TurnModelCall):
        return CallModel(engine, step, wrap_pack(engine.env, step.packed, step.digest))
    if isinstance(step, TurnToolCall):
        return CallTool(engine, step)
    return Ask(step.questions) if isinstance(step, TurnQuestions) else Done(step)
