"""The model test of sessions can fail: each of their rules is broken on purpose, and a short walk must notice.

Every bug is a patch made here, never a switch in the source. The walk that notices is walked again without
the bug, so that it is the bug that was noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.journal import fold as journal_fold
from holdfast.core.journal import project
from holdfast.core.sessions import message_events as deciding
from holdfast.errors import ToolPairingError
from holdfast.flow.compaction import summaries
from holdfast.flow.journal.append import load_state
from holdfast.flow.packs import pack, recent
from holdfast.flow.packs.recent import TokenCounter
from holdfast.flow.sessions import append, branch, read, sessions
from holdfast.flow.sessions import summaries as session_summaries
from holdfast.records.batches import RowUpdate
from holdfast.records.events.sessions import MessageSpan, SharedSegment, ThreadForked
from holdfast.records.messages import Message
from tests.model.test_sessions_model import walk_once

Patch = pytest.MonkeyPatch
WALKS = 24


def fork_sees_later_retractions(patch: Patch) -> None:
    def forked(*, parent: str, shared: Sequence[SharedSegment], **facts: Any) -> Any:
        later = tuple(replace(one, at=read.LATEST) if one.stream == parent else one for one in shared)
        return ThreadForked(parent=parent, shared=later, **facts)

    patch.setattr(branch, "ThreadForked", forked)


def fork_forgets_open_calls(patch: Patch) -> None:
    original = branch._open_calls_at

    def open_at(env: Any, stream: str, place: Any, into: str) -> Any:
        return original(env, stream, place, into) if into == stream else []

    patch.setattr(branch, "_open_calls_at", open_at)


def rewind_leaves_calls_answered(patch: Patch) -> None:
    """A call whose result is taken back does not wait for another."""
    original = branch._retraction_facts

    def retraction(*args: Any) -> Any:
        return replace(original(*args), opened=())

    patch.setattr(branch, "_retraction_facts", retraction)


def rewind_does_not_set_positions_back(patch: Patch) -> None:
    original = branch._retraction_facts

    def retraction(env: Any, stream: str, line: Any, *args: Any) -> Any:
        return replace(original(env, stream, line, *args), position=line.messages)

    patch.setattr(branch, "_retraction_facts", retraction)


def summary_survives_what_it_stands_for(patch: Patch) -> None:
    patch.setattr(branch, "_find_voided_summaries", lambda *_: [])


def summary_covers_what_arrived_meanwhile(patch: Patch) -> None:
    original = summaries.write_summary

    def note(env: Any, plan: Any, text: str, **how: Any) -> Any:
        newest = read.thread_state(env, plan.stream).newest
        *rest, last = plan.covers
        if last.stream == plan.stream:
            last = MessageSpan(last.stream, last.first, newest)
        return original(env, replace(plan, covers=(*rest, last)), text, **how)

    patch.setattr(summaries, "write_summary", note)


def summary_tears_calls_from_results(patch: Patch) -> None:
    patch.setattr(summaries, "_count_older", lambda messages, keep: max(len(messages) - keep, 0))


def reset_leaves_old_messages(patch: Patch) -> None:
    fold, rows = journal_fold.THREAD_RULES["thread.ended"], project.SESSION_ROW_RULES["thread.ended"]

    def folded(line: Any, facts: Any, version: int, at: int) -> Any:
        after = fold(line, facts, version, at)
        return after and replace(after, floor=line.floor)

    def projected(facts: Any, version: int, at: int) -> Any:
        first, *rest = rows(facts, version, at)
        assert isinstance(first, RowUpdate)
        return [replace(first, values={k: v for k, v in first.values.items() if k != "floor"}), *rest]

    patch.setitem(journal_fold.THREAD_RULES, "thread.ended", folded)
    patch.setitem(project.SESSION_ROW_RULES, "thread.ended", projected)


def floor_ignored_when_reading(patch: Patch) -> None:
    original = read.thread_segments

    def segments(stream: str, line: Any) -> Any:
        return original(stream, replace(line, floor=0))

    for module in (read, session_summaries, branch):
        patch.setattr(module, "thread_segments", segments)


def end_forgets_other_lines(patch: Patch) -> None:
    original = sessions._end_drafts

    def ending(*args: Any) -> Any:
        drafts = original(*args)
        return dict(list(drafts.items())[:2])

    patch.setattr(sessions, "_end_drafts", ending)


def retracted_messages_in_packs(patch: Patch) -> None:
    original = read.iter_segment

    def places(env: Any, stream: str, page: int) -> Iterator[Any]:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(read, "is_standing", lambda row, segment: True)
            line = read.thread_state(env, stream)
            found = [p for s in read.thread_segments(stream, line) for p in original(env, s, backwards=True)]
        yield from found

    patch.setattr(recent, "iter_places", places)


def pinned_messages_left_out(patch: Patch) -> None:
    patch.setattr(read, "_iter_pinned", lambda env, line: [])


def system_prompt_not_counted(patch: Patch) -> None:
    original = TokenCounter.brief_segment
    patch.setattr(TokenCounter, "brief_segment", lambda *args: replace(original(*args), estimated_tokens=0))


def oldest_call_answered_first(patch: Patch) -> None:
    def waiting_for(waiting: Any, answer: Any) -> Any:
        named = answer.provider or answer.id
        fits = [call for call in waiting.values() if answer.id == call.id or named == call.provider]
        if not fits:
            raise ToolPairingError
        return next((call for call in fits if call.id == answer.id), min(fits, key=lambda call: call.version))

    patch.setattr(deciding, "_find_call", waiting_for)


def key_appends_twice(patch: Patch) -> None:
    original = append.decide_and_append

    def change(*args: Any, key: str | None = None, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    patch.setattr(append, "decide_and_append", change)


def remembered_states_not_compared(patch: Patch) -> None:
    """What another client did is not seen, as long as this one remembers something older."""
    for module in (read, sessions, summaries, pack):
        patch.setattr(module, "load_current_state", load_state)


def history_handed_over_in_part(patch: Patch) -> None:
    original = sessions.iter_segment_messages

    def span_of(*args: Any) -> Iterator[Message]:
        yield from list(original(*args))[1:]

    patch.setattr(sessions, "iter_segment_messages", span_of)


BUGS: list[Callable[[Patch], None]] = [
    fork_sees_later_retractions,
    fork_forgets_open_calls,
    rewind_leaves_calls_answered,
    rewind_does_not_set_positions_back,
    summary_survives_what_it_stands_for,
    summary_covers_what_arrived_meanwhile,
    summary_tears_calls_from_results,
    reset_leaves_old_messages,
    floor_ignored_when_reading,
    end_forgets_other_lines,
    retracted_messages_in_packs,
    pinned_messages_left_out,
    system_prompt_not_counted,
    oldest_call_answered_first,
    key_appends_twice,
    remembered_states_not_compared,
    history_handed_over_in_part,
]


@cache
def walk_without_bugs(seed: int) -> None:
    """Once for all the bugs that the same walk notices."""
    walk_once(seed, "memory")


@pytest.mark.parametrize("plant", BUGS, ids=[plant.__name__ for plant in BUGS])
def test_a_planted_bug_is_noticed_by_a_short_walk(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    for seed in range(WALKS):
        with monkeypatch.context() as patch:
            plant(patch)
            try:
                walk_once(seed, "memory")
            except AssertionError as noticed:
                print(str(noticed).splitlines()[0])
                break
    else:
        pytest.fail(f"{WALKS} walks did not notice: {plant.__name__}")
    walk_without_bugs(seed)
