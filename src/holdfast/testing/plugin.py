"""The pytest plugin: fixtures that need no set-up."""

from __future__ import annotations

import pytest

from holdfast.testing.clock import FrozenClock, SeededIds


@pytest.fixture
def frozen_clock() -> FrozenClock:
    """A clock that stands still until it is moved."""
    return FrozenClock()


@pytest.fixture
def seeded_ids(frozen_clock: FrozenClock) -> SeededIds:
    """Ids that are the same in every run."""
    return SeededIds(frozen_clock, seed=0)
