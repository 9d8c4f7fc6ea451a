"""Compact a thread by any strategy: a summary stands for whole older rounds, and nothing is removed.

The range is fixed first, then put into words, then written by compare-and-set. Open calls and everything after them
are never covered. Passages to be found again are written to the state in the same commit. A strategy that fails
changes nothing; `compact_with_fallback` then tries the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from itertools import islice
from typing import Final

from msgspec.structs import replace

from holdfast.core.compaction.sentences import fit_text
from holdfast.core.compaction.state_extract import extract_state, render_state
from holdfast.core.compaction.strategies import count_rounds_within, make_segments, omission_note, run_strategy
from holdfast.core.compaction.summary import fit_tokens, reduce_by_policy, reduce_by_priority, reduce_to, split_messages
from holdfast.core.numbers import is_number
from holdfast.core.packs.segments import is_covered
from holdfast.core.sessions.rounds import repair_messages
from holdfast.core.sessions.tokens import framing_of
from holdfast.errors import Conflict, InvalidValue, SummaryFailed, TooLarge
from holdfast.flow.compaction import recall, summaries
from holdfast.flow.compaction.recall import mirror_passages, storage_of
from holdfast.flow.compaction.summaries import ExtraDrafts, ModelCalls, SummaryPlan, SummaryText
from holdfast.flow.sessions.append import resolve_session_stream, thread_tokenizer
from holdfast.flow.sessions.read import MessageLocation, iter_places, iter_places_after, load_messages
from holdfast.flow.sessions.summaries import iter_summaries
from holdfast.ports import Env, Summarizer
from holdfast.records.batches import RowQuery
from holdfast.records.compaction import STRATEGIES, CompactionConfig
from holdfast.records.events.envelope import Draft
from holdfast.records.events.sessions import MessagePinned
from holdfast.records.ids import check_id
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel
from holdfast.records.scope import Scope
from holdfast.records.sessions import Summary

BUILT_IN_SUMMARIZER: Final = "extractive"
"""The name of the summarizer used when none is given."""
COUNT_SLACK: Final = 2
"""The sum of the parts' token counts can be slightly less than the count of the whole."""
SECONDS_ALLOWED: Final[ContextVar[float | None]] = ContextVar("holdfast_seconds_allowed", default=None)
"""The time limit of the summary being made, in seconds."""
COMPACT_TRIES: Final = 3
MAX_GOAL_SEARCH: Final = 16
"""The number of messages at the beginning of a thread that are searched for the user's goal."""
MAX_GOAL_CHARS: Final = 1_000
"""The most characters of the goal that are quoted where it cannot be pinned."""
FALLBACKS: Final[dict[str, tuple[str, ...]]] = {
    "summarise_oldest": ("extract_state", "sliding_window"),
    "extract_state": ("sliding_window",),
}
"""The strategies to try when one fails."""
_NUMBERS: Final = {
    "keep": (0, "keep must be a number of rounds"),
    "recall": (0, "recall must be a number of entries"),
    "summary_tokens": (1, "A summary's tokens must be a whole number"),
    "threshold": (0, "threshold must be a number of messages"),
    "max_messages": (1, "max_messages must be a number of messages"),
    "max_tokens": (1, 'max_tokens must be "model" or a number of tokens'),
    "max_length": (1, "max_length must be a number of characters"),
}
_MAY_BE_NONE: Final = frozenset({"threshold", "max_messages", "max_tokens", "max_length"})
_SWITCHES: Final = ("when_packed", "keep_goal", "background", "enabled")
MAX_SECONDS: Final = int(threading.TIMEOUT_MAX)
"""The longest time a thread can wait."""


