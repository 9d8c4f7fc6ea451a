"""The property of searches can fail: each rule of what may be given out is broken on purpose, and a walk must notice.

Every bug is a patch made here, never a switch in the source. The walk that notices is walked again without
the bug, so that it is the bug that was noticed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.search import documents, segments
from holdfast.core.search.documents import Hit, TextSearch
from holdfast.flow.state.store import TransientEntries
from holdfast.journal import text_index
from holdfast.journal.memory import journal as memory_journal
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.memory.search import MemoryTextIndex
from holdfast.records.events.sessions import SharedSegment
from tests.edges.search_steps import delete, erase, fork, lay_over, operate, reset, rewind, say, wait, write
from tests.edges.search_world import World
from tests.edges.test_tenant_search import walk

Patch = pytest.MonkeyPatch
SEEDS = 40


def admitting(patch: Patch, seen: Callable[[TextSearch, Hit], tuple[TextSearch, Hit]], besides: Any = None) -> None:
    """Let every search decide about something other than what it found, besides those of one module."""
    original = documents.is_match
    users = [module for name, module in sys.modules.items() if name.startswith("holdfast.") and module is not besides]
    for module in [module for module in users if getattr(module, "is_match", None) is original]:
        patch.setattr(module, "is_match", lambda search, hit: original(*seen(search, hit)))


def what_is_over_is_found(patch: Patch) -> None:
    admitting(patch, lambda search, hit: (search, replace(hit, expires_at=None)))


def what_is_over_is_found_by_meaning(patch: Patch) -> None:
    admitting(patch, lambda search, hit: (search, replace(hit, expires_at=None)), besides=text_index)


def what_was_retracted_is_found(patch: Patch) -> None:
    admitting(patch, lambda search, hit: (search, replace(hit, retracted=None)))


def what_a_fork_keeps_is_not_found(patch: Patch) -> None:
    admitting(patch, lambda search, hit: (search, replace(hit, retracted=None if hit.retracted is None else -1)))


def what_was_reset_is_found(patch: Patch) -> None:
    admitting(patch, lambda search, hit: (search, replace(hit, floor=0)))


def what_was_overwritten_is_found(patch: Patch) -> None:
    """By its vector: the index itself forgets it."""
    admitting(patch, lambda search, hit: (search, replace(hit, current=True)))


def lines_have_no_end(patch: Patch) -> None:
    """A fork finds what was said in its parent afterwards."""

    def seen(search: TextSearch, hit: Hit) -> tuple[TextSearch, Hit]:
        wide = tuple(SharedSegment(line.stream, line.after, 2**62, line.at) for line in search.threads)
        return replace(search, threads=wide), hit

    admitting(patch, seen)


def every_scope_is_searched(patch: Patch) -> None:
    original = MemoryTextIndex.search

    def find(self: Any, tenant: str, search: TextSearch, hit: Any) -> Any:
        return original(self, tenant, replace(search, threads=(), scopes=()) if search.scopes else search, hit)

    patch.setattr(MemoryTextIndex, "search", find)


def search_all_tenants(patch: Patch) -> None:
    """Let all tenants have one index."""
    original = MemoryTextIndex._locate

    def locate(self: Any, event: Any) -> Any:
        return replace(original(self, event), tenant=1)

    patch.setattr(MemoryTextIndex, "_locate", locate)
    patch.setattr(MemoryTextIndex, "_number", lambda self, tenant: 1)


def every_tenant_is_searched(patch: Patch) -> None:
    search_all_tenants(patch)


def what_lies_under_is_found(patch: Patch) -> None:
    patch.setattr(TransientEntries, "live_entries", lambda self, place, now: iter(()))


def the_first_word_is_not_indexed(patch: Patch) -> None:
    original = segments.index_words
    patch.setattr(segments, "index_words", lambda text: original(text)[1:])


def erased_texts_stay_as_they_were(patch: Patch) -> None:
    original = MemoryJournal._make_hit

    def hit(self: Any, seq: int, score: float) -> Hit:
        found = original(self, seq, score)
        kept = self.__dict__.setdefault("unerased", {})
        if found.event.content is None:
            return replace(found, event=kept.get(seq, found.event))
        kept[seq] = found.event
        return found

    patch.setattr(MemoryJournal, "_make_hit", hit)
    patch.setattr(MemoryJournal, "_event_with_content", lambda self, *place: self._event_at(*place))
    made: list[MemoryTextIndex] = []

    def make() -> MemoryTextIndex:
        made.append(MemoryTextIndex())
        return made[0]

    patch.setattr(memory_journal, "MemoryTextIndex", make)


BUGS: dict[Callable[[Patch], None], tuple[Callable[[World], None], ...]] = {
    what_is_over_is_found: (write, operate, wait),
    what_is_over_is_found_by_meaning: (write, operate, wait),
    what_was_retracted_is_found: (say, rewind),
    what_a_fork_keeps_is_not_found: (say, rewind, fork),
    what_was_reset_is_found: (say, reset),
    what_was_overwritten_is_found: (write, delete),
    lines_have_no_end: (say, fork),
    every_scope_is_searched: (write,),
    every_tenant_is_searched: (write, say),
    what_lies_under_is_found: (write, lay_over),
    the_first_word_is_not_indexed: (write, say),
    erased_texts_stay_as_they_were: (write, say, erase),
}
"""Each with the steps among which it must be noticed."""
BY_MEANING = (what_is_over_is_found_by_meaning, what_was_overwritten_is_found)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_search_that_finds_too_much_or_too_little_is_noticed(
    bug: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    vectors, only = bug in BY_MEANING, BUGS[bug]
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            bug(patch)
            try:
                walk(seed, "memory", vectors=vectors, only=only)
            except AssertionError:
                break
    else:
        raise AssertionError(f"{bug.__name__} was not noticed")
    walk(seed, "memory", vectors=vectors, only=only)
