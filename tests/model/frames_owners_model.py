"""Owners and the sweep in plain Python: who may write where, and what is due when nobody does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
        self.lively: set[int] = set()
        """Clients that give signs of life while somebody watches."""

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
        scopes = self.written_as_owner(client, plan)
        return {wrong for scope in scopes if (wrong := self.may_write(client, scope)) is not None}

    def written_as_owner(self, client: int, plan: Plan) -> list[str]:
        free = [scope for scope in plan.revokes if self.holder.get(scope) is None or self.thinks_it_owns(client, scope)]
        scopes = [*plan.owns, *free]
        # Where a child only settles, the clocks are the owner's to note: whoever is none leaves them as they are.
        if plan.settles is not None and self.notes_clocks(client, plan) and self.wrong_clocks(plan.settles, plan.gone):
            scopes.append(plan.settles)
        return scopes

    def notes_clocks(self, client: int, plan: Plan) -> bool:
        return plan.settles is not None and (
            self.holder.get(plan.settles) is None or self.thinks_it_owns(client, plan.settles)
        )

    def carry_out(self, client: int, plan: Plan, result: Any) -> None:
        noted = [plan.settles] if plan.settles is not None and self.notes_clocks(client, plan) else []
        plan.apply(result)
        for scope in (*plan.owns, *plan.revokes, *noted):
            self.set_clocks(scope)
        for scope in plan.revokes:
            if self.holder.get(scope) is not None and not self.thinks_it_owns(client, scope):
                self.epoch[scope] = self.epoch.get(scope, 0) + 1
                self.holder[scope] = None

    def take(self, client: int, scope: str) -> Plan:
        if self.thinks_it_owns(client, scope):
            wrong = self.may_write(client, scope)
            if wrong is not None:
                raise No(wrong)
            return Plan(nothing_new, inbox=True)
        if self.shows_life(scope):
            raise No("ActorBusy")

        def apply(_: Any) -> None:
            self.epoch[scope] = self.epoch.get(scope, 0) + 1
            self.holder[scope] = client
            self.leases[client, scope] = Lease(self.epoch[scope])

        return Plan(apply, inbox=True)

    def shows_life(self, scope: str) -> bool:
        """Whether its owner is there and knows of no other; one that lost its lease gives no sign for it."""
        holder = self.holder.get(scope)
        return holder is not None and holder in self.lively and self.thinks_it_owns(holder, scope)

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

    def sweep(self, client: int, fail_orphans: bool, scopes: list[str]) -> dict[str, list[str]]:
        """What is due, scope by scope and root first; what ended with an ancestor just now is passed over."""
        done: dict[str, list[str]] = {name: [] for name in ("resumed", "expired", "overdue", "failed", "skipped")}
        at_work = {unit.scope for unit in self.live()}
        for scope in [one for one in scopes if one in at_work]:
            for unit in self.in_order(scope):
                act = None if unit.status not in LIVE else self.due(client, unit, fail_orphans)
                if act is None:
                    continue
                try:
                    what = self.as_owner(client, scope, act)
                except No:
                    what = "skipped"
                if what is not None:
                    done[what].append(unit.id)
        return done

    def as_owner(self, client: int, scope: str, act: Callable[[], str | None]) -> str | None:
        """Do it; where somebody else owns the scope, take it over for as long as that takes, if that one is silent."""
        try:
            return act()
        except No as refused:
            if "NotOwner" not in refused.names:
                raise
        held = self.thinks_it_owns(client, scope)
        self.do(client, self.take(client, scope))
        try:
            return act()
        finally:
            if not held:
                self.do(client, self.let_go(client, scope))

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

    def due(self, client: int, unit: Unit, fail_orphans: bool) -> Callable[[], str | None] | None:
        wait = unit.question
        if wait is not None:
            rang = wait.answer is not None or (wait.until is not None and self.now >= wait.until)
            if wait.within is None and wait.until is not None and rang:
                return lambda: self.done(client, self.wake(unit), "resumed")
            if self.late(wait) and wait.on_expiry in ("fail", "cancel"):
                status = "failed" if wait.on_expiry == "fail" else "cancelled"
                return lambda: self.done(client, self.pop(unit.id, status, None, "Nobody answered in time."), "expired")
            return None
        deadline = unit.deadline
        if deadline is None or self.now <= deadline or self.stands_still(unit):
            return None
        if fail_orphans and self.parent_here(unit) is None:
            return lambda: self.fail_orphan(client, unit, deadline)
        return lambda: self.flag(unit, deadline)

    def fail_orphan(self, client: int, unit: Unit, deadline: int) -> str | None:
        if self.thinks_it_owns(client, unit.scope) or self.shows_life(unit.scope):
            return self.flag(unit, deadline)
        self.do(client, self.take(client, unit.scope))
        try:
            why = "Its deadline passed and whoever worked on it is gone."
            return self.done(client, self.pop(unit.id, "failed", None, why), "failed")
        finally:
            self.do(client, self.let_go(client, unit.scope))

    def flag(self, unit: Unit, deadline: int) -> str | None:
        if (unit.id, deadline) in self.flagged:
            return None
        self.flagged.add((unit.id, deadline))
        unit.at_error = False
        return "overdue"

    def wake(self, unit: Unit) -> Plan:
        if wrong := self.cannot_go_on(unit):
            raise No(*wrong)

        def apply(_: Any) -> None:
            self.show_payload(unit)
            self.go_on(unit)

        return Plan(apply, (unit.scope,))

    def done(self, client: int, plan: Plan, what: str) -> str:
        self.do(client, plan)
        return what

    def do(self, client: int, plan: Plan) -> None:
        """Carry out a plan or say why not: what a client knows comes first, then what only the journal knows."""
        scopes = self.written_as_owner(client, plan)
        for scope in scopes:
            lease = self.leases.get((client, scope))
            if lease is None and self.may_write(client, scope) is not None:
                raise No("NotOwner")
            if lease is not None and lease.lost:
                raise No("StaleEpoch")
        for scope in scopes:
            if self.may_write(client, scope) is not None:
                self.leases[client, scope].lost = True
                raise No("StaleEpoch")
        self.carry_out(client, plan, None)
