"""Questions, owners and the sweep in plain Python, on top of the tree of frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.model.frames_model import LIVE, No, Plan, Tree, Unit, Wait, least

KINDS = ("approval", "input", "external", "checkpoint", "pause", "timer")


class Questions(Tree):
    """Suspend, answer once, resume root first."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, tuple[Any, ...]] = {}

    def asked(self, question: str) -> Unit | None:
        return next((unit for unit in self.live() if unit.question and unit.question.id == question), None)

    def with_token(self, token: str) -> Unit | None:
        return next((unit for unit in self.live() if unit.question and unit.question.token == token), None)

    # asking

    def suspend(
        self,
        frame: str,
        kind: str,
        expires_ms: int | None,
        on_expiry: str | None,
        until: int | None,
        subtree: bool,
        release: bool,
    ) -> Plan:
        unit = self.alive(frame)
        wrong = ["InvalidValue"] if kind not in KINDS or (until is None) == (kind == "timer") else []
        if on_expiry is not None and (expires_ms is None or on_expiry not in ("fail", "cancel", "keep")):
            wrong.append("InvalidValue")
        under = list(self.below(unit, here=True))
        if unit.question is not None:
            wrong.append("FrameSuspended")
        if any(other.scope != unit.scope for other in self.below(unit)):
            wrong.append("HasLiveChildren")
        awake = [other for other in under if other.question is None]
        if awake and not subtree:
            wrong.append("HasLiveChildren")
        if wrong:
            raise No(*wrong)
        expires = None if expires_ms is None else self.now + expires_ms
        policy = "keep" if on_expiry is None and expires is not None else on_expiry

        def apply(asked: Any) -> None:
            """`asked` is the question's id, its token, and the ids of the questions below, leaf first."""
            question, token, below = asked
            for other, id in zip(awake, below, strict=True):
                self.stop(other, Wait(id, kind, self.now, within=question), release)
            self.stop(
                unit,
                Wait(question, kind, self.now, expires=expires, on_expiry=policy, until=until, token=token),
                release,
            )

        return Plan(apply, (unit.scope,))

    def stop(self, unit: Unit, wait: Wait, release: bool) -> None:
        """Give the unused grant back. Whoever is below has done so before, which counts."""
        parent = self.parent_here(unit)
        if release and parent is not None and unit.granted is not None:
            wait.released = max(0, unit.granted - unit.used - self.lent(unit))
            if wait.released:
                parent.at_error = False
        unit.status, unit.question, unit.at_error = "suspended", wait, False

    def retoken(self, question: str, token: str, expires_ms: int | None = None) -> None:
        """A new token: it expires when the question does, or as said."""
        wait = self.open_question(question)
        wait.token = token
        wait.expires = wait.expires if expires_ms is None else self.now + expires_ms

    def can_have_token(self, question: str) -> bool:
        unit = self.asked(question)
        wait = None if unit is None else unit.question
        return wait is not None and wait.answer is None and not self.late(wait)

    def reissue(self, question: str, expires_ms: int | None) -> Plan:
        wait = self.open_question(question)
        if wait.within is not None:
            raise No("Refused")
        if wait.answer is not None:
            raise No("AlreadyAnswered")
        if expires_ms is None and self.late(wait):
            raise No("QuestionExpired")
        return Plan(lambda token: self.retoken(question, token, expires_ms), inbox=True)

    def open_question(self, question: str) -> Wait:
        unit = self.asked(question)
        if unit is None or unit.question is None:
            raise No("QuestionNotFound")
        return unit.question

    # answering

    def answer(self, question: str | None, token: str | None, words: tuple[Any, ...]) -> Plan:
        if token is not None:
            unit = self.with_token(token)
            if unit is None or unit.question is None or unit.question.answer is not None:
                raise No("TokenNotFound")
            wait = unit.question
        else:
            assert question is not None
            wait = self.open_question(question)
        if wait.within is not None:
            raise No("Refused")
        given = ("token" if token is not None else "id", *words)
        if wait.answer is not None:
            if wait.answer == given:
                return Plan(nothing_new)
            raise No("AlreadyAnswered")
        if self.late(wait) and (token is not None or wait.on_expiry != "keep"):
            raise No("QuestionExpired")
        return Plan(lambda _: setattr(wait, "answer", given), inbox=True)

    def late(self, wait: Wait) -> bool:
        return wait.expires is not None and self.now > wait.expires and wait.answer is None

    # going on

    def resume(self, question: str | None, token: str | None, words: tuple[Any, ...] | None) -> Plan:
        """Let a frame go on; with an answer if none was given before. `words` is None if nothing is said."""
        if token is not None:
            unit = self.with_token(token)
            if unit is None or unit.question is None or unit.question.answer is not None:
                raise No("TokenNotFound")
        else:
            assert question is not None
            self.open_question(question)
            unit = self.asked(question)
        assert unit is not None
        wait = unit.question
        assert wait is not None
        if wait.within is not None:
            raise No("Refused")
        wrong = []
        if wait.answer is not None and words is not None and wait.answer[1:] != words:
            wrong.append("AlreadyAnswered")
        if self.late(wait) and (token is not None or wait.on_expiry != "keep"):
            wrong.append("QuestionExpired")
        wrong += self.cannot_go_on(unit)
        if wrong:
            raise No(*wrong)

        def apply(_: Any) -> None:
            if wait.answer is None:
                wait.answer = ("id" if token is None else "token", *(words or (None, None)))
            self.go_on(unit)

        return Plan(apply, (unit.scope,))

    def cannot_go_on(self, unit: Unit) -> list[str]:
        above = self.line(unit)[1:]
        wrong = ["FrameSuspended"] if any(other.question is not None for other in above) else []
        # Taking a grant again is tried root first; it fails where a parent has lent it meanwhile.
        taken: dict[str, int] = {}
        for other in self.woken(unit):
            parent = self.parent_here(other)
            assert other.question is not None
            if parent is None or not other.question.released or parent.granted is None:
                continue
            left = max(0, parent.granted - self.out(parent) - taken.get(parent.id, 0))
            if other.question.released > left:
                wrong.append("InsufficientTokens")
            taken[parent.id] = taken.get(parent.id, 0) + other.question.released
        return wrong

    def woken(self, unit: Unit) -> list[Unit]:
        """A frame and what was suspended with it, root first."""
        assert unit.question is not None
        within, found = unit.question.id, [unit]
        for at in found:
            found += [
                child
                for child in self.children(at, here=True)
                if child.question is not None and child.question.within == within
            ]
        return found

    def go_on(self, unit: Unit) -> None:
        """The clock of a frame stood still while it waited; an ancestor's, while all below it did."""
        above = list(reversed(self.line(unit)[1:]))
        bound: int | None = None
        for other in above:
            stood = self.stood_still(other)
            if stood and other.deadline is not None:
                other.deadline = least(other.deadline + stood, bound)
                other.at_error = False
            bound = least(bound, other.deadline)
        woken = self.woken(unit)
        for other in woken:
            parent = self.parent_here(other)
            assert other.question is not None
            if other.deadline is not None:
                end = other.deadline + max(0, self.now - other.question.since)
                above_it = [line.deadline for line in self.line(other)[1:]]
                other.deadline = least(end, *above_it)
            if parent is not None and other.question.released:
                parent.at_error = False
        for other in woken:
            other.question, other.at_error = None, False
            other.status = "waiting" if self.children(other) else "active"

    def stands_still(self, unit: Unit) -> bool:
        """Whether all live work below a frame waits for answers."""
        below = list(self.below(unit))
        return bool(below) and all(
            other.scope == unit.scope and (other.status == "suspended" or bool(self.children(other, here=True)))
            for other in below
        )

    def stood_still(self, unit: Unit) -> int:
        """For how long nothing was at work below: since the last of those that wait now began to."""
        if not self.stands_still(unit):
            return 0
        since = max(other.question.since for other in self.below(unit) if other.question is not None)
        return max(0, self.now - since)


