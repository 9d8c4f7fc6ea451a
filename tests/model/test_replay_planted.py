"""Planted bugs in the rules of conversations: each is noticed, made from the start or by a later release."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.journal import fold, project
from holdfast.flow.journal import transfer
from holdfast.flow.journal.verify import verify
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.batches import RowDelete, RowInsert, RowReplace, RowUpdate
from holdfast.testing.clock import FrozenClock
from holdfast.testing.generate_sessions import SessionGenerator, check_session
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.writer import Writer

Rule = Callable[..., Any]
SEEDS = range(50, 74)
"""Stories in which every rule leaves a trace."""


def _without(kind: type, table: str) -> Callable[[Rule], Rule]:
    """The rule forgets a kind of change of one table."""
    return lambda rule: (
        lambda *given: [one for one in rule(*given) if not (isinstance(one, kind) and one.table == table)]
    )


def _forgets(table: str, *columns: str) -> Callable[[Rule], Rule]:
    """The rule forgets to update some columns."""

    def changed(one: Any) -> Any:
        if not isinstance(one, RowUpdate) or one.table != table:
            return one
        values = {name: value for name, value in one.values.items() if name not in columns}
        amounts = {name: value for name, value in one.amounts.items() if name not in columns}
        return RowUpdate(one.table, one.key, values, amounts)

    def kept(one: Any) -> bool:
        return not isinstance(one, RowUpdate) or bool(one.values or one.amounts)

    return lambda rule: lambda *given: list(filter(kept, map(changed, rule(*given))))


def _writes(table: str, **columns: Any) -> Callable[[Rule], Rule]:
    """The rule makes rows with other values."""
    return lambda rule: (
        lambda *given: [
            type(one)(one.table, {**one.row, **columns})
            if isinstance(one, RowInsert | RowReplace) and one.table == table
            else one
            for one in rule(*given)
        ]
    )


def _folds(**columns: Any) -> Callable[[Rule], Rule]:
    """The rule of folding leaves some fields as they were, or sets them."""

    def planted(rule: Rule) -> Rule:
        def wrong(before: Any, *given: Any) -> Any:
            after = rule(before, *given)
            if before is None or after is None:
                return after
            kept = {name: getattr(before, name) if value is None else value for name, value in columns.items()}
            return replace(after, **kept)

        return wrong

    return planted


PROJECTED = {
    "a session's settings are lost": ("session.changed", _without(RowUpdate, "sessions")),
    "a session that closes stays open": ("session.closing", _forgets("sessions", "status")),
    "a hand-over is not noted": ("session.closing", _without(RowInsert, "session_handovers")),
    "a hand-over is never done": ("session.offered", _without(RowDelete, "session_handovers")),
    "a failed hand-over is not counted": ("session.offered", _forgets("session_handovers", "attempts")),
    "a reset session is closed for good": ("session.closed", _forgets("sessions", "status")),
    "a generation is not counted": ("session.opened", _forgets("sessions", "generation")),
    "a thread is not noted": ("thread.added", _without(RowReplace, "session_threads")),
    "a branch shares nothing": ("thread.forked", _writes("threads", shared=None)),
    "calls of a branch do not wait": ("thread.forked", _without(RowReplace, "message_calls")),
    "a line does not end": ("thread.ended", _forgets("threads", "ended")),
    "a reset keeps what was said": ("thread.ended", _forgets("threads", "floor")),
    "calls wait for ever": ("thread.ended", _without(RowDelete, "message_calls")),
    "a message is no sign of life": ("message.appended", _forgets("threads", "newest_at")),
    "usage is not added up": ("message.appended", _forgets("threads", "input_tokens", "cost")),
    "what has no price is forgotten": ("message.appended", _forgets("threads", "unpriced_tokens")),
    "a call does not wait": ("message.appended", _without(RowReplace, "message_calls")),
    "an answered call still waits": ("message.appended", _without(RowDelete, "message_calls")),
    "no message begins pinned": ("message.appended", _writes("messages", pinned=0)),
    "what is retracted stands": ("message.retracted", _forgets("messages", "retracted")),
    "a summary of what is retracted stands": ("message.retracted", _forgets("summaries", "retired")),
    "a branch is not cut": ("message.retracted", _forgets("threads", "shared")),
    "a retraction reopens no call": ("message.retracted", _without(RowReplace, "message_calls")),
    "nothing is pinned": ("message.pinned", _without(RowUpdate, "messages")),
    "a replaced summary stands": ("summary.made", _forgets("summaries", "retired")),
    "counts are not kept": ("tokens.counted", _without(RowReplace, "message_counts")),
    "a summary is no edit": ("summary.made", _forgets("threads", "edited")),
    "a pack is not noted": ("context.packed", _forgets("threads", "packed")),
}

FOLDED = {
    "settings are not folded": ("session.changed", _folds(model=None, title=None)),
    "a hand-over is forgotten": ("session.closing", _folds(handovers=None)),
    "a hand-over is never forgotten": ("session.offered", _folds(handovers=None)),
    "threads are not folded": ("thread.added", _folds(threads=None)),
    "a line that began anew is still fresh": ("thread.opened", _folds(fresh=True)),
    "an ended line is not": ("thread.ended", _folds(ended=False)),
    "usage is not folded": ("message.appended", _folds(usage=None)),
    "calls are not folded": ("message.appended", _folds(calls=None)),
    "what is left of a branch is not folded": ("message.retracted", _folds(shared=None)),
    "calls of what is retracted wait": ("message.retracted", _folds(calls=None)),
    "an edit is not folded": ("summary.made", _folds(edited=None)),
    "a pack is not folded": ("context.packed", _folds(packed=None)),
}

# Counts by further tokenizers only save work: nothing else says that they were made.
ONLY_ROWS = {"counts are not kept"}


def _tell() -> tuple[Writer, list[SessionGenerator]]:
    """Many short stories: a wrong rule shows only where its effect was not undone later."""
    clock = FrozenClock()
    writer = Writer(MemoryJournal(), clock=clock)
    stories = []
    for seed in SEEDS:
        endings = 0.6 if seed % 2 else 0.0
        story = SessionGenerator(Random(seed), writer.env.ids, f"s{seed}", ("alice",), endings=endings)
        for _ in range(2):
            clock.advance(5)
            writer.write(*story.step(8 if seed % 2 else 15))
        stories.append(story)
    return writer, stories


def _noticed(writer: Writer, stories: list[SessionGenerator]) -> bool:
    if verify(writer.env).findings:
        return True
    try:
        for story in stories:
            check_session(writer.env, story)
    except AssertionError:
        return True
    return False


@pytest.fixture(scope="module")
def told() -> tuple[Writer, list[SessionGenerator]]:
    """Stories that were written with the rules as they are."""
    return _tell()


def test_sound_rules_raise_no_alarm(told: tuple[Writer, list[SessionGenerator]]) -> None:
    assert not _noticed(*told)


@pytest.mark.parametrize("bug", sorted(PROJECTED))
def test_wrong_rows_are_noticed(
    bug: str, told: tuple[Writer, list[SessionGenerator]], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, stories = told
    name, plant = PROJECTED[bug]
    monkeypatch.setitem(project.SESSION_ROW_RULES, name, plant(project.SESSION_ROW_RULES[name]))
    # A later release that projects otherwise than the one that wrote.
    assert "rows" in {finding.kind for finding in verify(writer.env).findings}
    # Rows that were wrong from the start.
    twin = Writer(MemoryJournal())
    twin.env.journal.restore(writer.env.journal.secret, transfer.read_items(writer.env))
    assert dump_projections(twin.env.journal) != dump_projections(writer.env.journal)
    assert _noticed(twin, stories) or bug in ONLY_ROWS


@pytest.mark.parametrize("bug", sorted(FOLDED))
def test_states_that_are_folded_otherwise_are_noticed(
    bug: str, told: tuple[Writer, list[SessionGenerator]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, plant = FOLDED[bug]
    rules: dict[str, Any] = fold.THREAD_RULES if name in fold.THREAD_RULES else fold.SESSION_RULES
    monkeypatch.setitem(rules, name, plant(rules[name]))
    assert "state" in {finding.kind for finding in verify(told[0].env).findings}
