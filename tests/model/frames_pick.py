"""What the operations of a walk are about: frames, limits and names, chosen at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.records.frames import Limits
from tests.model.frames_model import Plan, Unit, nothing
from tests.model.frames_walk import SCOPES, Walk

PURPOSES = ("reply", "tools")
HANDLES = ("h1", "h2", "h3")
MANY_LIVE = 14


def some_frame(walk: Walk, like: Callable[[Unit], bool] | None = None) -> str:
    """A frame: live as a rule, and preferably like this; sometimes ended, now and then unknown."""
    live = walk.model.live()
    chance = walk.random.random()
    liked = [] if like is None else [unit for unit in live if like(unit)]
    if liked and chance < 0.8:
        return walk.random.choice(liked).id
    if live and chance < 0.95:
        return walk.random.choice(live).id
    if walk.model.units and chance < 0.99:
        return walk.random.choice(list(walk.model.units))
    return walk.new_id()


def scope_of(walk: Walk, frame: str) -> str:
    unit = walk.model.units.get(frame)
    return SCOPES[0] if unit is None else unit.scope


def some_limits(walk: Walk) -> Limits | None:
    if walk.random.random() < 0.6:
        return None
    asked: dict[str, Any] = {
        "context_tokens": walk.random.choice((1000, 4000, 9000)),
        "tool_calls": walk.random.choice((0, 1, 2, 10)),
        "depth": walk.random.choice((0, 1, 2, 3, 4)),
        "timeout_ms": walk.random.choice((20_000, 120_000, 400_000, None)),
    }
    return Limits(**{name: value for name, value in asked.items() if walk.random.random() < 0.75})


def equal(first: Any, second: Any) -> None:
    """A key gives what it gave."""
    assert first == second, f"a key gave {first} and then {second}"


def others(walk: Walk, how: dict[str, Any], **instead: Any) -> dict[str, Any]:
    """The same request but for one thing."""
    name = walk.random.choice(list(instead))
    return {**how, name: instead[name]}


def look_away() -> Plan:
    """A plan of nothing."""
    return Plan(nothing)
