"""Operations of a walk: the life of frames and their budgets."""

from __future__ import annotations

from typing import Any

from holdfast.client.index import IndexView
from holdfast.errors import HoldfastError
from holdfast.records.frames import Limits
from holdfast.records.usage import Usage
from tests.model.frames_model import LIVE
from tests.model.frames_pick import MANY_LIVE, PURPOSES, equal, others, scope_of, some_frame, some_limits
from tests.model.frames_walk import SCOPES, Op, Walk


def push(walk: Walk) -> Op | None:
    if len(walk.model.live()) > MANY_LIVE:
        return pop(walk)
    chance = walk.random.random()
    parent = None if chance < 0.15 or not walk.model.live() else some_frame(walk, lambda unit: unit.question is None)
    scope = walk.random.choice(SCOPES) if parent is None or chance > 0.7 else None
    tokens: Any = walk.random.choice((None, 0, 7, 50, 50, 100, 400, 0.5, 0.5, 0.1, 1.0, 1000, 1000, -1, 1.5))
    if parent is None and walk.random.random() < 0.8:
        tokens = walk.random.choice((None, 100, 1000, 5000))
    limits, goal = some_limits(walk), f"goal {walk.steps}"
    frame_id = walk.new_id() if walk.random.random() < 0.15 else None
    where = scope or (scope_of(walk, parent) if parent is not None else SCOPES[0])
    how: dict[str, Any] = {
        "scope": scope,
        "parent": parent,
        "tokens": tokens,
        "limits": limits,
        "frame_id": frame_id,
    }
    return Op(
        "push",
        {"goal": goal, **how},
        where,
        lambda: walk.model.push(goal, **how),
        lambda index, key: index.push_frame(goal, key=key, **how),
        None if frame_id else lambda index, key: index.push_frame(goal + "!", key=key, **how),
        keyed=frame_id is None,
        after=lambda frame: walk.pushes.update({frame: how}),
        again=equal,
        repeatable=frame_id is not None,
    )


def push_again(walk: Walk) -> Op | None:
    """An id that exists: the same frame, or another, which is refused."""
    if not walk.pushes:
        return None
    frame = walk.random.choice(list(walk.pushes))
    how = {**walk.pushes[frame], "frame_id": frame}
    goal = walk.random.choice((walk.model.units[frame].pushed_goal, "another goal"))
    unit = walk.model.units[frame]
    return Op(
        "push again",
        {"goal": goal, **how},
        unit.scope,
        lambda: walk.model.push(goal, **how),
        lambda index, key: index.push_frame(goal, **how),
    )


def update(walk: Walk) -> Op:
    frame, chance = some_frame(walk), walk.random.random()
    how: dict[str, Any] = {"goal": f"goal {walk.steps}"}
    if chance < 0.35:
        how["status"] = walk.random.choice(("active", "waiting", "completed", "suspended", "asleep"))
    elif chance < 0.65:
        how["limits"] = some_limits(walk)
    elif chance < 0.75:
        how["tokens"] = walk.random.choice((0, 50, 1000, 2000, -3))
    bound = Limits(context_tokens=77)
    other = others(walk, how, goal="another goal", limits=bound, tokens=77, status=another_status(walk, frame, how))
    return Op(
        "update",
        {"frame": frame, **how},
        scope_of(walk, frame),
        lambda: walk.model.update(frame, **how),
        lambda index, key: index.update_frame(frame, key=key, **how),
        lambda index, key: index.update_frame(frame, key=key, **other),
        differs=other,
        frame=frame,
        keyed=True,
    )


def another_status(walk: Walk, frame: str, how: dict[str, Any]) -> str | None:
    """Another one than was asked for. One that the frame had was no change, and nobody can tell it from none."""
    unit = walk.model.units.get(frame)
    before = "" if unit is None else unit.status
    return next((status for status in ("waiting", "active") if status not in (how.get("status"), before)), None)