def nothing_new(_: Any) -> None:
    """It was so before."""


@dataclass
class Lease:
    """What one client believes about its lease of a scope."""

    epoch: int
    lost: bool = False


class Model(Questions):
    """Frames with owners: one client at a time may write to a scope that somebody holds."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch: dict[str, int] = {}
        self.holder: dict[str, int | None] = {}
        self.leases: dict[tuple[int, str], Lease] = {}
        self.flagged: set[tuple[str, int]] = set()

    def may_write(self, client: int, scope: str) -> str | None:
        """The error with which an owner's event is refused, or None."""
        lease = self.leases.get((client, scope))
        if lease is not None:
            return None if lease.epoch == self.epoch.get(scope, 0) and not lease.lost else "StaleEpoch"
        return "NotOwner" if self.holder.get(scope) is not None else None

    def thinks_it_owns(self, client: int, scope: str) -> bool:
        lease = self.leases.get((client, scope))
        return lease is not None and not lease.lost

    def forbidden(self, client: int, plan: Plan) -> set[str]:
        """Why this client may not do this, in any of the scopes that it takes."""
        scopes = [*plan.owns]
        for scope in plan.revokes:
            if self.holder.get(scope) is None or self.thinks_it_owns(client, scope):
                scopes.append(scope)
        return {wrong for scope in scopes if (wrong := self.may_write(client, scope)) is not None}

    def carry_out(self, client: int, plan: Plan, result: Any) -> None:
        plan.apply(result)
        for scope in plan.revokes:
            if self.holder.get(scope) is not None and not self.thinks_it_owns(client, scope):
                self.epoch[scope] = self.epoch.get(scope, 0) + 1
                self.holder[scope] = None

    def learn_of_loss(self, client: int) -> None:
        """After a refusal as stale, a client knows which of its leases are gone."""
        for (owner, scope), lease in self.leases.items():
            if owner == client and lease.epoch != self.epoch.get(scope, 0):
                lease.lost = True

    def take(self, client: int, scope: str) -> Plan:
        if self.thinks_it_owns(client, scope):
            wrong = self.may_write(client, scope)
            if wrong is not None:
                raise No(wrong)
            return Plan(nothing_new, inbox=True)

        def apply(_: Any) -> None:
            self.epoch[scope] = self.epoch.get(scope, 0) + 1
            self.holder[scope] = client
            self.leases[client, scope] = Lease(self.epoch[scope])

        return Plan(apply, inbox=True)

    def let_go(self, client: int, scope: str) -> Plan:
        lease = self.leases.get((client, scope))
        stale = lease is not None and not lease.lost and lease.epoch != self.epoch.get(scope, 0)

        def apply(_: Any) -> None:
            if lease is not None and not lease.lost:
                self.holder[scope] = None
            self.leases.pop((client, scope), None)

        if stale:
            self.leases.pop((client, scope))
            raise No("StaleEpoch")
        return Plan(apply, inbox=lease is not None)

    def die(self, client: int) -> None:
        """A client is gone; its leases stay written until somebody takes over."""
        for owner, scope in list(self.leases):
            if owner == client:
                del self.leases[owner, scope]
        for scope, holder in self.holder.items():
            if holder == client:
                self.holder[scope] = -1

    # the sweep

    def sweep(self, client: int, fail_orphans: bool) -> dict[str, list[str]]:
        """What is due, scope by scope and root first, as it was when the scope was looked at."""
        done: dict[str, list[str]] = {name: [] for name in ("resumed", "expired", "overdue", "failed", "skipped")}
        for scope in sorted({unit.scope for unit in self.live()}):
            looked = [(unit, replace(unit), self.stands_still(unit)) for unit in self.in_order(scope)]
            for unit, seen, still in looked:
                try:
                    what = self.due(client, unit, seen, still, fail_orphans)
                except No as refused:
                    what = "skipped"
                    if "StaleEpoch" in refused.names:
                        self.learn_of_loss(client)
                if what is not None:
                    done[what].append(unit.id)
        return done

    def in_order(self, scope: str) -> list[Unit]:
        found: list[Unit] = []

        def visit(unit: Unit) -> None:
            found.append(unit)
            for child in self.children(unit, here=True):
                visit(child)

        for root in sorted(self.live(scope), key=lambda unit: unit.id):
            if self.parent_here(root) is None:
                visit(root)
        return found

    def due(self, client: int, unit: Unit, seen: Unit, still: bool, fail_orphans: bool) -> str | None:
        wait = seen.question
        if wait is not None:
            rang = wait.answer is not None or (wait.until is not None and self.now >= wait.until)
            if wait.within is None and wait.until is not None and rang:
                self.do(client, self.wake(unit))
                return "resumed"
            if self.late(wait) and wait.on_expiry in ("fail", "cancel"):
                status = "failed" if wait.on_expiry == "fail" else "cancelled"
                self.do(client, self.pop(unit.id, status, None, "Nobody answered in time."))
                return "expired"
            return None
        if seen.deadline is None or self.now <= seen.deadline or still:
            return None
        if fail_orphans and self.parent_here(unit) is None and not self.thinks_it_owns(client, unit.scope):
            return self.fail_orphan(client, unit)
        return self.flag(unit, seen.deadline)

    def fail_orphan(self, client: int, unit: Unit) -> str:
        self.do(client, self.take(client, unit.scope))
        try:
            self.do(client, self.pop(unit.id, "failed", None, "Its deadline passed and whoever worked on it is gone."))
        finally:
            self.do(client, self.let_go(client, unit.scope))
        return "failed"

    def flag(self, unit: Unit, deadline: int) -> str | None:
        if (unit.id, deadline) in self.flagged or unit.status not in LIVE:
            return None
        self.flagged.add((unit.id, deadline))
        unit.at_error = False
        return "overdue"

    def wake(self, unit: Unit) -> Plan:
        if unit.status not in LIVE:
            raise No("FrameEnded")
        if unit.question is None or unit.question.within is not None:
            raise No("InvalidTransition")
        if wrong := self.cannot_go_on(unit):
            raise No(*wrong)
        return Plan(lambda _: self.go_on(unit), (unit.scope,))

    def do(self, client: int, plan: Plan) -> None:
        if wrong := self.forbidden(client, plan):
            raise No(*wrong)
        self.carry_out(client, plan, None)


Real = Callable[..., Any]
