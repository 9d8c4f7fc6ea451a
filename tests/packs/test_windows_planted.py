"""Planted bugs in what is remembered of a line, and in what is said to be cached: each is caught by a test."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast
from holdfast.core.packs import assemble, manifest
from holdfast.flow.packs import manifest as pack_manifest
from holdfast.flow.packs import recent
from holdfast.flow.packs.recent import ThreadTail
from tests.packs import test_cached_share as cached
from tests.packs import test_remembered_windows as remembered
from tests.packs.interleaved import interleaved
from tests.packs.test_remembered_windows import Clients, clients

__all__ = ["clients"]

Plant = Callable[[pytest.MonkeyPatch], None]


# memories that are no longer true


class Anything:
    """A collection that has everything."""

    def __contains__(self, one: object) -> bool:
        return True


def whatever_happens_is_growth(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recent, "GROWTH_TYPES", Anything())
    patch.setattr(recent, "_HISTORY", lambda thread: None)
    patch.setattr(recent, "_SOURCES", attrgetter("request"))


def erasures_are_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recent, "_SOURCES", attrgetter("source_versions", "request"))


def lines_that_are_shared_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recent, "_SOURCES", attrgetter("erased", "request"))


def first_instructions_and_pins_come_only_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recent, "_affects_kept", lambda known, new: False)


def what_was_read_once_is_kept_however_long_it_gets(patch: pytest.MonkeyPatch) -> None:
    end = recent._take_until_full

    def all_of_it(newest_first: Any, wanted: Any) -> Any:
        return (newest_first, None) if isinstance(newest_first, list) else end(newest_first, wanted)

    patch.setattr(recent, "_take_until_full", all_of_it)


def a_result_of_a_pinned_call_is_nothing_new(patch: pytest.MonkeyPatch) -> None:
    def changes(known: ThreadTail, new: Any) -> bool:
        return len(known.places) == known.leading or any(place.row["pinned"] for place in new)

    patch.setattr(recent, "_affects_kept", changes)


def reads_without_instructions(patch: pytest.MonkeyPatch, skips: Callable[[ThreadTail], bool]) -> None:
    """Let a tail that is remembered decide alone, whatever happened since, if first instructions are looked for."""
    read = recent._read_tail

    def look(env: Any, stream: str, now: ThreadTail, counter: Any, *, plain: bool) -> ThreadTail:
        known = None if env.recent is None else env.recent.get((env.tenant, stream, now.request.kept_as))
        return read(env, stream, now, counter, plain=known is not None and skips(known))

    patch.setattr(recent, "_read_tail", look)


def a_line_always_begins_as_it_once_did(patch: pytest.MonkeyPatch) -> None:
    reads_without_instructions(patch, lambda known: bool(known.places) and not known.leading)


def the_pack_that_was_journaled_first_stays_the_last(patch: pytest.MonkeyPatch) -> None:
    ending, first = recent.read_tail, dict[int, Any]()

    def never_looked_at_again(env: Any, *rest: Any) -> ThreadTail:
        found = ending(env, *rest)
        if found.packed is None or found.thread is None or not env.settings.cached_windows:
            return found
        seen = first.setdefault(id(env), found.packed)
        return replace(found, packed=replace(seen, version=found.thread.packed))

    patch.setattr(recent, "read_tail", never_looked_at_again)


def no_line_has_first_instructions(patch: pytest.MonkeyPatch) -> None:
    reads_without_instructions(patch, lambda known: True)


MEMORIES: list[tuple[Plant, Callable[[Clients], None]]] = [
    (erasures_are_not_looked_for, remembered.test_what_another_client_erased_is_gone),
    (lines_that_are_shared_are_not_looked_at, remembered.test_a_pin_in_a_line_is_seen_in_those_that_branched_off),
    (first_instructions_and_pins_come_only_once, remembered.test_first_instructions_may_come_one_by_one),
    (
        a_line_always_begins_as_it_once_did,
        lambda clients: remembered.test_what_a_line_begins_with_now_is_shown_in_a_pack_of_any_size(
            clients, remembered.emptied
        ),
    ),
    (
        the_pack_that_was_journaled_first_stays_the_last,
        remembered.test_the_pack_that_another_client_journaled_last_is_where_the_window_stays,
    ),
    (
        no_line_has_first_instructions,
        lambda clients: remembered.test_packs_of_different_sizes_by_turns_are_what_they_would_be_alone(
            clients, ("developer", "Use metres.")
        ),
    ),
    (
        a_result_of_a_pinned_call_is_nothing_new,
        lambda clients: remembered.test_a_pinned_call_gets_its_result(clients, 3),
    ),
    (
        what_was_read_once_is_kept_however_long_it_gets,
        remembered.test_where_reading_stops_at_something_long_nobody_shows_more,
    ),
    (what_was_read_once_is_kept_however_long_it_gets, remembered.test_what_is_kept_does_not_grow_with_the_conversation),
]


@pytest.mark.parametrize(("plant", "test"), MEMORIES, ids=[plant.__name__ for plant, _ in MEMORIES])
def test_a_memory_that_is_no_longer_true_is_caught(
    plant: Plant, test: Callable[[Clients], None], clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test(clients)


def test_a_memory_that_never_looks_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whatever_happens_is_growth(monkeypatch)
    assert any(interleaved(seed, tmp_path / f"{seed}.db") for seed in range(30))


# what is said to be cached


def gaps_in_what_is_cached_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    same = manifest._is_continued_by
    anything = {("session/s/thread/main", at): ("session/s/thread/main", at + 2) for at in range(99)}
    patch.setattr(
        manifest, "_is_continued_by", lambda piece, origin, reached, follows: same(piece, origin, reached, anything)
    )


def the_rest_of_what_was_there_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    count = assemble.count_common_tokens

    def only_first_pieces(before: Any, segments: Any, follows: Any) -> int:
        return count(tuple({(piece.kind, piece.id): piece for piece in before[::-1]}.values())[::-1], segments, follows)

    patch.setattr(assemble, "count_common_tokens", only_first_pieces)


def erased_texts_are_said_to_be_cached(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pack_manifest, "has_erasure_since", lambda env, cursor: False)


CACHED: list[tuple[Plant, Callable[[Holdfast], None]]] = [
    (gaps_in_what_is_cached_are_not_seen, cached.test_what_is_shown_after_something_that_went_is_not_cached),
    (the_rest_of_what_was_there_is_not_seen, cached.test_another_brief_is_not_cached),
    (erased_texts_are_said_to_be_cached, cached.test_what_was_erased_since_is_not_cached),
]


@pytest.mark.parametrize(("plant", "test"), CACHED, ids=[plant.__name__ for plant, _ in CACHED])
def test_a_cache_that_is_not_there_is_caught(
    plant: Plant, test: Callable[[Holdfast], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with holdfast.open("memory:") as hf, pytest.raises(AssertionError):
        test(hf)
