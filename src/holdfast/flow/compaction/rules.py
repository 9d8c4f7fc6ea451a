"""Rules of a session: what to do when it grows, and limits on model calls. They belong to this process.

Rules are evaluated after an append has been committed, and before a pack goes to a model. A session without rules
pays nothing. A rule that fails is warned about and tried again at the next occasion; only a guard refuses, and only
the next model call. An append made by a running rule does not fire rules again.

With `background` a compaction waits in a queue for one of the client's background threads, and the append waits for
neither. It is written by compare-and-set like any other, so nothing is covered twice; what a crash interrupted is made
when the rule is added again, or at the next occasion. A rule that was removed meanwhile writes nothing.

Up to its limits a compaction is soft: above the threshold its strategy is tried, and on failure tried again later.
Above a limit it must succeed: by the next strategy, and finally by leaving messages out.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.frames.budgets import to_nano_usd
from holdfast.core.numbers import is_number
from holdfast.core.values import discard_awaitable, exception_text, is_async
from holdfast.errors import BudgetExhausted, InvalidValue, Refused, SummaryFailed
from holdfast.flow.compaction import threads
from holdfast.flow.compaction.summaries import ExtraDrafts, ModelCalls, SummaryPlan, SummaryText, write_summary
from holdfast.flow.journal import telemetry
from holdfast.flow.journal.append import load_state
from holdfast.flow.sessions.append import resolve_session_stream, thread_tokenizer
from holdfast.ports import Env, Summarizer
from holdfast.records import compaction
from holdfast.records.compaction import BudgetGuard, CompactionConfig, Occasion, Rule, RuleOutcome, TelemetryRecorder
from holdfast.records.ids import check_id
from holdfast.records.messages import Message
from holdfast.records.packs import AssembledPack
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.sessions import Summary, ThreadState
from holdfast.system import CALL_SITE, ForkLock, find_call_site, warn_caller

TRIGGERS: Final = (compaction.MessagesOver, compaction.TokensOver, compaction.PackOverBudget, compaction.Always)
COMPACTION, GUARD, TELEMETRY = "compaction", "budget_guard", "telemetry"
TARGET_SHARE: Final = 0.6
"""The share of an exceeded limit that is left afterwards; otherwise the next message would exceed it again."""
KEEP_ALL_ROUNDS: Final = 2**31
"""The number of rounds to keep where only their tokens are limited."""
BACKGROUND_BLOCK: Final = "compaction of "
RETRY_GROWTH = 8
"""After a compaction found nothing to do, a thread must grow by about 1/8 before the next attempt."""

ChooseSummarizer = Callable[[Any], Summarizer]
"""A function that makes a summarizer from a configuration's value, or from None."""
Wait = Callable[[Awaitable[Any]], Any]
"""A function that waits in the calling thread for an awaitable and returns its result."""


def add_rule(
    env: Env, session: str, given: Any, choose: ChooseSummarizer, wait: Wait | None = None
) -> Callable[[], None]:
    """Add a rule to a session and return a function that removes it.

    It is given as a Rule, a configuration, a preset's name, a guard or a recorder. It replaces a rule of the same name;
    a disabled configuration only removes that one. `wait` comes from a client that can await the rule's action.
    """
    rule = check_rule(env, given, choose, awaits=wait is not None)
    if isinstance(rule.action, CompactionConfig):
        threads.open_flush_scope(env, session, rule.action)  # A store that cannot be used is refused here.
    place = (env.tenant, session)
    standing = env.rules.setdefault(place, SessionRules(choose))
    standing.choose, standing.wait = choose, wait or standing.wait
    standing.rules = (*(known for known in standing.rules if known.name != rule.name), rule)

    def undo() -> None:
        standing.rules = tuple(known for known in standing.rules if known is not rule)
        if not standing.rules and env.rules.get(place) is standing:
            del env.rules[place]

    if isinstance(rule.action, CompactionConfig) and not rule.action.enabled:
        undo()
    elif _is_background(rule):
        known = load_state(env, session).session
        for thread in () if known is None else known.threads:
            stream = Scope.thread(str(parse_scope(session).get("session")), thread).text
            _start_compaction(env, standing, rule, Occasion(kind="appended", stream=stream))
    return undo


