"""Work inside frames in plain Python: spending, evidence, results and calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.records.usage import Usage
from tests.model.frames_model import SCORES, USAGE, No, Plan, Tree, Unit, nothing


class Work(Tree):
    """What happens in a frame between its push and its end."""

    # spending

    def reserve(self, frame: str, purpose: str, amount: int) -> Plan:
        unit = self.alive(frame)
        if amount < 0:
            raise No("InvalidValue")
        if amount == 0:
            return Plan(nothing)
        self.awake(frame)
        left = self.available(unit)
        if left is not None and amount > left:
            raise No("InsufficientTokens")
        return Plan(lambda _: self.touched(unit, lambda: self.set_aside(unit, purpose, amount)), (unit.scope,))

    def release(self, frame: str, purpose: str, amount: int | None = None) -> Plan:
        unit = self.alive(frame)
        held = unit.reserved.get(purpose)
        if held is None:
            raise No("NotFound", "InvalidValue") if (amount or 0) < 0 else No("NotFound")
        back = held if amount is None else amount
        if back < 0:
            raise No("InvalidValue")
        if back > held:
            raise No("NotFound")
        if back == 0:
            return Plan(nothing)
        self.awake(frame)
        return Plan(lambda _: self.touched(unit, lambda: self.set_aside(unit, purpose, -back)), (unit.scope,))

    def record(self, frame: str, usage: Usage | int, purpose: str | None = None) -> Plan:
        wrong = [] if frame in self.units else ["FrameNotFound"]
        record = usage if isinstance(usage, Usage) else Usage(output=usage)
        if min(getattr(record, name) or 0 for name in USAGE) < 0:
            raise No("InvalidValue", *wrong)
        unit = self.alive(frame)
        if purpose is not None and purpose not in unit.reserved:
            raise No("NotFound")
        if not record.input + record.output and not record.cost:
            return Plan(nothing)
        if not unit.calls:  # In a suspended frame a call in flight may spend, and nothing else.
            self.awake(frame)
        return Plan(lambda _: self.touched(unit, lambda: self.spend(unit, record, purpose)), (unit.scope,))

    def touched(self, unit: Unit, do: Callable[[], Any]) -> None:
        """Something happened to a frame, so an error is no longer the last thing that did."""
        do()
        unit.at_error = False

    # handles and results

    def add_handle(
        self, frame: str, kind: str, handle: str, priority: str = "medium", tokens: int | None = None
    ) -> Plan:
        unit = self.awake(frame, "InvalidValue")
        if priority not in SCORES or kind not in ("document", "url", "artifact") or (tokens or 0) < 0:
            raise No("InvalidValue")
        if priority == "critical" and kind != "document":
            raise No("InvalidValue")  # Others say what is in it.

        def apply(_: Any) -> None:
            # A handle that is there keeps its place: a dict does the same.
            unit.handles[handle] = [kind, SCORES[priority], tokens, None]

        return Plan(lambda _: self.touched(unit, lambda: apply(None)), (unit.scope,))

    def remove_handles(self, frame: str, handles: list[str]) -> Plan:
        unit = self.alive(frame)
        if any(name not in unit.handles or unit.handles[name][3] is not None for name in handles):
            raise No("NotFound")
        if not handles:
            return Plan(nothing)
        self.awake(frame)

        def apply(removal: str) -> None:
            for name in handles:
                unit.handles[name][3] = removal
            unit.at_error = False

        return Plan(apply, (unit.scope,))

    def restore_handles(self, frame: str, removal: str) -> Plan:
        unit = self.awake(frame)
        gone = [handle for handle in unit.handles.values() if handle[3] == removal]
        if not gone:
            raise No("NotFound")

        def apply(_: Any) -> None:
            for handle in gone:
                handle[3] = None
            unit.at_error = False

        return Plan(apply, (unit.scope,))

    def add_result(self, frame: str, kind: str, ref: str) -> Plan:
        unit = self.alive(frame)
        return Plan(lambda _: self.touched(unit, lambda: unit.results.append((kind, ref))), (unit.scope,))

    # calls

    def may_work(self, frame: str) -> tuple[Unit, list[str]]:
        unit = self.alive(frame)
        wrong = ["FrameSuspended"] if unit.question is not None else []
        if self.late_in(self.line(unit)):
            wrong.append("DeadlineExceeded")
        return unit, wrong

    def begin_model(self, frame: str, model: str) -> Plan:
        unit, wrong = self.may_work(frame)
        if self.available(unit) == 0:
            wrong.append("BudgetExhausted")
        return self.begin(unit, wrong, "model", model)

    def begin_tool(self, frame: str, name: str) -> Plan:
        unit, wrong = self.may_work(frame)
        if unit.tool_calls >= self.bound(self.line(unit)).tool_calls:
            wrong.append("ToolCallLimitExceeded")
        return self.begin(unit, wrong, "tool", name)

    def begin(self, unit: Unit, wrong: list[str], kind: str, name: str) -> Plan:
        if wrong:
            raise No(*wrong)

        def apply(call: str) -> None:
            unit.calls[call] = (kind, name)
            unit.tool_calls += kind == "tool"
            unit.at_error = False

        return Plan(apply, (unit.scope,))

    def end_call(self, frame: str, call: str, kind: str, usage: int, error: str | None) -> Plan:
        unit = self.alive(frame)
        known = unit.calls.get(call)
        if known is None:
            raise No("CallNotFound")
        if known[0] != kind:
            raise No("InvalidValue")

        def apply(_: Any) -> None:
            del unit.calls[call]
            if usage:
                self.spend(unit, Usage(output=usage))
            unit.at_error = error is not None

        return Plan(apply, (unit.scope,))
