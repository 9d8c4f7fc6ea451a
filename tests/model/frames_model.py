"""Frames in plain Python: what every operation of `hf.index` does, written from the rules and not from the code.

Nothing of `holdfast.core` is used. What a frame lends is never stored here: it is counted from
what its live children hold, every time, so that a settlement cannot be forgotten twice in
the same way. An operation is asked for first (`No` names the errors with which it may be
refused) and gives a function that makes it happen, since ids are minted by the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from holdfast.records.frames import FrameLimits, Limits
from holdfast.records.usage import Usage

LIVE = ("active", "waiting", "suspended")
SCORES = {"critical": 100, "high": 75, "medium": 50, "low": 25, "background": 10}
USAGE = ("input", "cached_input", "cache_write", "output", "reasoning", "cost", "unpriced")


class No(Exception):
    """Refused, with one of these errors; when several rules are broken, any of them may be named."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.names = frozenset(names)


@dataclass
class Wait:
    """An open question."""

    id: str
    kind: str
    since: int
    released: int = 0
    expires: int | None = None
    on_expiry: str | None = None
    until: int | None = None
    token: str | None = None
    within: str | None = None
    answer: tuple[Any, ...] | None = None
    prior: str = "active"


@dataclass
class Unit:
    """A frame, live or ended. `excess` is the most by which work below it may have cost too much."""

    id: str
    scope: str
    goal: str
    above: str | None
    depth: int
    granted: int | None
    limits: FrameLimits
    created: int
    deadline: int | None
    stopped: int | None = None
    status: str = "active"
    used: int = 0
    usage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(USAGE, 0))
    reserved: dict[str, int] = field(default_factory=dict)
    tool_calls: int = 0
    calls: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    handles: dict[str, list[Any]] = field(default_factory=dict)
    results: list[tuple[str, str]] = field(default_factory=list)
    question: Wait | None = None
    words: tuple[str | None, str | None] = (None, None)
    ended: int | None = None
    at_error: bool = False
    excess: int = 0
    pushed_goal: str = ""


@dataclass
class Plan:
    """What an allowed operation does, and in which scopes it writes as an owner. Without scopes it writes nothing."""

    apply: Callable[[Any], Any]
    owns: tuple[str, ...] = ()
    revokes: tuple[str, ...] = ()
    settles: str | None = None
    """Another scope, in whose inbox the end of a frame is noted."""
    gone: frozenset[str] = frozenset()
    """The frames that it ends."""
    inbox: bool = False

    @property
    def writes(self) -> bool:
        return self.inbox or bool(self.owns)


def nothing(_: Any) -> None:
    """What an operation on nothing does."""


def least(*bounds: int | None) -> int | None:
    """The tightest of bounds that may not exist."""
    return min((bound for bound in bounds if bound is not None), default=None)


def filled(limits: Limits, default: FrameLimits) -> FrameLimits:
    """Limits as they were asked for, and the default for each that was not."""
    return FrameLimits(
        context_tokens=default.context_tokens if limits.context_tokens is UNSET else limits.context_tokens,
        tool_calls=default.tool_calls if limits.tool_calls is UNSET else limits.tool_calls,
        depth=default.depth if limits.depth is UNSET else limits.depth,
        timeout_ms=default.timeout_ms if limits.timeout_ms is UNSET else limits.timeout_ms,
    )


def tighter(one: FrameLimits, other: FrameLimits) -> FrameLimits:
    """The least of each limit."""
    return FrameLimits(
        context_tokens=min(one.context_tokens, other.context_tokens),
        tool_calls=min(one.tool_calls, other.tool_calls),
        depth=min(one.depth, other.depth),
        timeout_ms=least(one.timeout_ms, other.timeout_ms),
    )


