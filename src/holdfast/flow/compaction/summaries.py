"""Summaries of stored threads: an exact range, made from the original messages, written by compare-and-set.

The range is fixed before the summarizer runs. The summary is written only if nothing in the range was retracted,
summarised or reset meanwhile; messages that arrived later are not covered. A failed or empty summary changes nothing,
and neither does one longer than the messages it covers, unless it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, islice, takewhile
from operator import attrgetter
from typing import Any, Final

import msgspec

from holdfast.core.packs.segments import is_covered
from holdfast.core.sessions.rounds import SUMMARY_PREFIX, group_rounds
from holdfast.core.sessions.tokens import CountMessage, Framing, framing_of, message_tokens
from holdfast.core.trust import lowest_trust
from holdfast.errors import Conflict, SessionClosed, SummaryFailed
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal import redact
from holdfast.flow.journal.append import Drafts, States, decide_and_append
from holdfast.flow.sessions.append import add_cost, thread_tokenizer
from holdfast.flow.sessions.read import MessageLocation, iter_places, leading_instructions, load_messages, thread_state
from holdfast.flow.sessions.summaries import build_summary, iter_summaries
from holdfast.ports import SUMMARY_CALLS, Env, Tokenizer
from holdfast.records.events.envelope import Draft
from holdfast.records.events.sessions import MessageSpan, SummaryContent, SummaryMade
from holdfast.records.ids import ulid_text
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Scope
from holdfast.records.sessions import Summary
from holdfast.records.usage import NO_USAGE, Usage

Keep = Callable[[Sequence[Message]], int]
"""A function of the uncovered messages that returns the number of newest rounds to keep."""
ExtraDrafts = Callable[[str], Mapping[str, Sequence[Draft]]]
"""A function that returns the events to write before the summary of an id, by stream."""
ModelCalls = list[tuple[str, Usage]]
"""Model calls that no summary counts yet: the names of the models, and what each call used."""

MERGE_COUNT = 8
"""This many summaries of similar size are merged into one, made from the originals: few cover a long thread."""
SMALL_SUMMARY_TOKENS: Final = 256
"""A summary of at most this many tokens is accepted, whatever it covers."""


class SummaryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A planned summary: the range, its messages, and the stream version at which it was planned."""

    stream: str
    covers: tuple[MessageSpan, ...]
    at_version: int
    messages: tuple[Message, ...]
    replaces: tuple[int, ...] = ()
    covered: int = 0
    """The number of messages, from the first on, that existing summaries cover already."""
    flushed: str | None = None
    """The scope that passages of the messages are written to, if any."""
    erasures: int = 0
    """The version of the stream that records erasures, before the messages were read."""


class SummaryText(msgspec.Struct, frozen=True, kw_only=True):
    """The text that replaces older messages, with its method and compaction level."""

    text: str
    strategy: str
    method: str
    """The maker of the text: the strategy, or the summarizer it called."""
    level: CompactionLevel
    state: dict[str, Any] | None = None
    usage: Usage | None = None
    """The usage of the model calls, if any."""


@contextmanager
def collect_calls(env: Env, calls: ModelCalls) -> Iterator[None]:
    """Add the model calls of summaries made in a block to a list; an error tells what they used.

    Calls of failed attempts stay in the list, and so are counted to the next summary that is written.
    """
    before = SUMMARY_CALLS.set(calls)
    try:
        yield
    except SummaryFailed as error:
        error.usage = sum_calls(env, calls)
        raise
    finally:
        SUMMARY_CALLS.reset(before)


def sum_calls(env: Env, calls: ModelCalls) -> Usage | None:
    """Return the usage of model calls with its cost; None without any call."""
    return sum((add_cost(env, usage, model) for model, usage in calls), NO_USAGE) if calls else None


