"""What may be a rule: as such, a configuration, a preset by its name, a guard or a recorder. The rest is refused."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Final

from holdfast.core.decide.amounts import nano_usd
from holdfast.errors import InvalidValue
from holdfast.flow.compaction.configuring import check
from holdfast.flow.compaction.tallies import Choose
from holdfast.ports import Ports
from holdfast.records.compaction import (
    PRESETS,
    Always,
    BudgetGuard,
    CompactionConfig,
    MessagesOver,
    PackOverBudget,
    Rule,
    TelemetryRecorder,
    TokensOver,
)
from holdfast.records.ids import check_id

TRIGGERS: Final = (MessagesOver, TokensOver, PackOverBudget, Always)
COMPACTION, GUARD, TELEMETRY = "compaction", "budget_guard", "telemetry"


def check_rule(ports: Ports, given: Any, choose: Choose, *, awaits: bool = False) -> Rule:
    """A rule that can be followed, by a client that awaits or by one that does not."""
    given = _as_rule(ports, given)
    if not isinstance(given, Rule):
        raise InvalidValue(
            f"{type(given).__name__} is no rule. Give a Rule, a CompactionConfig, a preset's name, a BudgetGuard or a "
            "TelemetryRecorder."
        )
    check_id(given.name, "rule name")
    if not given.triggers or not all(isinstance(trigger, TRIGGERS) for trigger in given.triggers):
        raise InvalidValue("A rule needs a trigger: MessagesOver, TokensOver, PackOverBudget or Always, or several.")
    for trigger in given.triggers:
        number = getattr(trigger, "n", None)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise InvalidValue(f"{type(trigger).__name__} takes a whole number, 0 or more, not {number!r}.")
    _check_action(ports, given.action)
    if _must_be_awaited(given.action, choose) and not awaits:
        raise InvalidValue(
            f"What the rule {given.name} does is an async function, and only the asyncio client awaits one. "
            "Give a plain function, or add the rule to a session of that client."
        )
    return given


def _as_rule(ports: Ports, given: Any) -> Any:
    """Whatever stands for a rule as one, with the name that it has then."""
    if isinstance(given, str):
        if given not in PRESETS:
            raise InvalidValue(f"{given!r:.60} is not a preset. Known presets: {', '.join(PRESETS)}.")
        given = PRESETS[given]
    if isinstance(given, CompactionConfig):
        check(ports, given)  # Before it is asked when it is due.
        return Rule(COMPACTION, given.triggers or (PackOverBudget(),), given)
    if isinstance(given, BudgetGuard):
        return Rule(GUARD, Always(), given)
    if isinstance(given, TelemetryRecorder):
        return Rule(TELEMETRY, Always(), given)
    return given


def _must_be_awaited(action: Any, choose: Choose) -> bool:
    """Whether what it calls is async, as far as can be told without calling it. What cannot summarise is refused."""
    if isinstance(action, CompactionConfig):
        return action.summarizer is not None and getattr(choose(action.summarizer), "awaits", False)
    return _is_async(action.record if isinstance(action, TelemetryRecorder) else action)


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    call = None if isinstance(function, type) else getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _check_action(ports: Ports, action: Any) -> None:
    if isinstance(action, CompactionConfig):
        check(ports, action)
    elif isinstance(action, BudgetGuard):
        for name in ("tokens", "cost", "pack"):
            number = getattr(action, name)
            if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
                raise InvalidValue(f"A guard's {name} must be a whole number, 0 or more, not {number!r}.")
        if action.usd is not None:
            nano_usd(action.usd, "A guard's usd")
        if action.usd is not None and action.cost is not None:
            raise InvalidValue("A guard takes usd, in dollars, or cost, in billionths of a dollar, and not both.")
    elif isinstance(action, TelemetryRecorder):
        if action.record is not None and not callable(action.record):
            raise InvalidValue("A TelemetryRecorder takes a function, or nothing.")
    elif not callable(action):
        raise InvalidValue("A rule's action must be a CompactionConfig, BudgetGuard, TelemetryRecorder or a function.")
