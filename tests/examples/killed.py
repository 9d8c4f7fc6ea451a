"""Killing an example at every point that it passes: what all of them must hold, and the person who answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.testing import KillReport, kill_everywhere, kill_point, lives
from tests.scale import SOAK, seeded
from tests.sessions.provider_rules import openai_problems

STRIDE = 11
"""At test volume one point in so many is tried, from another one each time; an odd number meets befores and afters."""
ALL = 1_000_000


def killed(run: Callable[..., Any], *, stride: int = STRIDE, **how: Any) -> KillReport:
    """Kill a program everywhere: at each point on SQLite in a soak, else at some of them in memory."""
    first = 1 if SOAK else seeded("killed").randint(1, stride)
    report = kill_everywhere(
        run,
        journal="sqlite" if SOAK else "memory",
        points=range(first, ALL, 1 if SOAK else stride),
        **how,
    )
    assert report.points > 100
    assert report.runs > 2 * report.killed, "each time it was started again"
    return report


def careful(done: Callable[[Any], Any], told: str = "") -> Callable[[Any, Any], Any]:
    """A person who looks at the world before anything is done again, and says what came of it if it was done."""
    return lambda question, world: {"approve": False, "payload": told} if done(world) else True


def whole(hf: holdfast.Holdfast, session: str, *said: str) -> None:
    """What was said is there once, in order and answered; nothing is under way, open or broken."""
    chat = hf.session(session, create=False)
    told = [message.text for message in chat if message.role in ("user", "assistant") and message.text]
    assert told == list(said), "every message is there, and once"
    assert not list(hf.questions())
    assert not chat.stop(), "no turn is under way"
    assert hf.journal.verify().findings == ()
    assert openai_problems(chat.pack(100_000).to_openai()["messages"]) == []


def points_passed() -> int:
    """How many points the program that runs has passed so far."""
    life = lives._LIFE.get()
    return 0 if life is None else life.story.passed


def deadly(name: str, act: Callable[[], Any]) -> Any:
    """Something that the world sees, with a death right before it and one right after."""
    kill_point(f"before {name}")
    came = act()
    kill_point(f"after {name}")
    return came
