"""Fixtures, random values and a toy embedder, shared by the parts of the stores' contract."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, ClassVar, Final

import pytest

from holdfast.client.state import State, StateStore
from holdfast.core.journal.codec import encode
from holdfast.ports import Store
from holdfast.records.entries import Entry
from holdfast.testing.clock import FrozenClock

MakeStore = Callable[..., StateStore]
OpenAt = Callable[..., StateStore]

SCOPE: Final = "user/42"
LETTERS: Final = "aZ09 _-./\\\"'%{}[]<>&\n\t\u00e9\u4e16\u05d0\u2028\ufeff\uffff🙂"
INTEGERS: Final = (0, -1, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS: Final = (-0.0, 0.1, 1.0, 5e-324, 1.7976931348623157e308, 1e16)


class StoreFixtures:
    """Fixtures for a new store under a frozen clock. `scale` multiplies the volumes of the randomised tests."""

    scale: ClassVar[int] = 1

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Return `make(clock, place=…, **options)`, which opens the store of that name. The subclass overrides this."""
        raise NotImplementedError("Give your subclass of StoreContract a fixture make_store.")

    @pytest.fixture
    def clock(self) -> FrozenClock:
        """Return the clock of every store of a test."""
        return FrozenClock()

    @pytest.fixture
    def random(self, request: pytest.FixtureRequest) -> Random:
        """Return a random source that is the same in every run. Override it to try others."""
        return Random(request.node.name)  # noqa: S311  # nosec B311: repeatable is the point

    @pytest.fixture
    def open_at(self, make_store: MakeStore, clock: FrozenClock) -> Iterator[OpenAt]:
        """Yield a function that opens a store by the name of its place; its stores are closed at the end."""
        opened: list[StateStore] = []

        def open_at(place: str = "one", **options: Any) -> StateStore:
            opened.append(make_store(clock, place=place, **options))
            return opened[-1]

        yield open_at
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_at: OpenAt) -> StateStore:
        """Return one new store."""
        return open_at()

    @pytest.fixture
    def state(self, store: StateStore) -> State:
        """Return one scope of the store."""
        return store(SCOPE)


def store_backend(store: StateStore) -> Store:
    """Return the backend below the public store."""
    return store.storage.store


def list_entries(state: State) -> list[Entry]:
    """Return everything a reader can see of a scope; a refused call must leave it unchanged."""
    return list(state.entries())


def is_identical(one: Any, other: Any) -> bool:
    """Return True if two values are equal and of the same types: 1 is not 1.0, and -0.0 is not 0.0."""
    return encode(one) == encode(other)


def random_text(random: Random, most: int = 12) -> str:
    """Return random text of characters that other formats treat specially."""
    return "".join(random.choices(LETTERS, k=random.randrange(most)))


def random_value(random: Random, depth: int = 0) -> Any:
    """Return a random JSON value of any kind."""
    kind = random.randrange(6 if depth > 4 else 9)
    if kind < 2:
        return random.choice((None, True, False, "", [], {}))
    if kind == 2:
        return random.choice((*INTEGERS, *FLOATS, random.randrange(-(2**63), 2**63)))
    if kind == 3:
        return random.uniform(-1, 1) * 10.0 ** random.randrange(-300, 300)
    if kind < 6:
        return random_text(random)
    if kind == 6:
        return [random_value(random, depth + 1) for _ in range(random.randrange(4))]
    return {random_text(random): random_value(random, depth + 1) for _ in range(random.randrange(4))}


def run_in_threads(threads: int, act: Callable[[int], None]) -> None:
    """Run a function in threads that start together; an error of one of them is raised here."""
    errors: list[BaseException] = []
    gate = threading.Barrier(threads)

    def run(number: int) -> None:
        gate.wait()
        try:
            act(number)
        except BaseException as error:  # noqa: BLE001  it is raised where it can be seen
            errors.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


class ToyEmbedder:
    """An embedder that gives synonyms the same vector, in place of a model."""

    name = "toy"
    dimensions = 16
    MEANINGS: ClassVar = {"automobile": 0, "car": 0, "physician": 1, "doctor": 1, "purchase": 2, "buy": 2}

    def embed(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        """Return a vector for each text; words without a known meaning get a direction from their letters."""
        return [self._embed_one(text) for text in texts]

    def _embed_one(self, text: str) -> bytes:
        numbers = [0.0] * self.dimensions
        for word in text.lower().split():
            letters = sum(word.encode()) % (self.dimensions - 3) + 3
            numbers[self.MEANINGS.get(word, letters)] += 1.0
        length = math.sqrt(sum(number * number for number in numbers)) or 1.0
        return bytes(round(127 * number / length) % 256 for number in numbers)
