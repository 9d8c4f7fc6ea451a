"""Whatever there is to pack, however it is asked for: within the budget, valid, complete, the same again, and true."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import holdfast
from tests.packs import pack_trials
from tests.packs.interleaved import interleaved
from tests.packs.worlds import asks, world
from tests.scale import seeded, volume


def seeds(name: str, test: int, soak: int) -> Iterator[int]:
    """As many as this run has time for."""
    rng = seeded(name)
    return (rng.randrange(2**32) for _ in range(volume(test, soak)))


def test_a_pack_fits_is_valid_and_has_everything_that_is_critical() -> None:
    for seed in seeds("packs", 40, 2_000):
        assert pack_trials.packs(seed) == []


def test_a_larger_budget_loses_nothing_and_the_least_one_is_known_exactly() -> None:
    for seed in seeds("budgets", 18, 1_000):
        assert pack_trials.budgets(seed) == []


def test_the_same_pack_is_made_again_by_anybody(tmp_path: Path) -> None:
    for number, seed in enumerate(seeds("again", 8, 200)):
        assert pack_trials.again(seed, tmp_path / f"{number}.db") == []


def test_no_more_is_said_to_be_cached_than_the_last_request_began_with() -> None:
    for seed in seeds("kept", 18, 1_000):
        assert pack_trials.kept(seed) == []


def test_what_is_kept_in_memory_is_never_older_than_the_journal(tmp_path: Path) -> None:
    for number, seed in enumerate(seeds("interleaved", 8, 300)):
        assert interleaved(seed, tmp_path / f"{number}.db") == []


def test_looking_changes_nothing() -> None:
    for seed in seeds("looking", 5, 200):
        rng = random.Random(seed)
        with holdfast.open("memory:") as hf, world(hf, rng) as found:
            budget = found.required(1) + rng.choice([20, 200, 1_000])
            before, at = found.pack(budget), hf.journal.position()
            for _ in range(5):
                found.pack(found.required(1) + rng.randint(0, 2_000), **asks(found) | {"exclude": [], "include": []})
            assert hf.journal.position() == at
            found.forget()
            assert found.pack(budget).digest == before.digest


def test_what_was_erased_is_counted_as_it_is_shown() -> None:
    with holdfast.open("memory:") as hf:
        chat = hf.session("s", model="gpt-4o")
        hf.as_user("bob").session("s").append("I am Bob. " * 40)
        chat.append("Go on.")
        hf.journal.erase("bob")
        pack = chat.pack(200)
        assert [message.text for message in pack.messages] == ["[erased]", "Go on."]
        assert pack.tokens < 30
        assert pack.level == "none"
