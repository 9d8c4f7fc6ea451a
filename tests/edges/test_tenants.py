"""Removing one tenant's data changes no answer that another gets, over every public operation."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import holdfast
from holdfast import Settings
from tests.edges import (
    tenant_calls_agents,
    tenant_calls_events,
    tenant_calls_frames,
    tenant_calls_sessions,
    tenant_calls_state,
)
from tests.edges.tenant_actor import Actor, Place, by_words, difference
from tests.edges.tenant_calls import CALLS, FUNCTIONS, OF_THE_WHOLE, SILENT, functions, members
from tests.scale import seeded, volume

ALL = (tenant_calls_agents, tenant_calls_events, tenant_calls_frames, tenant_calls_sessions, tenant_calls_state)
"""The modules that fill the table."""


class Shared:
    """A journal on which two tenants do everything, in any order and in the middle of each other's work."""

    def __init__(self, place: Place, seed: int, calls: Sequence[str] = ()) -> None:
        self.place = place
        self.calls = sorted(calls or CALLS)
        self.acme, self.globex = Actor(place, "acme", seed), Actor(place, "globex", seed)
        self.random = random.Random(seed)
        self.nested = False
        self.acme.between = lambda: self._in_between(self.globex_acts, self.acme.at_work)
        self.globex.between = lambda: self._in_between(self.acme_acts, self.globex.at_work)
        self.told: list[tuple[int, str, Any]] = []
        """When acme called what, and the answer."""

    def _in_between(self, act: Callable[[str], None], at_work: str) -> None:
        """In the middle of what one does, the other does something, often the same."""
        if not self.nested:
            self.nested = True
            try:
                act(self.random.choice((at_work, self.random.choice(self.calls))))
            finally:
                self.nested = False

    def globex_acts(self, name: str) -> None:
        self.globex.act(CALLS[name].make)

    def acme_acts(self, name: str) -> None:
        self.told.append((self.place.clock.now_ms(), name, self.acme.act(CALLS[name].make)))

    def round(self) -> None:
        """Every call once by each tenant, with time passing."""
        turns = [(act, name) for act in (self.acme_acts, self.globex_acts) for name in self.calls]
        self.random.shuffle(turns)
        for act, name in turns:
            self.place.clock.advance(self.random.choice((0, 0, 1, 500, 20_000)))
            act(name)


def answers_alone(place: Place, seed: int, told: list[tuple[int, str, Any]]) -> Iterator[tuple[str, Any, Any]]:
    """What acme is told by the same calls at the same times on a journal of its own, beside what it was told."""
    acme = Actor(place, "acme", seed)
    for now, name, shared in told:
        place.clock.advance(now - place.clock.now_ms())
        yield name, shared, acme.act(CALLS[name].make)


def compare(
    folder: Path, backend: str, embedder: Any, seed: int, rounds: int, calls: Sequence[str] = ()
) -> dict[str, int]:
    """One history beside another tenant and once more without it; gives how often each call was not refused."""
    given = dict.fromkeys(CALLS, 0)
    with opened(folder, backend, embedder) as place:
        shared = Shared(place, seed, calls)
        for _ in range(rounds):
            shared.round()
        assert place.hf.journal.verify().findings == ()
    with opened(folder, backend, embedder) as place:
        for step, (name, beside, alone) in enumerate(answers_alone(place, seed, shared.told)):
            assert not (told := difference(beside, alone)), f"seed {seed}, step {step}: {name}{told}"
            given[name] += not (isinstance(alone, list) and alone[:1] == ["refused"])
    return given


@contextmanager
def opened(folder: Path, backend: str, embedder: Any = None) -> Iterator[Place]:
    """A new journal, and a client with room for little."""
    place = Place(
        "memory:" if backend == "memory" else Path(mkdtemp(dir=folder)) / "a.db",
        embedder=embedder,
        settings=Settings(cached_streams=4, cached_vectors=200, transient_entries=2),
    )
    with place.hf:
        yield place


@pytest.mark.parametrize("embedder", [None, by_words], ids=["words", "meaning"])
@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_no_answer_depends_on_another_tenant(tmp_path: Path, backend: str, embedder: Any) -> None:
    chance = seeded(f"tenants on {backend}")
    for _ in range(volume(1, 20)):
        compare(tmp_path, backend, embedder, chance.randrange(2**32), volume(2, 8))


# the table


def test_every_public_member_has_a_row() -> None:
    asked = {row for one in CALLS.values() for row in one.asks}
    public = {row for row, _, _ in members()}
    assert public - asked - set(SILENT) - OF_THE_WHOLE == set(), "what can be asked must be asked beside another tenant"
    assert (asked | set(SILENT) | OF_THE_WHOLE) - public == set(), "rows of what is no longer there"
    assert functions() == set(FUNCTIONS)


def test_every_call_asks_what_its_row_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    for row, kind, name in members():
        monkeypatch.setattr(kind, name, noting(seen, row, inspect.getattr_static(kind, name)), raising=False)
    missing = {name: set(one.asks) for name, one in CALLS.items()}
    with opened(Path(), "memory") as place:
        acme = Actor(place, "acme", 1)
        for _ in range(20):
            for name in [name for name, rows in missing.items() if rows]:
                seen.clear()
                acme.act(CALLS[name].make)
                missing[name] -= seen
    assert {name: rows for name, rows in missing.items() if rows} == {}


def noting(seen: set[str], row: str, member: Any) -> Any:
    """The same member, which notes that it was asked."""
    if isinstance(member, property):
        return property(noting(seen, row, member.fget))
    if not inspect.isfunction(member):
        return member

    @functools.wraps(member)
    def noted(*args: Any, **named: Any) -> Any:
        seen.add(row)
        return member(*args, **named)

    return noted


def test_every_call_is_answered_and_not_only_refused(tmp_path: Path) -> None:
    given = compare(tmp_path, "memory", None, 7, 3)
    assert [name for name, times in given.items() if not times] == []


# the journal as a whole


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_view_is_refused_what_is_about_every_tenant(tmp_path: Path, backend: str) -> None:
    with opened(tmp_path, backend) as place:
        place.hf.tenant("globex").journal.append("global", "app.noted")
        view = place.hf.tenant("acme")
        before = sorted(tmp_path.rglob("*"))
        for row in sorted(OF_THE_WHOLE):
            ask = getattr(view.as_user("ann").journal, row.partition(".")[2])
            given = [tmp_path / "copy"] if row.endswith(("backup", "export", "import_")) else []
            with pytest.raises(holdfast.Refused, match="as a whole"):
                ask(*given)
        with pytest.raises(holdfast.Refused, match="every tenant"):
            view.drain(0)
        with place.hf.tenant("globex").frame("goes on"):
            assert sorted(tmp_path.rglob("*")) == before
        assert place.hf.journal.tenants() == ["globex"]


def test_what_one_tenant_keeps_for_a_moment_takes_no_room_from_another() -> None:
    with opened(Path(), "memory") as place:
        for number in range(2):
            place.hf.tenant("globex").state("global").write(f"k{number}", 1, lifetime="transient")
        with pytest.raises(holdfast.errors.TooLarge):
            place.hf.tenant("globex").state("user/1").write("k", 1, lifetime="transient")
        assert place.hf.tenant("acme").state("global").write("k", 1, lifetime="transient") == 0
