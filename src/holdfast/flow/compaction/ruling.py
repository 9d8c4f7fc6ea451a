"""Rules: what is done to a session when it grows, and what a model call must not pass. They belong to this process.

They are looked at after an append has been committed, and before a pack goes to a model. A session without rules
pays nothing for them. A rule that fails loses nothing and stops nobody: it is warned about, and tried again at the
next occasion. Only a guard refuses, and only the next model call. What a rule does is no occasion for rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.values import words
from holdfast.errors import InvalidValue
from holdfast.flow.change import state_of
from holdfast.flow.compaction.at_work import at_work, is_at_work
from holdfast.flow.compaction.enforcing import Compacting, guard, record, token_limit
from holdfast.flow.compaction.folding import flush_scope
from holdfast.flow.compaction.rules import check_rule
from holdfast.flow.compaction.tallies import Choose, Standing, Tally, Wait
from holdfast.flow.conversation.conversing import session_behind
from holdfast.flow.warned import warn
from holdfast.ports import Acting, Ports
from holdfast.records.compaction import (
    Always,
    BudgetGuard,
    CompactionConfig,
    Fired,
    MessagesOver,
    Occasion,
    PackOverBudget,
    Rule,
    TelemetryRecorder,
    TokensOver,
    Trigger,
)
from holdfast.records.lines import Line
from holdfast.records.messages import Message
from holdfast.records.packs import Packed


def add(
    ports: Ports, acting: Acting, session: str, given: Any, choose: Choose, wait: Wait | None = None
) -> Callable[[], None]:
    """A rule for a session: as such, a configuration, a preset's name, a guard or a recorder; gives what undoes it.

    A second one of the same name takes the place of the first. A configuration that is switched off leaves none.
    `wait` is given by a client that can await what a rule does.
    """
    rule = check_rule(ports, given, choose, awaits=wait is not None)
    place = (acting.tenant, session)
    standing = ports.rules.setdefault(place, Standing(choose))
    standing.choose, standing.wait = choose, wait or standing.wait
    standing.put(rule)

    def undo() -> None:
        standing.drop(rule)
        if not standing.rules and ports.rules.get(place) is standing:
            del ports.rules[place]

    if isinstance(rule.action, CompactionConfig) and not rule.action.enabled:
        undo()
    return undo


def rules_of(ports: Ports, acting: Acting, session: str) -> tuple[Rule, ...]:
    """The rules of a session, in the order in which they are looked at."""
    standing = ports.rules.get((acting.tenant, session))
    return () if standing is None else standing.rules


def forget(ports: Ports, acting: Acting, session: str) -> None:
    """A session that has ended for good needs no rules."""
    ports.rules.pop((acting.tenant, session), None)


def recall_of(ports: Ports, acting: Acting, stream: str) -> tuple[int, tuple[str, ...]]:
    """How many memories a pack of a line looks for, and in which scopes: where its rules write, or its session's."""
    session = session_behind(ports, acting, stream)
    configs = [rule.action for rule in rules_of(ports, acting, session) if isinstance(rule.action, CompactionConfig)]
    found = [flush_scope(ports, acting, stream, config) for config in configs]
    scopes = tuple(dict.fromkeys(scope for scope in found if scope is not None))
    return max((config.recall for config in configs), default=0), scopes or (session,)


def after_append(ports: Ports, acting: Acting, stream: str, new: Sequence[Message]) -> tuple[Fired, ...]:
    """Look at the rules of a line to which messages were appended. Never raises for what a rule does."""
    if not ports.rules:
        return ()
    return _looked(ports, acting, Occasion(kind="appended", stream=stream, new=tuple(new)))


def before_call(ports: Ports, acting: Acting, stream: str, packed: Packed) -> tuple[Fired, ...]:
    """Look at the rules of a line whose pack is about to go to a model. A guard may refuse the call."""
    if not ports.rules:
        return ()
    return _looked(ports, acting, Occasion(kind="packed", stream=stream, packed=packed))