def rules_of(env: Env, session: str) -> tuple[Rule, ...]:
    """Return the rules of a session, in the order of evaluation."""
    standing = env.rules.get((env.tenant, session))
    return () if standing is None else standing.rules


def recall_settings(env: Env, stream: str) -> tuple[int, tuple[str, ...]]:
    """Return how many memories a pack recalls, and from which scopes: those its rules flush to, or its session's."""
    session = resolve_session_stream(env, stream)
    if not env.rules:
        return 0, (session,)
    configs = [rule.action for rule in rules_of(env, session) if isinstance(rule.action, CompactionConfig)]
    found = [threads.flush_scope(env, stream, config) for config in configs]
    scopes = tuple(dict.fromkeys(scope for scope in found if scope is not None))
    return max((config.recall for config in configs), default=0), scopes or (session,)


def fire_rules(
    env: Env, stream: str, new: Sequence[Message] = (), packed: AssembledPack | None = None
) -> tuple[RuleOutcome, ...]:
    """Evaluate the rules of a thread after an append, or before its pack goes to a model. Only a guard refuses."""
    standing = env.rules.get((env.tenant, resolve_session_stream(env, stream))) if env.rules else None
    if standing is None:
        return ()
    rules = standing.rules
    kind: Literal["appended", "packed"] = "appended" if packed is None else "packed"
    occasion = Occasion(kind=kind, stream=stream, new=tuple(new), packed=packed)
    for rule in rules:
        if packed is not None and isinstance(rule.action, BudgetGuard) and _is_due(env, standing, rule, occasion):
            check_guard(env, stream, rule, packed)
    if is_rule_running():
        return ()
    fired: list[RuleOutcome] = []
    with mark_rule_running():
        # Recorders report on the other rules, so they run last.
        for rule in sorted(rules, key=lambda rule: isinstance(rule.action, TelemetryRecorder)):
            if isinstance(rule.action, BudgetGuard):
                continue
            found = _fire_rule(env, standing, rule, occasion, tuple(fired))
            if found is not None:
                fired.append(found)
    return tuple(fired)


def _fire_rule(
    env: Env,
    standing: SessionRules,
    rule: Rule,
    occasion: Occasion,
    before: tuple[RuleOutcome, ...],
    *,
    queued: bool = False,
) -> RuleOutcome | None:
    """Run a rule and return its result; None if it was not due. Its errors are reported, not raised."""
    try:
        if not _is_due(env, standing, rule, occasion):
            return None
        if _is_background(rule) and not queued:
            _start_compaction(env, standing, rule, occasion)
            return None
        if isinstance(rule.action, TelemetryRecorder):
            _await_result(standing, rule, record_occasion(env, rule.action, occasion, before))
            return None
        if isinstance(rule.action, CompactionConfig):
            found = _run_compaction(env, standing, rule, occasion, wait=queued)
        else:
            made = _await_result(standing, rule, rule.action(occasion))
            found = RuleOutcome(rule=rule.name, made=() if made is None else (made,))
    except Exception as error:  # noqa: BLE001  # It may be anybody's code, and the append is done.
        if not standing.holds(rule):  # Removed meanwhile, or the client was closed: the next one makes the summary.
            return None
        found = RuleOutcome(rule=rule.name, error=exception_text(error))
    if found is not None and found.error is not None:
        warn_caller(f"The rule {rule.name} of {occasion.stream} failed: {found.error}")
    return found


def _is_background(rule: Rule) -> bool:
    return isinstance(rule.action, CompactionConfig) and rule.action.background


def _start_compaction(env: Env, standing: SessionRules, rule: Rule, occasion: Occasion) -> None:
    """Queue a compaction, which is repeated in the background for as long as the rule is due; draining waits for it."""
    place, later = find_call_site(), replace(occasion, new=())

    def work() -> None:
        CALL_SITE.set(place)
        with mark_rule_running():
            while standing.holds(rule):
                found = _fire_rule(env, standing, rule, later, (), queued=True)
                if found is None or found.error is not None:
                    return

    block = (env.tenant, BACKGROUND_BLOCK + occasion.stream)
    # The kind too: a pack that overflowed is due where an append is not.
    env.leases.run_later(block, f"{occasion.kind} {rule.name}", partial(copy_context().run, work))


