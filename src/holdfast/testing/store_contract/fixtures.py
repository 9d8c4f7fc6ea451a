"""What the parts of the stores' contract share: fixtures, values of every kind, and a toy embedder."""

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
WHOLE: Final = (0, -1, 2**53 + 1, 2**63 - 1, -(2**63))
BROKEN: Final = (-0.0, 0.1, 1.0, 5e-324, 1.7976931348623157e308, 1e16)


class StoreFixtures:
    """A new store under a clock that stands still. `scale` multiplies the volumes of property tests."""

    scale: ClassVar[int] = 1

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Overridden by the subclass: `make(clock, place=…, **options)` opens the store of that name."""
        raise NotImplementedError("Give your subclass of StoreContract a fixture make_store.")

    @pytest.fixture
    def clock(self) -> FrozenClock:
        """The time of every store of a test."""
        return FrozenClock()

    @pytest.fixture
    def random(self, request: pytest.FixtureRequest) -> Random:
        """Chance, the same in every run. Override it to try others."""
        return Random(request.node.name)  # noqa: S311  # nosec B311: repeatable is the point

    @pytest.fixture
    def open_at(self, make_store: MakeStore, clock: FrozenClock) -> Iterator[OpenAt]:
        """Opens a store by the name of its place, and closes it at the end."""
        opened: list[StateStore] = []

        def open_at(place: str = "one", **options: Any) -> StateStore:
            opened.append(make_store(clock, place=place, **options))
            return opened[-1]

        yield open_at
        for store in opened:
            store.close()

    @pytest.fixture
    def store(self, open_at: OpenAt) -> StateStore:
        """One new store."""
        return open_at()

    @pytest.fixture
    def state(self, store: StateStore) -> State:
        """One scope of it."""
        return store(SCOPE)


def port_of(store: StateStore) -> Store:
    """The backend below the public face."""
    return store._storage.store


def seen(state: State) -> list[Entry]:
    """Everything a reader can see of a scope: what was refused has changed none of it."""
    return list(state.entries())


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal and of the same types: 1 is not 1.0, and -0.0 is not 0.0."""
    return encode(one) == encode(other)


def any_text(random: Random, most: int = 12) -> str:
    """Text of letters that other formats give a meaning to."""
    return "".join(random.choices(LETTERS, k=random.randrange(most)))


def any_value(random: Random, depth: int = 0) -> Any:
    """A JSON value of any kind."""
    kind = random.randrange(6 if depth > 4 else 9)
    if kind < 2:
        return random.choice((None, True, False, "", [], {}))
    if kind == 2:
        return random.choice((*WHOLE, *BROKEN, random.randrange(-(2**63), 2**63)))
    if kind == 3:
        return random.uniform(-1, 1) * 10.0 ** random.randrange(-300, 300)
    if kind < 6:
        return any_text(random)
    if kind == 6:
        return [any_value(random, depth + 1) for _ in range(random.randrange(4))]
    return {any_text(random): any_value(random, depth + 1) for _ in range(random.randrange(4))}


def at_once(threads: int, act: Callable[[int], None]) -> None:
    """Run something in threads that begin together; what one of them raises is raised here."""
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
    """Vectors of which those of words that mean the same are the same: what a model knows, in four lines."""

    name = "toy"
    dimensions = 16
    MEANINGS: ClassVar = {"automobile": 0, "car": 0, "physician": 1, "doctor": 1, "purchase": 2, "buy": 2}

    def embed(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        """One vector for each text; other words have each their own direction."""
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> bytes:
        numbers = [0.0] * self.dimensions
        for word in text.lower().split():
            letters = sum(word.encode()) % (self.dimensions - 3) + 3
            numbers[self.MEANINGS.get(word, letters)] += 1.0
        length = math.sqrt(sum(number * number for number in numbers)) or 1.0
        return bytes(round(127 * number / length) % 256 for number in numbers)