def plan_summary(env: Env, stream: str, *, keep: Keep, whole: bool = False) -> SummaryPlan | None:
    """Plan a summary of the rounds older than the newest `keep` and not covered yet; None if there are none.

    With `whole`, include covered rounds: one summary for all, made from the originals. Without it, the newest summaries
    are merged as soon as there are enough of similar size, so that few cover a long thread.
    """
    erasures = env.journal.head(env.tenant, Scope.GLOBAL.text)
    state = load_current_state(env, stream)
    thread = thread_state(env, stream)
    if thread.ended and thread.fresh:
        return None  # The next message restarts the thread.
    if thread.ended:
        raise SessionClosed(f"{stream} has ended; there is nothing to make shorter.")
    older = iter_summaries(env, stream)
    replaced, rest = (list(older), []) if whole else ([], list(islice(older, 1)))
    found, messages, end = _measure_uncovered(env, stream, rest, keep)
    if end and not whole:
        replaced, rest = _pick_mergeable(end, chain(rest, older))
        found, messages, end = _measure_uncovered(env, stream, rest, keep) if replaced else (found, messages, end)
    covered = sum(1 for one in found if is_covered(one.stream, one.version, replaced))
    end = max(end, covered)  # A covered message is never uncovered again.
    if not end or (end == covered and len(replaced) < 2):
        return None
    return SummaryPlan(
        stream=stream,
        covers=list_spans(found[:end]),
        at_version=state.version,
        messages=tuple(messages[:end]),
        replaces=tuple(one.version for one in replaced if one.stream == stream),
        covered=covered,
        erasures=0 if erasures is None else erasures.version,
    )


def list_spans(places: Sequence[MessageLocation]) -> tuple[MessageSpan, ...]:
    """Return the spans of streams that consecutive messages of a thread lie in, oldest first."""
    found = []
    for stream, group in groupby(places, key=attrgetter("stream")):
        run = list(group)
        found.append(MessageSpan(stream, run[0].version, run[-1].version))
    return tuple(found)


def _measure_uncovered(
    env: Env, stream: str, known: Sequence[Summary], keep: Keep
) -> tuple[list[MessageLocation], list[Message], int]:
    """Return the uncovered places and messages, and how many of them are older than the rounds to keep."""
    first = {one.key for one in leading_instructions(env, stream)}
    # Summaries cover a thread from its start, so the uncovered messages are its end.
    end = takewhile(lambda place: not is_covered(*place.key, known), iter_places(env, stream))
    found = [one for one in end if one.key not in first][::-1]
    messages = load_messages(env, found)
    return found, messages, _count_older(messages, keep(messages))


def _pick_mergeable(new: int, older: Iterator[Summary]) -> tuple[list[Summary], list[Summary]]:
    """Pick summaries to merge with `new` messages: runs of similar size, newest first; also return the next one."""
    found: list[Summary] = []
    run: list[Summary] = []
    for summary in older:
        run.append(summary)
        if summary.messages > 2 * new:
            break
        if len(run) == MERGE_COUNT - 1:
            found, new, run = found + run, new + sum(one.messages for one in run), []
    return found, run[:1]


def _count_older(messages: Sequence[Message], keep: int) -> int:
    """Count the messages in whole rounds before the newest `keep` and before any open call."""
    found = [each[0] for each in group_rounds(messages)]
    end = min(found[max(len(found) - keep, 0) :], default=len(messages))
    answered = {one.tool_call_id: at for at, message in enumerate(messages) for one in message.tool_results}
    # A late result stands after its round: end the range before the first call not answered within it.
    while torn := [
        at
        for at, message in enumerate(messages[:end])
        if any(answered.get(call.id, end) >= end for call in message.tool_calls)
    ]:
        end = torn[0]
    return end


def write_summary(env: Env, plan: SummaryPlan, words: SummaryText, *, also: ExtraDrafts) -> Summary:
    """Write the summary of a plan; raise Conflict if the range has changed."""
    made = draft_summary(env, plan, words)

    def decide(states: States) -> Drafts:
        check_unchanged(env, plan, states)
        more = also(made.facts.summary)  # type: ignore[attr-defined]
        return {**more, plan.stream: [*more.get(plan.stream, ()), made]}

    streams = tuple(dict.fromkeys((plan.stream, plan.flushed or plan.stream)))
    changed = decide_and_append(env, streams, decide)
    return summary_from_draft(plan, made, changed.version_of("summary.made"))