def _await_result(standing: SessionRules, rule: Rule, made: Any) -> Any:
    """Return an action's result, awaited if the client can await."""
    if not inspect.isawaitable(made):
        return made
    if standing.wait is not None:
        return standing.wait(made)
    discard_awaitable(made)
    raise InvalidValue(f"The action of the rule {rule.name} is async, and only the asyncio client awaits it.")


def _is_due(env: Env, standing: SessionRules, rule: Rule, occasion: Occasion) -> bool:
    return any(_is_triggered(env, standing, one, occasion) for one in rule.triggers)


def _is_triggered(env: Env, standing: SessionRules, trigger: compaction.Trigger, occasion: Occasion) -> bool:
    match trigger:
        case compaction.Always():
            return True
        case compaction.PackOverBudget():
            return _has_overflow(occasion)
    stream, every = occasion.stream, [one for known in standing.rules for one in known.triggers]
    limits = (token_limit(env, stream, one.n) for one in every if isinstance(one, compaction.TokensOver))
    most = max(limits, default=None)
    tally = standing.update_tally(env, stream, occasion.new, most)
    counted = tally.messages if isinstance(trigger, compaction.MessagesOver) else tally.tokens or 0
    return counted > token_limit(env, stream, trigger.n)


def _has_overflow(occasion: Occasion) -> bool:
    packed = occasion.packed
    return packed is not None and (packed.conversation.truncated_count > 0 or any(s.window for s in packed.summaries))


def _run_compaction(
    env: Env, standing: SessionRules, rule: Rule, occasion: Occasion, *, wait: bool
) -> RuleOutcome | None:
    """Compact a thread, one compaction of it at a time; skip it for a while if there was nothing to do."""
    stream = occasion.stream
    thread = load_state(env, stream).thread or ThreadState()
    busy = standing.busy.setdefault(stream, ForkLock()).lock
    if standing.is_idle(stream, rule.name, thread) or not busy.acquire(blocking=wait):
        return None
    try:
        made, failed = _compact_to_limits(env, standing, stream, rule, packed=_has_overflow(occasion))
    finally:
        busy.release()
    if not made and not failed:
        standing.quiet[stream, rule.name] = thread
        return None
    return RuleOutcome(rule=rule.name, made=tuple(made), error="; ".join(failed) or None)


def _compact_to_limits(
    env: Env, standing: SessionRules, stream: str, rule: Rule, *, packed: bool
) -> tuple[list[Summary], list[str]]:
    """Run the strategy, then do whatever is needed to be within the limits; return summaries and failures."""
    config: CompactionConfig = rule.action
    summarizer, calls = standing.choose(config.summarizer), standing.calls.setdefault(stream, [])
    made: list[Summary | None] = []
    failed: list[str] = []

    def write(plan: SummaryPlan, words: SummaryText, also: ExtraDrafts) -> Summary:
        if not standing.holds(rule):
            raise Refused(f"The rule {rule.name} was removed. Nothing was changed.")
        return write_summary(env, plan, words, also=also)

    def force(config: CompactionConfig, within: int | None = None) -> None:
        summary, errors = threads.compact_with_fallback(
            env, stream, config, summarizer, calls=calls, within=within, write=write
        )
        made.append(summary)
        if summary is not None or not all(getattr(error, "longer", False) for error in errors.values()):
            failed.extend(f"{strategy}: {error}" for strategy, error in errors.items())

    messages, _ = threads.count_uncovered(env, stream)
    most, soft, tokens = config.max_messages, config.threshold, config.max_tokens
    if most is not None and messages > most:
        force(config)
    elif packed or (soft is not None and messages > soft) or (soft is None and most is None and tokens is None):
        try:
            made.append(threads.compact_thread(env, stream, config, summarizer, calls=calls, write=write))
        except SummaryFailed as error:
            if not error.longer:
                raise  # Otherwise there is too little to summarise so far, which is no failure.
    if most is not None and threads.count_uncovered(env, stream)[0] > most:
        force(replace(config, strategy="truncate_at", keep=max(1, int(most * TARGET_SHARE))))
    if tokens is not None:
        limit = token_limit(env, stream, tokens)
        if threads.count_uncovered(env, stream, enough=limit)[1] > limit:
            force(replace(config, keep=KEEP_ALL_ROUNDS), within=int(limit * TARGET_SHARE))
    return [summary for summary in made if summary is not None], failed


