"""What can be seen of frames, beside what the model says, and the sums that budgets must keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.client.holdfast import Holdfast
from holdfast.client.index import IndexView
from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.fold import fold_events
from holdfast.records.frames import FrameState, StreamState
from holdfast.records.recovery import FrameInfo
from holdfast.records.reports import EventQuery
from tests.backends import rebuild_alone
from tests.model.frames_model import LIVE, USAGE, Unit
from tests.model.frames_owners_model import Model
from tests.model.frames_questions_model import PEOPLE

TENANT = "default"


def expected(model: Model, unit: Unit) -> dict[str, Any]:
    """A frame as the model has it."""
    wait = unit.question
    return {
        "above": unit.above,
        "depth": unit.depth,
        "status": unit.status,
        "tokens": (unit.granted, unit.used, sum(unit.reserved.values()), model.lent(unit)),
        "reserved": unit.reserved,
        "limits": unit.limits,
        "usage": {**unit.usage, "cost": unit.usage["cost"] or (None if unit.usage["unpriced"] else 0)},
        "tool_calls": unit.tool_calls,
        "created": unit.created,
        "deadline": unit.deadline,
        "available": model.available(unit),
        "calls": unit.calls,
        "handles": [(name, *values) for name, values in unit.handles.items()],
        "results": unit.results,
        "away": {child.id: child.scope for child in model.children(unit, here=False)},
        "question": None
        if wait is None
        else {
            "id": wait.id,
            "kind": wait.kind,
            "since": wait.since,
            "released": wait.released,
            "expires": wait.expires,
            "on_expiry": wait.on_expiry,
            "until": wait.until,
            "token": wait.token is not None,
            "within": wait.within,
            "answered": wait.answer is not None,
        },
    }


def seen(frame: FrameState | FrameInfo) -> dict[str, Any]:
    """A frame as it was loaded or shown."""
    live = isinstance(frame, FrameState)
    wait = frame.question
    handles: Iterable[Any] = frame.handles.values() if isinstance(frame, FrameState) else frame.handles
    calls: Iterable[Any] = frame.calls.values() if isinstance(frame, FrameState) else frame.calls
    tokens = frame.tokens
    return {
        "above": (frame.parent or frame.outer) if isinstance(frame, FrameState) else frame.parent,
        "depth": frame.depth,
        "status": frame.status,
        "tokens": (tokens.granted, tokens.used, tokens.reserved, tokens.lent),
        "reserved": frame.reservations,
        "limits": frame.limits,
        "usage": {name: getattr(frame.usage, name) for name in USAGE},
        "tool_calls": frame.tool_calls,
        "created": frame.created_at,
        "deadline": frame.deadline,
        "available": tokens.available,
        "calls": {call.id: (call.kind, call.name) for call in calls},
        "handles": [
            (handle.id, handle.kind, handle.priority, handle.tokens, handle.removed)
            for handle in (sorted(handles, key=lambda handle: handle.position) if live else handles)
        ],
        "results": [(result.kind, result.ref) for result in frame.results],
        "away": frame.away if isinstance(frame, FrameState) else frame.children_elsewhere,
        "question": None
        if wait is None
        else {
            "id": wait.id,
            "kind": wait.kind,
            "since": wait.suspended_at,
            "released": wait.released,
            "expires": wait.expires_at,
            "on_expiry": wait.on_expiry,
            "until": wait.until,
            "token": wait.token is not None,
            "within": wait.within,
            "answered": wait.answer is not None,
        },
    }


def same(unit: Unit, wanted: dict[str, Any], found: dict[str, Any]) -> None:
    """Compare, and name what differs."""
    if wanted != found:
        wrong = {name: (found[name], wanted[name]) for name in wanted if wanted[name] != found[name]}
        raise AssertionError(f"frame {unit.id} ({unit.goal}) differs, seen and expected: {wrong}")


States = dict[str, StreamState]


def states_of(journal: Any, scopes: tuple[str, ...]) -> States:
    """What the journal's rows say, past every cache."""
    return {scope: journal.load(TENANT, scope) for scope in scopes}


def at_live_frames(model: Model, states: States) -> None:
    """Every live frame in the journal is as the model says, and no other is live."""
    for scope, state in states.items():
        frames = state.frames
        units = {unit.id: unit for unit in model.live(scope)}
        assert frames.keys() == units.keys(), f"live frames of {scope}: {sorted(frames)}, not {sorted(units)}"
        for id, unit in units.items():
            same(unit, expected(model, unit), seen(frames[id]))
            stopped = frames[id].stopped_at
            assert stopped == unit.stopped, f"the clock of {id} stands since {stopped}, not since {unit.stopped}"


