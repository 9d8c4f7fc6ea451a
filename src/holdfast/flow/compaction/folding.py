"""A conversation made shorter, by any strategy: a summary stands for whole older rounds, and nothing is removed.

What is covered is fixed first, then told in other words, then written by compare-and-set. Calls that wait for their
results, and everything behind them, are never covered. What is to be found again is written in the same commit.
A strategy that fails changes nothing; `fold_somehow` then tries the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction.passages import of_messages
from holdfast.core.compaction.strategies import rounds_within
from holdfast.errors import Conflict, SummaryFailed, TooLarge
from holdfast.flow.compaction import recalling, summing
from holdfast.flow.compaction.configuring import check
from holdfast.flow.compaction.summing import Also, Keep, Plan
from holdfast.flow.compaction.weighing import sizes
from holdfast.flow.compaction.wording import Words, shortened, told
from holdfast.flow.conversation.conversing import session_behind
from holdfast.flow.conversation.lines import Place, bodies, places, places_after
from holdfast.ports import Acting, Ports, Summarizer
from holdfast.records.compaction import CompactionConfig
from holdfast.records.events.conversations import MessagePinned
from holdfast.records.events.envelope import Draft
from holdfast.records.lines import Summary
from holdfast.records.messages import Message
from holdfast.records.rows import Span
from holdfast.records.scope import Scope

TRIES: Final = 3
FIRST: Final = 16
"""How many messages at the beginning of a line are searched for what the user came for."""
MOST_GOAL: Final = 1_000
"""Characters of it that are told where it cannot be pinned."""
NEXT: Final[dict[str, tuple[str, ...]]] = {
    "summarise_oldest": ("extract_state", "sliding_window"),
    "extract_state": ("sliding_window",),
}
"""What is tried where a strategy fails."""

Write = Callable[[Plan, Words, Also], Summary]
"""How a summary is written, where it is written together with something else."""


class Failed(msgspec.Struct, frozen=True):
    """A strategy that changed nothing, and why."""

    strategy: str
    error: SummaryFailed | TooLarge

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.strategy}: {self.error}"

    @property
    def longer(self) -> bool:
        """Whether it only made nothing shorter."""
        return isinstance(self.error, SummaryFailed) and self.error.longer


def fold(
    ports: Ports,
    acting: Acting,
    stream: str,
    config: CompactionConfig,
    summarizer: Summarizer,
    *,
    within: int | None = None,
    whole: bool = False,
    write: Write | None = None,
) -> Summary | None:
    """Let a summary stand for older rounds; None if there are none that it could stand for.

    `within` says how many tokens the rounds that stay may take at most. `write` writes it with something else.
    """
    check(ports, config)
    for attempt in range(1, TRIES + 1):
        plan = planned(ports, acting, stream, config, within=within, whole=whole)
        if plan is None:
            return None
        words = told(ports, acting, plan, config, summarizer)
        try:
            return noted(ports, acting, plan, words, config, write)
        except Conflict:
            if attempt == TRIES:
                raise
    return None


def fold_somehow(
    ports: Ports,
    acting: Acting,
    stream: str,
    config: CompactionConfig,
    summarizer: Summarizer,
    *,
    within: int | None = None,
    write: Write | None = None,
) -> tuple[Summary | None, list[Failed]]:
    """The same, with the next strategy where one fails; gives also what went wrong."""
    failed: list[Failed] = []
    for strategy in (config.strategy, *NEXT.get(config.strategy, ())):
        tried = replace(config, strategy=strategy)
        try:
            return fold(ports, acting, stream, tried, summarizer, within=within, write=write), failed
        except (SummaryFailed, TooLarge) as error:
            failed.append(Failed(strategy, error))
    return None, failed


def planned(
    ports: Ports,
    acting: Acting,
    stream: str,
    config: CompactionConfig,
    *,
    within: int | None = None,
    whole: bool = False,
) -> Plan | None:
    """What is to be covered: whole rounds before those that stay and before any call that waits."""
    plan = summing.plan(ports, acting, stream, keep=_keep(ports, acting, stream, config, within), whole=whole)
    # What is pinned stays as it is: nothing is saved by telling it in other words.
    return None if plan is None or all(message.pinned for message in plan.messages) else plan


def _keep(ports: Ports, acting: Acting, stream: str, config: CompactionConfig, within: int | None) -> Keep:
    """How many rounds stay: so many, or those with so many messages, and within so many tokens."""
    size = sizes(ports, acting, stream)

    def keep(messages: Sequence[Message]) -> int:
        most = config.keep
        if config.strategy == "truncate_at":
            most = min(most, rounds_within(messages, most, lambda message: 1))
        return most if within is None else min(most, rounds_within(messages, within, size))

    return keep


def noted(
    ports: Ports, acting: Acting, plan: Plan, words: Words, config: CompactionConfig, write: Write | None = None
) -> Summary:
    """Write what a strategy made, together with what is flushed, and with the pin on what the user came for."""
    goal = _goal(ports, acting, plan) if config.keep_goal else None
    own = goal is not None and goal.stream == plan.stream
    if goal is not None and not own:
        words = _with_goal(ports, acting, words, goal, config.max_length)
    plan = _staying(plan, goal) if goal is not None and own else plan
    scope = flush_scope(ports, acting, plan.stream, config)

    def drafts(summary: str) -> dict[str, Sequence[Draft]]:
        found: dict[str, Sequence[Draft]] = {}
        if scope is not None:
            # What a summary stood for before was flushed with that one, if it was to be.
            gone = [message for message in plan.messages[plan.covered :] if not message.pinned]
            found[scope] = recalling.flushed(ports, acting, scope, summary, of_messages(gone))
        if goal is not None and own:
            pinned = Draft(type="message.pinned", facts=MessagePinned(version=goal.version))
            found[plan.stream] = [*found.get(plan.stream, ()), pinned]
        return found

    also = Also(streams=() if scope is None else (scope,), drafts=drafts)
    if write is not None:
        return write(plan, words, also)
    return summing.note(
        ports, acting, plan, words.text, method=words.method, level=str(words.level), state=words.state, also=also
    )


def flush_scope(ports: Ports, acting: Acting, stream: str, config: CompactionConfig) -> str | None:
    """Where what is compacted is written to: the session's scope unless another is named; None if nowhere."""
    if isinstance(config.store, str):
        return Scope.of(config.store).text
    return session_behind(ports, acting, stream) if config.store else None