class Tree:
    """Every frame, and how they hang together."""

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}
        self.now = 0
        self.spent: dict[str, int] = {}
        """By root: all that was ever recorded below it. No settlement may change the sum."""
        self.gone: frozenset[str] = frozenset()
        """Frames that count as ended, while somebody asks what if."""
        self.popped: list[str] = []
        """Frames in the order in which the last operation ended them."""

    # reading the tree

    def live(self, scope: str | None = None) -> list[Unit]:
        return [
            unit
            for unit in self.units.values()
            if unit.status in LIVE and scope in (None, unit.scope) and unit.id not in self.gone
        ]

    def children(self, unit: Unit, here: bool | None = None) -> list[Unit]:
        """Live children, oldest first; in the same scope, in others, or all."""
        found = [other for other in self.live() if other.above == unit.id]
        if here is not None:
            found = [other for other in found if (other.scope == unit.scope) is here]
        return sorted(found, key=lambda other: other.id)

    def below(self, unit: Unit, here: bool | None = None) -> Iterator[Unit]:
        """Everything live below, each after what is below it."""
        for child in reversed(self.children(unit, here)):
            yield from self.below(child, here)
            yield child

    def parent_here(self, unit: Unit) -> Unit | None:
        above = None if unit.above is None else self.units[unit.above]
        return above if above is not None and above.scope == unit.scope else None

    def line(self, unit: Unit) -> list[Unit]:
        """From this frame upwards, as far as its scope reaches: what it was given when pushed binds it beyond."""
        found, at = [unit], self.parent_here(unit)
        while at is not None:
            found.append(at)
            at = self.parent_here(at)
        return found

    def root(self, unit: Unit) -> Unit:
        while unit.above is not None:
            unit = self.units[unit.above]
        return unit

    def bound(self, line: list[Unit]) -> FrameLimits:
        bound = line[0].limits
        for other in line[1:]:
            bound = tighter(bound, other.limits)
        return bound

    # clocks

    def stands_still(self, unit: Unit) -> bool:
        """Whether all live work below a frame waits for answers."""
        below = list(self.below(unit))
        return bool(below) and all(
            other.scope == unit.scope and (other.status == "suspended" or bool(self.children(other, here=True)))
            for other in below
        )

    def runs_until(self, unit: Unit) -> int | None:
        """A frame's deadline, were its clock to run again now."""
        if unit.deadline is None or unit.stopped is None:
            return unit.deadline
        return unit.deadline + max(0, self.now - unit.stopped)

    def late_in(self, line: list[Unit]) -> bool:
        return any((until := self.runs_until(unit)) is not None and self.now > until for unit in line)

    def wrong_clocks(self, scope: str, gone: frozenset[str] = frozenset()) -> list[Unit]:
        """Frames whose clock runs although all below waits, or stands although it does not; root first."""
        self.gone = gone
        units = [
            unit
            for unit in self.live(scope)
            if unit.deadline is not None
            and (unit.question is None and self.stands_still(unit)) != (unit.stopped is not None)
        ]
        self.gone = frozenset()
        return sorted(units, key=lambda unit: unit.depth)

    def set_clocks(self, scope: str) -> None:
        """Stop the clocks below which everything waits, and let the others run: after each operation of an owner."""
        for unit in self.wrong_clocks(scope):
            if unit.stopped is None:
                unit.stopped = self.now
            else:
                above = self.parent_here(unit)
                unit.deadline = least(self.runs_until(unit), None if above is None else self.runs_until(above))
                unit.stopped = None
            unit.at_error = False

    # budgets

    def held(self, unit: Unit) -> int:
        """What a frame's parent counts as lent to it."""
        return (unit.granted or 0) - (0 if unit.question is None else unit.question.released)

    def lent(self, unit: Unit) -> int:
        return sum(self.held(child) for child in self.children(unit))

    def out(self, unit: Unit) -> int:
        """Used, reserved and lent."""
        return unit.used + sum(unit.reserved.values()) + self.lent(unit)

    def available(self, unit: Unit) -> int | None:
        """What it may spend, reserve or lend: not what it gave back while it waits."""
        back = 0 if unit.question is None else unit.question.released
        return None if unit.granted is None else max(0, unit.granted - self.out(unit) - back)

    def spend(self, unit: Unit, usage: Usage, purpose: str | None = None) -> None:
        """Record work that was done, whatever it cost."""
        spent = usage.input + usage.output
        part = 0 if purpose is None else min(unit.reserved[purpose], spent)
        left = self.available(unit)
        if left is not None and unit.question is not None and unit.question.released:
            unit.excess += spent  # All that it had left, reserved or not, was given back when it was suspended.
        elif left is not None:
            unit.excess += max(0, spent - part - left)
        if purpose is not None:
            self.set_aside(unit, purpose, -part)
        unit.used += spent
        for name in USAGE:
            unit.usage[name] += getattr(usage, name) or 0
        unit.usage["unpriced"] += spent if usage.cost is None else 0
        root = self.root(unit).id
        self.spent[root] = self.spent.get(root, 0) + spent

    def set_aside(self, unit: Unit, purpose: str, amount: int) -> None:
        left = unit.reserved.pop(purpose, 0) + amount
        if left:
            unit.reserved[purpose] = left

    # refusals that many operations share

    def named(self, frame: str) -> Unit:
        if frame not in self.units:
            raise No("FrameNotFound")
        return self.units[frame]

    def awake(self, frame: str, *also: str) -> Unit:
        """The live frame, if it does not wait for an answer; `also` may be named when it does."""
        unit = self.alive(frame)
        if unit.question is not None:
            raise No("FrameSuspended", *also)
        return unit

    def alive(self, frame: str) -> Unit:
        unit = self.named(frame)
        if unit.status not in LIVE:
            raise No("FrameEnded")
        return unit

    # push, update, pop

    def push(
        self,
        goal: str,
        scope: str | None = None,
        parent: str | None = None,
        tokens: float | None = None,
        limits: Limits | None = None,
        frame_id: str | None = None,
    ) -> Plan:
        if parent is not None and parent not in self.units:
            raise No("ParentNotFound")
        if frame_id in self.units:
            assert frame_id is not None
            known = self.units[frame_id]
            if (known.above, known.pushed_goal) == (parent, goal):
                return Plan(nothing)
            raise No("DuplicateFrame")
        lender = None if parent is None else self.units[parent]
        where = scope or (lender.scope if lender is not None else "")
        own = FrameLimits() if limits is None else filled(limits, FrameLimits())
        line: list[Unit] = []
        wrong: list[str] = []
        if lender is not None:
            if lender.status not in ("active", "waiting"):
                raise No("ParentNotActive")
            line = self.line(lender)
            inherited = self.bound(line)
            own = inherited if limits is None else tighter(filled(limits, inherited), inherited)
            wrong = ["MaxDepthExceeded"] if lender.depth >= inherited.depth else []
            wrong += ["DeadlineExceeded"] if self.late_in(line) else []
        if wrong := [*wrong, *self.bad_grant(tokens, lender)]:
            raise No(*wrong)
        granted = self.grant(tokens, lender)
        own_end = None if own.timeout_ms is None else self.now + own.timeout_ms
        deadline = least(own_end, *(self.runs_until(other) for other in line))

        def apply(new: str) -> None:
            depth = 0 if lender is None else lender.depth + 1
            self.units[new] = Unit(new, where, goal, parent, depth, granted, own, self.now, deadline, pushed_goal=goal)
            if lender is not None:
                lender.status, lender.at_error = "waiting", False

        owns = (where,) if lender is None or lender.scope == where else (where, lender.scope)
        return Plan(apply, owns)

    def bad_grant(self, tokens: Any, lender: Unit | None) -> list[str]:
        left = None if lender is None else self.available(lender)
        if isinstance(tokens, float):
            if not 0 < tokens <= 1 or left is None:
                return ["InvalidValue"]
            return [] if int(left * tokens) else ["InsufficientTokens"]
        if tokens is None:
            return ["InsufficientTokens"] if left == 0 else []
        if tokens < 0:
            return ["InvalidValue"]
        return ["InsufficientTokens"] if left is not None and tokens > left else []

    def grant(self, tokens: Any, lender: Unit | None) -> int | None:
        left = None if lender is None else self.available(lender)
        if tokens is None:
            return left
        if isinstance(tokens, float):
            assert left is not None
            return int(left * tokens)
        return int(tokens)

    def update(
        self,
        frame: str,
        goal: str | None = None,
        status: str | None = None,
        limits: Limits | None = None,
        tokens: int | None = None,
    ) -> Plan:
        unit = self.awake(frame, "InvalidValue")
        wrong = [] if status is None else self.bad_move(unit, status)
        deadline: int | None = None
        bounds = unit.limits
        if limits is not None:
            # In another scope a frame does not see its parent: what it was given is its bound.
            line = self.line(unit)[1:] or ([] if unit.above is None else [unit])
            bounds = filled(limits, tighter(unit.limits, self.bound(line)) if line else unit.limits)
            if line and tighter(bounds, self.bound(line)) != bounds:
                wrong.append("Refused")
            if bounds.timeout_ms is None and unit.limits.timeout_ms is not None:
                wrong.append("Refused")
            elif bounds.timeout_ms is not None and bounds.timeout_ms != unit.limits.timeout_ms:
                paused = 0 if unit.deadline is None else unit.deadline - unit.created - (unit.limits.timeout_ms or 0)
                own = unit.created + bounds.timeout_ms + max(0, paused)
                deadline = least(own, *(other.deadline for other in line))
        if tokens is not None:
            if tokens < 0:
                wrong.append("InvalidValue")
            if unit.above is not None or unit.granted is None or tokens < self.out(unit):
                wrong.append("Refused")
        if wrong:
            raise No(*wrong)

        def apply(_: Any) -> None:
            unit.goal = goal or unit.goal
            unit.status = status or unit.status
            unit.limits = bounds
            unit.deadline = unit.deadline if deadline is None else deadline
            unit.at_error = False
            if tokens is not None:
                unit.granted = tokens

        return Plan(apply, (unit.scope,))

    def bad_move(self, unit: Unit, status: str) -> list[str]:
        if status not in ("active", "waiting"):
            return ["InvalidTransition", "InvalidValue"]
        if unit.status == "suspended":
            return ["InvalidTransition"]
        return ["HasLiveChildren"] if status == "active" and self.children(unit) else []

    def pop(self, frame: str, status: str = "completed", summary: str | None = None, error: str | None = None) -> Plan:
        unit = self.named(frame)
        if status not in ("completed", "failed", "cancelled"):
            raise No("InvalidValue", *(["FrameEnded"] if unit.status not in LIVE else []))
        if unit.status not in LIVE:
            if (unit.status, unit.words) == (status, (summary, error)):
                return Plan(nothing)
            raise No("FrameEnded")
        if status == "completed":
            wrong = ["FrameSuspended"] if unit.question is not None else []
            wrong += ["HasLiveChildren"] if self.children(unit) else []
            wrong += ["HasOpenCalls"] if unit.calls else []
            if wrong:
                raise No(*wrong)
        doomed = list(self.below(unit))
        outer = None if unit.above is None else self.units[unit.above].scope

        def apply(_: Any) -> None:
            self.popped = []
            for other in doomed:
                self.end(other, "cancelled", (None, None))
            self.end(unit, status, (summary, error))

        below = {other.scope for other in doomed} - {unit.scope}
        settles = None if outer in (unit.scope, *below) else outer
        gone = frozenset(other.id for other in (*doomed, unit))
        return Plan(apply, (unit.scope, *(below & {outer})), tuple(sorted(below - {outer})), settles, gone)

    def end(self, unit: Unit, status: str, words: tuple[str | None, str | None]) -> None:
        """End one frame: its parent takes over what it used, and goes on if nothing else is live below it."""
        unit.status, unit.words, unit.ended = status, words, self.now
        self.popped.append(unit.id)
        if unit.above is not None:
            parent = self.units[unit.above]
            parent.used += unit.used
            parent.excess += unit.excess
            parent.at_error = False
            for name in USAGE:
                parent.usage[name] += unit.usage[name]
            if parent.status == "waiting" and not self.children(parent):
                parent.status = "active"
        unit.question = None
