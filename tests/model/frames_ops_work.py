"""Operations of a walk: evidence, results and calls."""

from __future__ import annotations

from typing import Any

from holdfast.client.index import IndexView
from tests.model.frames_model import SCORES, No
from tests.model.frames_pick import HANDLES, equal, look_away, others, scope_of, some_frame
from tests.model.frames_walk import Op, Walk

INTERRUPTED = ("ask", "retry", "fail")
PRIORITY = ("low", "high")


def unlike(policy: str) -> str:
    return INTERRUPTED[INTERRUPTED.index(policy) - 1]


def add_handle(walk: Walk) -> Op:
    frame = some_frame(walk, lambda unit: 0 < len(unit.handles) < len(HANDLES) or unit.at_error)
    handle = walk.random.choice(HANDLES)
    if walk.random.random() < 0.3:
        frame = some_frame(walk, lambda unit: len(unit.handles) > 1)
    kind = walk.random.choice(("document", "url", "artifact") * 4 + ("thing",))
    priority = walk.random.choice((*SCORES, *SCORES, "huge"))
    tokens = walk.random.choice((None, 0, 10))
    how: dict[str, Any] = {"handle": handle, "priority": priority, "tokens": tokens}
    said = {"description": "what", **how}
    another = others(walk, said, description="else", priority=PRIORITY[priority == PRIORITY[0]], tokens=11)
    return Op(
        "add_handle",
        {"frame": frame, "kind": kind, **how},
        scope_of(walk, frame),
        lambda: walk.model.add_handle(frame, kind, **how),
        lambda index, key: index.add_handle(frame, kind, key=key, **said),
        lambda index, key: index.add_handle(frame, kind, key=key, **another),
        frame=frame,
        keyed=True,
        again=equal,
    )


def remove_handles(walk: Walk) -> Op:
    frame = some_frame(walk, lambda unit: bool(unit.handles))
    unit = walk.model.units.get(frame)
    names = walk.random.sample(HANDLES, walk.random.choice((0, 1, 1, 2)))
    if unit is not None and unit.handles and walk.random.random() < 0.7:
        names = walk.random.sample(list(unit.handles), walk.random.randint(1, len(unit.handles)))
    return Op(
        "remove_handles",
        {"frame": frame, "handles": names},
        scope_of(walk, frame),
        lambda: walk.model.remove_handles(frame, names),
        lambda index, key: index.remove_handle(frame, names, key=key),
        lambda index, key: index.reserve(frame, "reply", 1, key=key),
        frame=frame,
        keyed=True,
        after=lambda removal: walk.removals.append((frame, removal)) if removal else None,
        empty=not names,
        again=equal,
    )


def restore_handles(walk: Walk) -> Op | None:
    if not walk.removals:
        return None
    frame, removal = walk.random.choice(walk.removals[-4:])
    return Op(
        "restore_handles",
        {"frame": frame, "removal": removal},
        scope_of(walk, frame),
        lambda: walk.model.restore_handles(frame, removal),
        lambda index, key: index.restore_handles(frame, removal, key=key),
        lambda index, key: index.reserve(frame, "reply", 1, key=key),
        frame=frame,
        keyed=True,
    )


def add_result(walk: Walk) -> Op:
    frame, ref = some_frame(walk), f"ref-{walk.steps}"
    return Op(
        "add_result",
        {"frame": frame, "ref": ref},
        scope_of(walk, frame),
        lambda: walk.model.add_result(frame, "finding", ref),
        lambda index, key: index.add_result(frame, "finding", ref, key=key),
        lambda index, key: index.add_result(frame, "finding", "another", key=key),
        frame=frame,
        keyed=True,
        again=equal,
    )


def begin_model(walk: Walk) -> Op:
    frame, then = some_frame(walk), walk.random.choice(INTERRUPTED)
    another = others(walk, {"model": "m", "if_interrupted": then}, model="another", if_interrupted=unlike(then))
    return Op(
        "begin_model",
        {"frame": frame, "if_interrupted": then},
        scope_of(walk, frame),
        lambda: walk.model.begin_model(frame, "m"),
        lambda index, key: index.begin_model_call(frame, model="m", if_interrupted=then, key=key),
        lambda index, key: index.begin_model_call(frame, key=key, **another),
        frame=frame,
        keyed=True,
        after=lambda call: walk.calls.append((frame, call, "model")),
        again=equal,
    )


def begin_tool(walk: Walk) -> Op:
    frame, then = some_frame(walk), walk.random.choice(INTERRUPTED)
    another = others(walk, {"name": "search", "if_interrupted": then}, name="another", if_interrupted=unlike(then))
    return Op(
        "begin_tool",
        {"frame": frame, "if_interrupted": then},
        scope_of(walk, frame),
        lambda: walk.model.begin_tool(frame, "search"),
        lambda index, key: index.begin_tool_call(frame, "search", if_interrupted=then, key=key),
        lambda index, key: index.begin_tool_call(frame, key=key, **another),
        frame=frame,
        keyed=True,
        after=lambda call: walk.calls.append((frame, call, "tool")),
        again=equal,
    )


def end_call(walk: Walk) -> Op | None:
    if not walk.calls:
        return None
    pending = [
        call for call in walk.calls if call[0] in walk.model.units and call[1] in walk.model.units[call[0]].calls
    ]
    frame, call, kind = walk.random.choice(pending if pending and walk.random.random() < 0.8 else walk.calls)
    if walk.random.random() < 0.1:
        kind = "tool" if kind == "model" else "model"
    usage = walk.random.choice((0, 5, 30, 200))
    error = walk.random.choice((None, None, "timeout: too slow"))
    torn, tokens = walk.random.random() < 0.2, walk.random.choice((None, None, 7))
    known = [ended for ended in walk.ended_calls if ended[1] == call]
    if known and walk.random.random() < 0.8:
        _, _, kind, usage, error, torn, tokens = known[0]
        if kind == "tool" and walk.random.random() < 0.4:
            torn, tokens = walk.random.choice(((not torn, tokens), (torn, 8)))
    usage, torn, tokens = (usage, False, None) if kind == "model" else (0, torn, tokens)
    ended = (frame, call, kind, usage, error, torn, tokens)

    def plan() -> Any:
        if known:
            # One call has one outcome: the same again changes nothing, another is refused.
            if known[0] == ended:
                return look_away()
            raise No("CallNotFound")
        return walk.model.end_call(frame, call, kind, usage, error)

    def act(index: IndexView, key: str | None) -> None:
        if kind == "model":
            index.end_model_call(frame, call, usage=usage, error=error)
        else:
            value = None if error else 1
            index.end_tool_call(frame, call, value=value, error=error, interrupted=torn, tokens=tokens)

    return Op(
        "end_call",
        {"frame": frame, "call": call, "kind": kind, "usage": usage, "error": error, "torn": torn, "tokens": tokens},
        scope_of(walk, frame),
        plan,
        act,
        frame=frame,
        after=lambda _: None if known else walk.ended_calls.append(ended),
        repeatable=True,
    )