def _looked(ports: Ports, acting: Acting, occasion: Occasion) -> tuple[Fired, ...]:
    standing = ports.rules.get((acting.tenant, session_behind(ports, acting, occasion.stream)))
    if standing is None:
        return ()
    rules, packed = standing.rules, occasion.packed
    for rule in rules if packed is not None else ():
        if isinstance(rule.action, BudgetGuard) and _is_due(ports, acting, standing, rule, occasion):
            guard(ports, acting, occasion.stream, rule, packed)  # type: ignore[arg-type]
    if is_at_work():
        return ()
    fired: list[Fired] = []
    with at_work():
        # A recorder tells what came of the others, so it comes last.
        for rule in sorted(rules, key=lambda rule: isinstance(rule.action, TelemetryRecorder)):
            if isinstance(rule.action, BudgetGuard):
                continue
            found = _fired(ports, acting, standing, rule, occasion, tuple(fired))
            if found is not None:
                fired.append(found)
    return tuple(fired)


def _fired(
    ports: Ports, acting: Acting, standing: Standing, rule: Rule, occasion: Occasion, before: tuple[Fired, ...]
) -> Fired | None:
    """What came of a rule; None if it was not its turn. What it raises is told and goes no further."""
    try:
        if not _is_due(ports, acting, standing, rule, occasion):
            return None
        if isinstance(rule.action, TelemetryRecorder):
            _awaited(standing, rule, record(ports, rule.action, occasion, before))
            return None
        if isinstance(rule.action, CompactionConfig):
            found = _compacted(ports, acting, standing, rule, rule.action, occasion)
        else:
            made = _awaited(standing, rule, rule.action(occasion))
            found = Fired(rule=rule.name, made=() if made is None else (made,))
    except Exception as error:  # noqa: BLE001  # It may be anybody's code, and the append is done.
        found = Fired(rule=rule.name, error=words(error))
    if found is not None and found.error is not None:
        warn(f"The rule {rule.name} of {occasion.stream} failed: {found.error}")
    return found


def _awaited(standing: Standing, rule: Rule, made: Any) -> Any:
    """What a function gave; what has to be awaited is, where that can be."""
    if not inspect.isawaitable(made):
        return made
    if standing.wait is not None:
        return standing.wait(made)
    if inspect.iscoroutine(made):
        made.close()
    raise InvalidValue(f"What the rule {rule.name} does must be awaited, and only the asyncio client does that.")


def _is_due(ports: Ports, acting: Acting, standing: Standing, rule: Rule, occasion: Occasion) -> bool:
    stream = occasion.stream
    tally: Tally | None = None
    if any(isinstance(one, MessagesOver | TokensOver) for one in rule.triggers):
        every = (trigger for known in standing.rules for trigger in known.triggers if isinstance(trigger, TokensOver))
        most = max((token_limit(ports, acting, stream, one.n) for one in every), default=None)
        tally = standing.tally(ports, acting, stream, occasion.new, most)
    return any(_fires(ports, acting, one, occasion, tally) for one in rule.triggers)


def _fires(ports: Ports, acting: Acting, trigger: Trigger, occasion: Occasion, tally: Tally | None) -> bool:
    if isinstance(trigger, Always):
        return True
    if isinstance(trigger, PackOverBudget):
        return occasion.packed is not None and occasion.packed.conversation.truncated_count > 0
    assert tally is not None, "a trigger that counts is given a tally"
    if isinstance(trigger, MessagesOver):
        return tally.messages > trigger.n
    return (tally.tokens or 0) > token_limit(ports, acting, occasion.stream, trigger.n)


def _compacted(
    ports: Ports, acting: Acting, standing: Standing, rule: Rule, config: CompactionConfig, occasion: Occasion
) -> Fired | None:
    """Make a line shorter, one thread at a time; not again soon if there was nothing to do."""
    stream = occasion.stream
    line = state_of(ports, acting, stream).line or Line()
    if standing.is_quiet(stream, rule.name, line) or not standing.busy.acquire(blocking=False):
        return None
    try:
        work = Compacting(ports, acting, stream, config, standing.choose(config.summarizer))
        packed = occasion.packed is not None and occasion.packed.conversation.truncated_count > 0
        work.run(packed=packed)
    finally:
        standing.busy.release()
    if not work.made and not work.failed:
        standing.hush(stream, rule.name, line)
        return None
    return Fired(rule=rule.name, made=tuple(work.made), error="; ".join(work.failed) or None)
