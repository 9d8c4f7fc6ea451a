"""Owners and the sweep in plain Python: who may write where, and what is due when nobody does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tests.model.frames_model import LIVE, No, Plan, Unit
from tests.model.frames_questions_model import Questions, nothing_new


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
