"""A search gives what is live in its tenant, scope and line at that time, all of it and nothing else."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.search.words import flatten_value
from holdfast.types import SearchResult
from tests.edges.search_steps import STEPS
from tests.edges.search_world import SCOPES, TENANTS, WORDS, World
from tests.scale import seeded, volume

LENGTH = 60
ALL = 1_000
"""More than there is, and as many as may be asked for."""


def having(live: dict[Any, Any], words: Sequence[str]) -> set[Any]:
    """What says one of the words."""
    return {
        name for name, value in live.items() if set(re.findall("[a-z0-9]+", flatten_value(value, 9_999))) & set(words)
    }


def named(live: dict[str, Any], words: Sequence[str]) -> set[str]:
    """Entries that say one of the words, or are named by it."""
    return having(live, words) | having({key: key for key in live}, words)


def strangers(found: dict[Any, Any], live: dict[Any, Any]) -> list[Any]:
    """What was found and is not live, or not as it is now."""
    return [name for name, value in found.items() if name not in live or live[name] != value]


def search_a_scope(world: World, client: int, query: str, words: list[str], limit: int) -> None:
    place = (world.one(TENANTS), world.one(SCOPES))
    live, hidden = world.live(place), world.hidden(client, place)
    seen = {key: value for key, value in live.items() if key not in hidden}
    found = world.state(client, place).search(query, limit=limit)
    assert all(one.kind == "entry" and one.scope == place[1] for one in found)
    assert strangers({one.key: one.value for one in found}, seen) == [], f"{place} for {query!r}"
    assert limit < ALL or named(seen, words) <= {one.key for one in found}, f"{place} for {query!r}"


def search_a_line(world: World, client: int, query: str, words: list[str], limit: int) -> None:
    places = sorted(world.lines)
    if places:
        place = world.one(places)
        thread = world.one(world.lines[place])
        live = world.texts(place[0], world.lines[place][thread])
        found = world.session(client, place, thread).search(query, limit=limit)
        check_messages(found, live, f"{place} {thread} for {query!r}")
        assert limit < ALL or having(live, words) <= {one.key for one in found}, f"{place} {thread} for {query!r}"


def check_messages(found: Sequence[SearchResult], live: dict[str, str], where: str) -> None:
    """Every one of them is as it was said, and part of the line."""
    for one in found:
        assert (one.kind, one.key, one.value.erased) == ("message", one.value.id, False), where
        assert one.key in live, where
        assert one.value.text == live[one.key], where


def search_a_tenant(world: World, client: int, query: str, words: list[str], limit: int) -> None:
    tenant = world.one(TENANTS)
    found = world.view(client, tenant).search(query, limit=limit)
    entries = {(one.scope, one.key): one.value for one in found if one.kind == "entry"}
    wanted: set[Any] = set()
    for scope in SCOPES:
        hidden = world.hidden(client, (tenant, scope))
        seen = {key: value for key, value in world.live((tenant, scope)).items() if key not in hidden}
        wanted |= {(scope, key) for key in named(seen, words)}
        here = {key: value for (place, key), value in entries.items() if place == scope}
        assert strangers(here, seen) == [], f"{tenant} {scope} for {query!r}"
    messages = [one for one in found if one.kind == "message"]
    check_messages(messages, world.shared(tenant), f"{tenant} for {query!r}")
    wanted |= having(world.standing(tenant), words)
    assert limit < ALL or wanted <= entries.keys() | {one.key for one in messages}, f"{tenant} for {query!r}"


SEARCHES = (search_a_scope, search_a_line, search_a_tenant)


def look(world: World) -> None:
    """One search of each kind."""
    client, words = world.number(), [world.one(WORDS) for _ in range(world.random.randint(1, 2))]
    query = world.one((" ".join(words), f"What did you say about {words[0]} and the {words[-1]}?"))
    for search in SEARCHES:
        search(world, client, query, words, world.one((ALL, ALL, 2)))


def walk(seed: int, backend: str, *, vectors: bool, only: Sequence[Callable[[World], None]] = ()) -> None:
    """A history of steps on a new journal, of all kinds or only of some, with searches after each."""
    steps = {step: weight for step, weight in STEPS.items() if not only or step in only}
    with tempfile.TemporaryDirectory(prefix="holdfast-search-") as folder:
        world = World(seed, Path(folder) if backend == "sqlite" else None, meaning=vectors)
        done: list[str] = []
        try:
            for _ in range(LENGTH):
                (step,) = world.random.choices(list(steps), list(steps.values()))
                done.append(step.__name__)
                step(world)
                look(world)
            assert world.clients[0].journal.verify().findings == ()
        except AssertionError as error:
            raise AssertionError(f"{error}\nseed {seed} on {backend}, vectors={vectors}, after {done}") from error
        finally:
            world.close()


@pytest.mark.parametrize("vectors", [False, True], ids=["words", "meaning"])
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_search_finds_what_is_live_and_nothing_else(backend: str, vectors: bool) -> None:
    chance = seeded(f"search on {backend}")
    for _ in range(volume(3, 200)):
        walk(chance.randrange(2**32), backend, vectors=vectors)