def _goal(ports: Ports, acting: Acting, plan: Plan) -> Place | None:
    """The first thing that the user said, if it is about to be covered and nobody pinned it."""
    covered = {(message.stream, message.version) for message in plan.messages}
    for place in islice(places_after(ports, acting, plan.stream), FIRST):
        if place.row["role"] == "user":
            return None if place.row["pinned"] or (place.stream, place.version) not in covered else place
    return None


def _staying(plan: Plan, goal: Place) -> Plan:
    """The same with what is pinned in its commit: it stays, so nothing is saved by it."""
    place = (goal.stream, goal.version)
    return replace(
        plan,
        messages=tuple(
            replace(one, pinned=True) if (one.stream, one.version) == place else one for one in plan.messages
        ),
    )


def _with_goal(ports: Ports, acting: Acting, words: Words, goal: Place, most: int | None) -> Words:
    """In a branch the first message may belong to another line, where only that line can pin it: then it is told."""
    said = bodies(ports, acting, [goal])[0].text[:MOST_GOAL]
    longer = replace(words, text=f"What the user asked for first: {said}\n{words.text}")
    return longer if most is None else shortened(longer, most)


def uncovered(ports: Ports, acting: Acting, stream: str, *, enough: int | None = None) -> tuple[int, int]:
    """How many messages of a line no summary covers, and their tokens; not counted further once they are `enough`."""
    newest = next(summing.standing(ports, acting, stream), None)
    messages = tokens = 0
    for place in places(ports, acting, stream):
        if (newest is not None and summing.is_covered(place, (newest,))) or (enough is not None and tokens > enough):
            break
        messages += 1
        tokens += int(place.row["tokens"] or 0)
    return messages, tokens


def last_covered(ports: Ports, acting: Acting, stream: str) -> int:
    """The position of the newest message that a summary covers; 0 if none is."""
    newest = next(summing.standing(ports, acting, stream), None)
    if newest is None:
        return 0
    end = newest.covers[-1]
    span = Span(table="messages", after=end.last - 1, until=end.last, limit=1)
    return max((int(row["position"] or 0) for row in ports.journal.span(acting.tenant, end.stream, span)), default=0)