def at_budgets(model: Model, states: States) -> None:
    """Count what the journal says: nothing is lent twice, refunded or lost, and too much only if it was reported."""
    frames = {id: frame for state in states.values() for id, frame in state.frames.items()}
    held: dict[str, int] = {}
    below: dict[str, list[FrameState]] = {}
    for frame in frames.values():
        above = frame.parent or frame.outer
        if above is not None:
            released = 0 if frame.question is None else frame.question.released
            held[above] = held.get(above, 0) + (frame.granted or 0) - released
            below.setdefault(above, []).append(frame)
    for frame in frames.values():
        tokens, excess = frame.tokens, model.units[frame.id].excess
        assert tokens.lent == held.get(frame.id, 0), f"{frame.id} lends {tokens.lent}, children hold {held}"
        assert tokens.reserved == sum(frame.reservations.values())
        assert min(tokens.used, tokens.reserved, tokens.lent) >= 0
        if tokens.granted is not None:
            over = tokens.used + tokens.reserved + tokens.lent - tokens.granted
            assert over <= excess, f"{frame.id} is {over} over its grant, and only {excess} was reported"
            assert tokens.overdraft == max(0, over)
        if frame.parent is None and frame.outer is None:
            total = _used(frame, below)
            assert total == model.spent.get(frame.id, 0), f"{total} were used below {frame.id}, not {model.spent}"


def _used(frame: FrameState, below: dict[str, list[FrameState]]) -> int:
    return frame.used + sum(_used(child, below) for child in below.get(frame.id, ()))


def at_order(model: Model, journal: Any, after: int, scopes: tuple[str, ...]) -> None:
    """What one operation ended: everything below it, each once, and children before their parents."""
    if not model.popped:
        return
    ended: list[str] = []
    for scope in scopes:
        head = journal.head(TENANT, scope)
        if head is None:
            continue
        stored = journal.read(EventQuery(tenant=TENANT, stream=scope, types=("frame.popped",), limit=100_000))
        mine = [decode_event(event).facts.frame for event in stored if event.seq > after]
        for place, frame in enumerate(mine):
            line = {other.id for other in model.line(model.units[frame])[1:]}
            assert not line & set(mine[:place]), f"{frame} was ended after something above it: {mine}"
        ended += mine
    assert sorted(ended) == sorted(model.popped), f"ended {ended}, not {model.popped}"


def at_frame(model: Model, index: IndexView, frame: str) -> None:
    """One frame as a client shows it, live or ended."""
    unit, info = model.units[frame], index.get_frame(frame)
    same(unit, expected(model, unit), seen(info))
    assert (info.scope, info.goal, info.completed_at) == (unit.scope, unit.goal, unit.ended)
    assert (info.summary, info.error) == unit.words
    assert info.live == (unit.status in LIVE)


def at_everything(model: Model, index: IndexView, scopes: tuple[str, ...]) -> None:
    """All that a client can show."""
    for id in model.units:
        at_frame(model, index, id)
    for scope in scopes:
        ordered = [unit.id for unit in model.in_order(scope)]
        assert [info.id for info in index.stack(scope)] == ordered
        at_leaves(model, index, scope)
        at_pending(model, index, scope)
    open_questions = {unit.question.id for unit in model.live() if unit.question and unit.question.within is None}
    assert {info.id for info in Holdfast(index.env, owner=False).questions()} == open_questions
    assert {scope for scope, _ in index.stacks()} == {unit.scope for unit in model.live()}


def at_leaves(model: Model, index: IndexView, scope: str) -> None:
    units = model.live(scope)
    leaves = sorted(unit.id for unit in units if not model.children(unit, here=True))
    assert [info.id for info in index.leaves(scope)] == leaves
    top = max(units, key=lambda unit: (unit.depth, unit.id), default=None)
    found = index.top_of_stack(scope)
    assert (None if found is None else found.id) == (None if top is None else top.id)


def at_pending(model: Model, index: IndexView, scope: str) -> None:
    """What was left undone, of every live frame."""
    state = index.resume_actor(scope)
    found = sorted((work.frame, work.kind, work.call or "") for work in state.pending)
    wanted: list[tuple[str, str, str]] = []
    for unit in model.live(scope):
        wanted += [(unit.id, f"{kind}_in_progress", call) for call, (kind, _) in unit.calls.items()]
        if unit.question is not None:
            wanted.append((unit.id, "waiting_for_user" if unit.question.kind in PEOPLE else "waiting", ""))
            continue
        wanted += [(unit.id, "waiting_for_subcall", "")] if unit.status == "waiting" else []
        wanted += [(unit.id, "unhandled_error", "")] if unit.at_error else []
    assert found == sorted(wanted), f"pending in {scope}: {found}, not {sorted(wanted)}"
    assert state.epoch == model.epoch.get(scope, 0)
    assert (state.holder is None) == (model.holder.get(scope) is None)


def at_the_end(model: Model, hf: Holdfast, journal: Any, scopes: tuple[str, ...]) -> None:
    """The journal is sound, folding gives what loading gives, and rebuilding changes nothing."""
    assert hf.journal.verify().findings == ()
    for scope in scopes:
        stored = journal.read(EventQuery(tenant=TENANT, stream=scope, limit=1_000_000))
        folded = fold_events(decode_event(event) for event in stored)
        assert folded == journal.load(TENANT, scope), f"folding {scope} gives something else than loading it"
    rebuild_alone(journal)
    at_live_frames(model, states_of(journal, scopes))