def _make_summary_text(env: Env, plan: SummaryPlan, config: CompactionConfig, summarizer: Summarizer) -> SummaryText:
    """Make the text for a plan by the configured strategy."""
    count, messages = thread_tokenizer(env, plan.stream)[0].count, plan.messages
    name, state = config.strategy, None
    match name:
        case "summarise_oldest":
            most = token_allowance(env, plan, config, summarizer.name)
            originals = repair_messages(messages).messages
            text = run_with_timeout(config.timeout, lambda: summarizer.summarise(originals, max_tokens=most))
            return summarizer_text(config, text, summarizer.name, count)
        case "extract_state":
            state, level = extract_state(messages), CompactionLevel.MODERATE
            text = render_state(state, token_allowance(env, plan, config), count)
        case "truncate_at" | "sliding_window":
            level = CompactionLevel.AGGRESSIVE
            text = omission_note(sum(1 for message in messages if not message.pinned))
        case "priority" | "policy_trim":
            reduce = reduce_by_priority if name == "priority" else reduce_by_policy
            text, level = reduce(messages, token_allowance(env, plan, config), count)
        case _:  # The segments that a caller's own strategy keeps are quoted, the rest is left out.
            given = make_segments(messages, plan.stream, summaries.message_counter(env, plan.stream))
            kept = {one.id for one in run_strategy(name, env.strategies[name], given, config.summary_tokens)}
            stay = {id(message) for segment in given if segment.id in kept for message in segment.messages}
            text, level = reduce_to(messages, {at for at, message in enumerate(messages) if id(message) in stay})
    return SummaryText(text=text, strategy=name, method=name, level=level, state=state)


def token_allowance(env: Env, plan: SummaryPlan, config: CompactionConfig, method: str = BUILT_IN_SUMMARIZER) -> int:
    """Return the tokens a text may take. Our own must be small, or shorter than the messages it covers."""
    if method != BUILT_IN_SUMMARIZER:
        return config.summary_tokens
    saved = summaries.count_saved_tokens(plan.messages, summaries.message_counter(env, plan.stream))
    return min(config.summary_tokens, max(saved, summaries.SMALL_SUMMARY_TOKENS) - summary_framing(env, plan.stream))


def summary_framing(env: Env, stream: str) -> int:
    """Return the tokens that a pack needs for a summary beyond those of its text."""
    tokenizer, info = thread_tokenizer(env, stream)
    return COUNT_SLACK + summaries.count_summary_tokens("", tokenizer, framing_of(info.provider, info.name))


def summarizer_text(config: CompactionConfig, text: str, method: str, count: Callable[[str], int]) -> SummaryText:
    """Return a summarizer's text, cut to its allowance, which not every model keeps to."""
    short = fit_tokens(text, config.summary_tokens, count)
    return SummaryText(text=short, strategy=config.strategy, method=method, level=CompactionLevel.MODERATE)


