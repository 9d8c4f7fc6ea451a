"""Turns on every backend of one process, with time in hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.clock import FrozenClock
from tests.turns.loops import check_whole


@pytest.fixture
def clock() -> FrozenClock:
    """Time that passes when it is told to."""
    return FrozenClock()


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[holdfast.Holdfast]:
    """A client; whatever a test did with it, afterwards the journal verifies and every conversation is valid."""
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, clock=clock, durability="fast") as client:
        yield client
        check_whole(client)