def draft_summary(env: Env, plan: SummaryPlan, words: SummaryText) -> Draft:
    """Return the event of a summary; refuse one that is empty or would not make the context smaller."""
    text, state = words.text, words.state
    if not isinstance(text, str) or not text.strip():
        raise SummaryFailed("The summarizer said nothing, so nothing was changed. Try again, or use another one.")
    if env.redact is not None:
        text, state = redact.redact_text(env.redact, text), redact.redact_value(env.redact, state)
    tokenizer, info = thread_tokenizer(env, plan.stream)
    tokens = count_summary_tokens(text, tokenizer, framing_of(info.provider, info.name))
    check_shorter(plan.messages, tokens, message_counter(env, plan.stream))
    facts = summary_facts(
        plan.stream,
        plan.covers,
        plan.messages,
        summary=ulid_text(env.ids.ulid()),
        at_version=plan.at_version,
        tokens=tokens,
        tokenizer=tokenizer.name,
        method=words.method,
        level=str(words.level),
        replaces=plan.replaces,
        flushed=plan.flushed,
        usage=words.usage,
    )
    return Draft(type="summary.made", facts=facts, content=SummaryContent(text=text, state=state))


def summary_facts(stream: str, covers: Sequence[MessageSpan], messages: Sequence[Message], **more: Any) -> SummaryMade:
    """Return the facts of a summary of messages that lie in some spans."""
    own = next((one for one in covers if one.stream == stream), MessageSpan(stream, 0, 0))
    return SummaryMade(
        first=own.first,
        last=own.last,
        shared=tuple(one for one in covers if one.stream != stream),
        messages=len(messages),
        trust=lowest_trust(*{message.trust for message in messages}),
        **more,
    )


def check_unchanged(env: Env, plan: SummaryPlan, states: States) -> None:
    """Raise Conflict if the planned range has changed, or if somebody was erased since it was read."""
    thread = states[plan.stream].thread
    # A summary of erased words would bring them back: it must be made again, from what is left.
    place, types = Scope.GLOBAL.text, ("subject.erased",)
    erased = EventQuery(tenant=env.tenant, stream=place, after=plan.erasures, types=types, limit=1)
    if thread is None or thread.ended or thread.edited > plan.at_version or env.journal.read(erased):
        raise Conflict(
            f"The messages to summarise in {plan.stream} have changed meanwhile, so nothing was written. Try again."
        )


def summary_from_draft(plan: SummaryPlan, made: Any, version: int) -> Summary:
    """Return a summary that was just written, without reading it back."""
    return build_summary(plan.stream, version, made.facts, made.content)


def count_summary_tokens(text: str, tokenizer: Tokenizer, framing: Framing) -> int:
    """Count the tokens of a summary as it is shown."""
    return message_tokens(Message(role="user", content=SUMMARY_PREFIX + text), tokenizer.count, framing)


def message_counter(env: Env, stream: str) -> CountMessage:
    """Return a function that gives the tokens of a thread's stored messages, from their stored counts if any."""
    tokenizer, info = thread_tokenizer(env, stream)
    framing = framing_of(info.provider, info.name)

    def size(message: Message) -> int:
        return message_tokens(message, tokenizer.count, framing) if message.tokens is None else message.tokens

    return size


def count_saved_tokens(messages: Sequence[Message], size: CountMessage) -> int:
    """Count the tokens saved by a summary of these messages; pinned ones are still shown."""
    return sum(size(message) for message in messages if not message.pinned)


def check_shorter(messages: Sequence[Message], tokens: int, size: CountMessage) -> None:
    """Refuse a summary that takes no fewer tokens than the messages it covers, unless it is small."""
    saved = count_saved_tokens(messages, size)
    if tokens >= saved and tokens > SMALL_SUMMARY_TOKENS:
        raise SummaryFailed(
            f"The summary takes {tokens} tokens, and what it stands for takes {saved}. Nothing was changed; "
            "cover more, allow fewer tokens, or go on until there is more to summarise.",
            longer=True,
        )
