"""The lives of a program: it passes points, dies at one of them, and does nothing after that.

A `KillHistory` counts the points over all lives of a program and says at which one it dies. A `Life` is one process:
a client whose journal has a point before and after each call, and which knows that its earlier lives are gone.
`kill_point` and `killable` add points that the journal does not see.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.client.holdfast import Holdfast
from holdfast.errors import InvalidValue
from holdfast.flow.frames.leases import StreamLeases
from holdfast.ports import Model
from holdfast.records.batches import Batch
from holdfast.records.messages import Delta, ModelCall, ModelReply
from holdfast.system import ProcessName
from holdfast.testing.faults import FaultPoints, SimulatedDeath

T = TypeVar("T")
_LIFE: ContextVar[Life | None] = ContextVar("holdfast_life", default=None)


class KillHistory:
    """All lives of a program, and the point at which it dies, if any."""

    def __init__(self, die_at: int | None = None) -> None:
        self.die_at = die_at
        self.passed = 0
        self.died: str | None = None
        self.gone: set[str] = set()
        """The names of lives that are over."""
        self.calls: Counter[str] = Counter()
        self.lock = threading.Lock()


class Life:
    """One process of the program, from its start to its end or death."""

    def __init__(self, story: KillHistory) -> None:
        self.story = story
        self.dead = False

    def pass_point(self, name: Callable[[], str]) -> None:
        """Pass a point, or die there. After death every point raises, in any thread."""
        with self.story.lock:
            if self.dead:
                raise SimulatedDeath(f"called at {name()!r}, after death")
            self.story.passed += 1
            if self.story.passed != self.story.die_at:
                return
            self.dead = True
            self.story.died = name()
        raise SimulatedDeath(self.story.died)

    def run(self, run: Callable[[], T]) -> T:
        """Call a function so that `kill_point` knows this life, also in holdfast's tasks and threads."""
        _LIFE.set(self)
        return run()

    def wrap_client(self, opened: Holdfast) -> Holdfast:
        """Return the client with a mortal journal."""
        env = opened.env
        journal: Any = _MortalJournal(env.journal, self)
        leases = _SimulatedLeases(journal, env.clock, env.settings.lease_ms, self.story.gone)
        return Holdfast(replace(env, journal=journal, leases=leases))

    def release(self, mortal: Holdfast) -> None:
        """Release the threads and files that a process releases by ending. Nothing is written."""
        env = mortal.env
        self.story.gone.add(env.leases.process.name)
        env.leases.close()
        env.journal.close()


class _MortalJournal(FaultPoints):
    """A journal whose points are those of a life."""

    def __init__(self, journal: Any, life: Life) -> None:
        super().__init__(journal)
        self._life = life

    def _guard(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        life, story = self._life, self._life.story
        if name == "renew_lease":  # A background thread calls it at any time, so it is no point. The dead do not renew.
            return lambda *args, **kwargs: not life.dead and call(*args, **kwargs)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            with story.lock:
                story.calls[name] += 1
                number = story.calls[name]
            life.pass_point(lambda: f"before {name} #{number}{_describe_batch(args)}")
            answer = call(*args, **kwargs)
            life.pass_point(lambda: f"after {name} #{number}{_describe_batch(args)}")
            return answer

        return guarded


def _describe_batch(args: tuple[Any, ...]) -> str:
    batch = args[0] if args else None
    if not isinstance(batch, Batch):
        return ""
    return f" ({', '.join(event.type for part in batch.parts for event in part.events)})"


class _SimulatedProcessName(ProcessName):
    """A process name that knows, on every platform and at once, which other processes are gone."""

    def __init__(self, gone: set[str]) -> None:
        super().__init__()
        self._gone = gone

    def is_gone(self, name: str) -> bool:
        return name in self._gone or super().is_gone(name)


class _SimulatedLeases(StreamLeases):
    """Leases under such a name: a dead owner's lease is taken over without waiting for it to run out."""

    def __init__(self, journal: Any, clock: Any, lease_ms: int, gone: set[str]) -> None:
        super().__init__(journal, clock, lease_ms)
        self.process = _SimulatedProcessName(gone)


# points inside a program


def kill_point(name: str) -> None:
    """Mark a point of your own, such as between two actions of a tool. It does nothing outside `kill_everywhere`."""
    life = _LIFE.get()
    if life is not None:
        life.pass_point(lambda: name)


class _MortalModel:
    """A model with a point before and after each reply."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        kill_point(f"before reply of {self._model.name}")
        answer = await self._model.reply(asked, say)
        kill_point(f"after reply of {self._model.name}")
        return answer


def killable(thing: Any) -> Any:
    """Wrap a model or a function, such as a tool, with a point before and after each call; after death, calls raise."""
    if callable(getattr(thing, "reply", None)):
        return _MortalModel(thing)
    if not callable(thing):
        raise InvalidValue(f"killable takes a model or a function, not {type(thing).__name__}.")
    name = getattr(thing, "__name__", type(thing).__name__)

    @functools.wraps(thing)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        kill_point(f"before {name}")
        answer = await thing(*args, **kwargs)
        kill_point(f"after {name}")
        return answer

    @functools.wraps(thing)
    def called(*args: Any, **kwargs: Any) -> Any:
        kill_point(f"before {name}")
        answer = thing(*args, **kwargs)
        kill_point(f"after {name}")
        return answer

    return awaited if inspect.iscoroutinefunction(thing) else called
