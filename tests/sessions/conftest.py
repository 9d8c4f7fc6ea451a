"""Conversations on every backend of one process, with time in hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.clock import FrozenClock
from tests.backends import check_rebuilt


@pytest.fixture
def clock() -> FrozenClock:
    """Time that passes when it is told to."""
    return FrozenClock()


@pytest.fixture(params=["memory", "sqlite", "sqlite without cache"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[holdfast.Holdfast]:
    """A client; whatever a test did with it, the journal verifies afterwards."""
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    settings = holdfast.Settings(cached_streams=0) if "without" in request.param else None
    with holdfast.open(url, clock=clock, settings=settings) as client:
        yield client
        check_rebuilt(client)