def token_limit(env: Env, stream: str, given: int | str | None) -> int:
    """Return the given number of tokens, or the input budget of the thread's model."""
    return given if isinstance(given, int) else thread_tokenizer(env, stream)[1].input_budget


def check_guard(env: Env, stream: str, rule: Rule, packed: AssembledPack) -> None:
    """Refuse a model call that would exceed a limit."""
    wanted: BudgetGuard = rule.action
    used = packed.token_summary.used
    if wanted.pack is not None and used > wanted.pack:
        raise BudgetExhausted(
            f"This pack has {used} tokens, and the rule {rule.name} allows {wanted.pack} for a call (pack). "
            "Make it with a smaller budget, or raise the limit.",
            left=wanted.pack,
            requested=used,
        )
    usage = (load_state(env, stream).thread or ThreadState()).usage
    spent = usage.spent
    if wanted.tokens is not None and spent >= wanted.tokens:
        raise BudgetExhausted(
            f"The model calls of {stream} have used {spent} tokens, and the rule {rule.name} allows {wanted.tokens} "
            "(tokens). Raise the limit, or end the conversation."
        )
    most = wanted.cost if wanted.usd is None else to_nano_usd(wanted.usd, "usd")
    if most is not None and (usage.cost or 0) >= most:
        raise BudgetExhausted(
            f"The model calls of {stream} have cost {usage.cost or 0}, and the rule {rule.name} allows {most} "
            f"({'cost' if wanted.usd is None else 'usd'}, in billionths of a dollar). Raise the limit, or end the "
            "conversation."
        )


def record_occasion(env: Env, recorder: TelemetryRecorder, occasion: Occasion, fired: Sequence[RuleOutcome]) -> object:
    """Record an occasion as numbers and names, never content; return the recorder function's result, if any."""
    told: dict[str, Any] = {"kind": occasion.kind, "stream": occasion.stream}
    if occasion.packed is None:
        told["messages"] = len(occasion.new)
        told["tokens"] = sum(message.tokens or 0 for message in occasion.new)
    else:
        summary = occasion.packed.token_summary
        told |= {
            "messages": occasion.packed.conversation.message_count,
            "tokens": summary.used,
            "budget": summary.budget,
            "level": str(summary.compaction_level),
            "left_out": occasion.packed.conversation.truncated_count,
        }
    told["summaries"] = sum(len(one.made) for one in fired)
    told["failed"] = ", ".join(one.rule for one in fired if one.error is not None) or None
    if recorder.record is not None:
        return recorder.record(told)
    telemetry.record_span(env, f"holdfast.{occasion.kind}", {k: v for k, v in told.items() if v is not None})
    return None


def check_rule(env: Env, given: Any, choose: ChooseSummarizer, *, awaits: bool = False) -> Rule:
    """Convert the given value to a rule and check it; refuse async actions unless the client awaits."""
    given = _to_rule(env, given)
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
        if number is not None and not is_number(number, least=0):
            raise InvalidValue(f"{type(trigger).__name__} takes a whole number, 0 or more, not {number!r}.")
    _check_action(env, given.action)
    action: Any = given.action
    if isinstance(action, CompactionConfig):  # An unusable summarizer is refused here.
        awaited = action.summarizer is not None and getattr(choose(action.summarizer), "awaits", False)
    else:
        awaited = is_async(action.record if isinstance(action, TelemetryRecorder) else action)
    if awaited and not awaits:
        raise InvalidValue(
            f"What the rule {given.name} does is an async function, and only the asyncio client awaits one. "
            "Give a plain function, or add the rule to a session of that client."
        )
    return given


def _to_rule(env: Env, given: Any) -> Any:
    """Convert a preset's name, configuration, guard or recorder to a rule with its default name."""
    if isinstance(given, str):
        if given not in compaction.PRESETS:
            raise InvalidValue(f"{given!r:.60} is not a preset. Known presets: {', '.join(compaction.PRESETS)}.")
        given = compaction.PRESETS[given]
    if isinstance(given, CompactionConfig):
        threads.check_config(env, given)  # Check it before its triggers are read.
        return Rule(COMPACTION, given.triggers or (compaction.PackOverBudget(),), given)
    if isinstance(given, BudgetGuard):
        return Rule(GUARD, compaction.Always(), given)
    if isinstance(given, TelemetryRecorder):
        return Rule(TELEMETRY, compaction.Always(), given)
    return given