def run_with_timeout(seconds: float | None, work: Callable[[], str]) -> str:
    """Run a summarizer. If it takes too long it is abandoned, and its late result is discarded."""
    if seconds is None:
        return work()
    answers: list[str] = []
    errors: list[BaseException] = []

    def run() -> None:
        SECONDS_ALLOWED.set(seconds)
        try:
            answers.append(work())
        except BaseException as error:  # noqa: BLE001  # Whoever waits raises it.
            errors.append(error)

    # Not from a pool, whose threads would keep the process alive while one hangs. Run it in the caller's context, which
    # knows the loop that an async summarizer is awaited on.
    thread = threading.Thread(target=copy_context().run, args=(run,), name="holdfast-summary", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise timeout_error(seconds)
    return answers[0]


def timeout_error(seconds: float) -> SummaryFailed:
    """Return the error for a summarizer that exceeded its time limit."""
    return SummaryFailed(f"The summarizer took longer than {seconds:g} seconds. Nothing was changed; try again.")


SummaryWriter = Callable[[SummaryPlan, SummaryText, ExtraDrafts], Summary]
"""A function that writes a summary together with something else."""


def compact_thread(
    env: Env,
    stream: str,
    config: CompactionConfig,
    summarizer: Summarizer,
    *,
    within: int | None = None,
    whole: bool = False,
    write: SummaryWriter | None = None,
    calls: ModelCalls | None = None,
) -> Summary | None:
    """Compact a thread: let a summary stand for older rounds; return None if there are none to cover.

    `within` limits the tokens of the rounds that stay. `write` writes the summary together with something else. The
    usage of `calls`, which earlier attempts made, is counted with that of this one.
    """
    check_config(env, config)
    calls = [] if calls is None else calls
    with summaries.collect_calls(env, calls):
        for attempt in range(1, COMPACT_TRIES + 1):
            plan = plan_compaction(env, stream, config, within=within, whole=whole)
            if plan is None:
                return None
            words = _make_summary_text(env, plan, config, summarizer)
            if config.max_length is not None:
                words = replace(words, text=fit_text(words.text, config.max_length, len))
            try:
                made = write_compaction(env, plan, replace(words, usage=summaries.sum_calls(env, calls)), config, write)
            except Conflict:
                if attempt == COMPACT_TRIES:
                    raise
            else:
                calls.clear()
                return made
    return None


def compact_with_fallback(
    env: Env,
    stream: str,
    config: CompactionConfig,
    summarizer: Summarizer,
    *,
    calls: ModelCalls,
    within: int | None = None,
    write: SummaryWriter | None = None,
) -> tuple[Summary | None, dict[str, SummaryFailed | TooLarge]]:
    """Compact a thread, trying the next strategy when one fails; also return the errors by strategy."""
    failed: dict[str, SummaryFailed | TooLarge] = {}
    for strategy in (config.strategy, *FALLBACKS.get(config.strategy, ())):
        tried = replace(config, strategy=strategy)
        try:
            return compact_thread(env, stream, tried, summarizer, within=within, write=write, calls=calls), failed
        except (SummaryFailed, TooLarge) as error:
            failed[strategy] = error
    return None, failed


def plan_compaction(
    env: Env, stream: str, config: CompactionConfig, *, within: int | None = None, whole: bool = False
) -> SummaryPlan | None:
    """Plan the messages to cover: whole rounds before those that stay and before any open call."""
    size = summaries.message_counter(env, stream)

    def keep(messages: Sequence[Message]) -> int:
        most = config.keep
        if config.strategy == "truncate_at":
            most = min(most, count_rounds_within(messages, most, lambda message: 1))
        return most if within is None else min(most, count_rounds_within(messages, within, size))

    plan = summaries.plan_summary(env, stream, keep=keep, whole=whole)
    # Pinned messages stay as they are, so summarising them saves nothing.
    if plan is None or all(message.pinned for message in plan.messages):
        return None
    return replace(plan, flushed=open_flush_scope(env, stream, config))  # Before a model is paid for the summary.


def write_compaction(
    env: Env, plan: SummaryPlan, words: SummaryText, config: CompactionConfig, write: SummaryWriter | None = None
) -> Summary:
    """Write the summary with the flushed passages, and with a pin on the user's goal."""
    goal = _find_goal(env, plan) if config.keep_goal else None
    pin = goal if goal is not None and goal.stream == plan.stream else None
    if pin is not None:
        # Mark the goal as pinned in the plan: it stays, so covering it saves nothing.
        messages = (replace(one, pinned=True) if (one.stream, one.version) == pin.key else one for one in plan.messages)
        plan = replace(plan, messages=tuple(messages))
    elif goal is not None:
        # In a fork the goal may belong to another thread, which alone could pin it: quote it.
        said = load_messages(env, [goal])[0].text[:MAX_GOAL_CHARS]
        text = f"What the user asked for first: {said}\n{words.text}"
        words = replace(words, text=text if config.max_length is None else fit_text(text, config.max_length, len))
    scope = plan.flushed

    def drafts(summary: str) -> dict[str, Sequence[Draft]]:
        found: dict[str, Sequence[Draft]] = {}
        if scope is not None:
            # Messages covered before were flushed with the earlier summary, if flushing was on.
            gone = [message for message in plan.messages[plan.covered :] if not message.pinned]
            found[scope] = recall.flush_passages(env, scope, summary, split_messages(gone))
        if pin is not None:
            pinned = Draft(type="message.pinned", facts=MessagePinned(version=pin.version))
            found[plan.stream] = [*found.get(plan.stream, ()), pinned]
        return found

    if write is not None:
        return write(plan, words, drafts)
    return summaries.write_summary(env, plan, words, also=drafts)


def flush_scope(env: Env, stream: str, config: CompactionConfig) -> str | None:
    """Return the scope that compacted passages are written to, by default the session's; None if flushing is off."""
    store = config.store
    if isinstance(store, bool):
        return resolve_session_stream(env, stream) if store else None
    if storage_of(store) is None:
        return Scope.of(store).text
    return getattr(store, "scope", None) or resolve_session_stream(env, stream)


def open_flush_scope(env: Env, stream: str, config: CompactionConfig) -> str | None:
    """Return the same scope; another store that is to have its passages follows it from now on, or refuses."""
    scope, storage = flush_scope(env, stream, config), storage_of(config.store)
    if scope is not None and storage is not None:
        mirror_passages(env, scope, storage)
    return scope


def _find_goal(env: Env, plan: SummaryPlan) -> MessageLocation | None:
    """Find the user's first message, if it is about to be covered and is not pinned."""
    covered = {(message.stream, message.version) for message in plan.messages}
    for place in islice(iter_places_after(env, plan.stream), MAX_GOAL_SEARCH):
        if place.row["role"] == "user":
            return None if place.row["pinned"] or place.key not in covered else place
    return None


def count_uncovered(env: Env, stream: str, *, enough: int | None = None) -> tuple[int, int]:
    """Count a thread's uncovered messages and their tokens; stop once the tokens exceed `enough`."""
    newest = next(iter_summaries(env, stream), None)
    messages = tokens = 0
    for place in iter_places(env, stream):
        if newest is not None and is_covered(*place.key, (newest,)):
            break
        if enough is not None and tokens > enough:
            break
        messages += 1
        tokens += int(place.row["tokens"] or 0)
    return messages, tokens


def last_covered_position(env: Env, stream: str) -> int:
    """Return the position of the newest message that a summary covers; 0 if there is none."""
    newest = next(iter_summaries(env, stream), None)
    if newest is None:
        return 0
    end = newest.covers[-1]
    query = RowQuery(table="messages", stream=end.stream, after=end.last - 1, until=end.last, limit=1)
    return max((int(row["position"] or 0) for _, row in env.journal.select(env.tenant, query)), default=0)


def check_config(env: Env, config: CompactionConfig) -> None:
    """Check a compaction configuration; refuse an invalid value by name."""
    strategy, seconds = config.strategy, config.timeout
    if not isinstance(strategy, str) or not (strategy in STRATEGIES or strategy in env.strategies):
        known = ", ".join((*STRATEGIES, *sorted(env.strategies)))
        raise InvalidValue(f"{strategy!r:.60} is not a strategy. Known strategies: {known}.")
    check_id(strategy, "strategy")  # The strategy's name is stored with every summary it makes.
    for name, (least, meaning) in _NUMBERS.items():
        value = getattr(config, name)
        absent = (value is None and name in _MAY_BE_NONE) or (name, value) == ("max_tokens", "model")
        if not absent and not is_number(value, least=least):
            raise InvalidValue(f"{meaning}, {least} or more, not {value!r:.60}.")
    for name in _SWITCHES:
        if not isinstance(getattr(config, name), bool):
            raise InvalidValue(f"{name} must be True or False, not {getattr(config, name)!r:.60}.")
    if seconds is not None and (not is_number(seconds, most=MAX_SECONDS, whole=False) or seconds <= 0):
        raise InvalidValue(
            f"timeout must be a number of seconds above 0 and at most {MAX_SECONDS}, not {seconds!r:.60}."
        )
    if not isinstance(config.store, bool) and storage_of(config.store) is None:
        Scope.of(config.store)