def at_a_version(walk: Walk) -> None:
    """Whoever expects a version is refused if the frame has moved on."""
    frame, client = some_frame(walk), walk.random.choice(walk.clients)
    unit = walk.model.units.get(frame)
    if unit is None or unit.status not in LIVE:
        return
    walk.note(client, "update at a wrong version", {"frame": frame}, None)
    version = client.index.get_frame(frame).version
    try:
        client.index.update_frame(frame, goal="never", expected_version=version + walk.random.choice((-1, 1)))
    except HoldfastError as error:
        walk.told_of(client.number, error, {"VersionConflict", "StaleEpoch", "NotOwner"}, "update")
        return
    raise AssertionError("an update at a wrong version was done")


def pop(walk: Walk) -> Op:
    frame = some_frame(walk, lambda unit: not walk.model.children(unit) and not unit.calls)
    status = walk.random.choice(("completed",) * 5 + ("failed", "cancelled", "cancelled") + ("active",))
    summary, error = walk.random.choice(((None, None), ("done", None), (None, "broken")))
    unit = walk.model.units.get(frame)
    if unit is not None and unit.status not in LIVE and walk.random.random() < 0.5:
        status, (summary, error) = unit.status, unit.words
    how: dict[str, Any] = {"summary": summary, "error": error}

    def after(info: Any) -> None:
        assert info == walk.clients[0].index.get_frame(frame), "what pop_frame gives is not what get_frame gives"

    return Op(
        "pop",
        {"frame": frame, "status": status, **how},
        scope_of(walk, frame),
        lambda: walk.model.pop(frame, status, summary, error),
        lambda index, key: index.pop_frame(frame, status, key=key, **how),
        lambda index, key: index.pop_frame(frame, status, summary="in another way", key=key),
        frame=frame,
        keyed=True,
        after=after,
        repeatable=True,
    )


def reserve(walk: Walk) -> Op:
    frame, purpose = some_frame(walk), walk.random.choice(PURPOSES)
    amount = walk.random.choice((0, 1, 5, 20, 100, 500, -1))

    def more(index: IndexView, key: str) -> None:
        index.reserve(frame, purpose, amount + 1, key=key)

    def give_back(index: IndexView, key: str) -> None:
        index.release_reservation(frame, purpose, walk.random.choice((None, amount)), key=key)

    return Op(
        "reserve",
        {"frame": frame, "purpose": purpose, "amount": amount},
        scope_of(walk, frame),
        lambda: walk.model.reserve(frame, purpose, amount),
        lambda index, key: index.reserve(frame, purpose, amount, key=key),
        walk.random.choice((more, give_back)),
        frame=frame,
        keyed=True,
        empty=amount == 0,
    )


def release(walk: Walk) -> Op:
    purpose = walk.random.choice(PURPOSES)
    frame = some_frame(walk, lambda unit: purpose in unit.reserved)
    amount = walk.random.choice((None, None, 0, 1, 5, 100, -1))
    return Op(
        "release",
        {"frame": frame, "purpose": purpose, "amount": amount},
        scope_of(walk, frame),
        lambda: walk.model.release(frame, purpose, amount),
        lambda index, key: index.release_reservation(frame, purpose, amount, key=key),
        lambda index, key: index.reserve(frame, purpose, 1, key=key),
        frame=frame,
        keyed=True,
        empty=amount == 0,
    )


def record(walk: Walk) -> Op:
    frame = some_frame(walk)
    amount = walk.random.choice((0, 1, 3, 10, 10, 60, -2))
    usage: Any = amount
    if walk.random.random() < 0.5:
        usage = Usage(input=amount, output=walk.random.choice((0, 2)), cached_input=1, reasoning=2, cost=5, model="m")
    purpose = walk.random.choice(PURPOSES) if walk.random.random() < 0.4 else None
    if purpose is not None:
        frame = some_frame(walk, lambda unit: purpose in unit.reserved)

    def act(index: IndexView, key: str | None, more: int = 0) -> None:
        given = usage if not more else Usage(output=9999)
        if purpose is None:
            index.record_usage(frame, given, key=key)
        else:
            index.spend_reserved(frame, purpose, given, key=key)

    return Op(
        "record",
        {"frame": frame, "usage": usage, "purpose": purpose},
        scope_of(walk, frame),
        lambda: walk.model.record(frame, usage, purpose),
        act,
        lambda index, key: act(index, key, 1),
        frame=frame,
        keyed=True,
        empty=amount == 0,
    )