def _check_action(env: Env, action: Any) -> None:
    if isinstance(action, CompactionConfig):
        threads.check_config(env, action)
    elif isinstance(action, BudgetGuard):
        for name in ("tokens", "cost", "pack"):
            number = getattr(action, name)
            if number is not None and not is_number(number, least=0):
                raise InvalidValue(f"A guard's {name} must be a whole number, 0 or more, not {number!r}.")
        if action.usd is not None:
            to_nano_usd(action.usd, "A guard's usd")
        if action.usd is not None and action.cost is not None:
            raise InvalidValue("A guard takes usd, in dollars, or cost, in billionths of a dollar, and not both.")
    elif isinstance(action, TelemetryRecorder):
        if action.record is not None and not callable(action.record):
            raise InvalidValue("A TelemetryRecorder takes a function, or nothing.")
    elif not callable(action):
        raise InvalidValue("A rule's action must be a CompactionConfig, BudgetGuard, TelemetryRecorder or a function.")


class ThreadTally(msgspec.Struct, frozen=True, kw_only=True):
    """The uncovered part of a thread, as of its version."""

    messages: int
    tokens: int | None
    """None until requested. Counting stops above the requested limit, so it may be a lower bound."""
    covered: int
    thread: ThreadState


class SessionRules:
    """A session's rules by name, in the order they were added, and the tallies of its threads."""

    def __init__(self, choose: ChooseSummarizer) -> None:
        self.rules: tuple[Rule, ...] = ()
        self.choose = choose
        self.wait: Wait | None = None
        self._tallies: dict[str, ThreadTally] = {}
        self.quiet: dict[tuple[str, str], ThreadState] = {}
        """The state of a thread in which a rule found nothing to do, by stream and rule."""
        self.calls: dict[str, ModelCalls] = {}
        """The model calls of attempts that failed, by stream."""
        self.busy: dict[str, ForkLock] = {}
        """Locks that are held while a thread is compacted, by stream."""

    def holds(self, rule: Rule) -> bool:
        """Return True unless a rule was removed. One that was replaced may still write its summary."""
        return any(known.name == rule.name for known in self.rules)

    def update_tally(
        self, env: Env, stream: str, new: Sequence[Message] = (), tokens: int | None = None
    ) -> ThreadTally:
        """Return a thread's tally after some new messages, with its tokens counted up to `tokens` if given."""
        thread = load_state(env, stream).thread or ThreadState()
        known, counted = self._tallies.get(stream), None
        if known is None or (known.thread.edited, known.thread.floor) != (thread.edited, thread.floor):
            covered = threads.last_covered_position(env, stream)
        else:
            covered, grown = known.covered, thread.messages - known.thread.messages
            if known.tokens is not None and grown in (0, len(new)):  # Otherwise others have written as well.
                counted = known.tokens + sum(message.tokens or 0 for message in new if grown)
        if tokens is not None and counted is None:
            counted = threads.count_uncovered(env, stream, enough=tokens)[1]
        messages = max(0, thread.messages - covered)
        found = self._tallies[stream] = ThreadTally(messages=messages, tokens=counted, covered=covered, thread=thread)
        return found

    def is_idle(self, stream: str, rule: str, thread: ThreadState) -> bool:
        """Return True if a retry would find nothing: the thread has barely grown, with no edit and no call answered."""
        before = self.quiet.get((stream, rule))
        if before is None or before.edited != thread.edited or len(thread.calls) < len(before.calls):
            return False
        return thread.messages < before.messages + max(RETRY_GROWTH // 2, before.messages // RETRY_GROWTH)


class _RuleRun:
    """A single evaluation of rules."""

    over = False


_RULE_RUN: Final[ContextVar[_RuleRun | None]] = ContextVar("holdfast_rule_at_work", default=None)


def is_rule_running() -> bool:
    """Return True inside a running rule."""
    turn = _RULE_RUN.get()
    return turn is not None and not turn.over


@contextmanager
def mark_rule_running() -> Iterator[None]:
    """Mark this context as running rules, for the duration of the block."""
    turn = _RuleRun()
    before = _RULE_RUN.set(turn)
    try:
        yield
    finally:
        turn.over = True
        _RULE_RUN.reset(before)
