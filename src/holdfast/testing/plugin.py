"""The pytest plugin: fixtures that need no set-up. A fixture of yours with the same name overrides them.

frozen_clock       a clock that stands still until it is moved
seeded_ids         ids that are the same in every run
memory_client      an open client in memory, with that clock and those ids
scripted_model     a factory of models that follow a script: `scripted_model(["Hello."])`
kill_everywhere    kills your program at every point; the journal of a failure is left in `tmp_path`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast import testing
from holdfast.testing.clock import FrozenClock, SeededIds

if TYPE_CHECKING:
    from holdfast.testing import KillReport, Scripted


@pytest.fixture
def frozen_clock() -> FrozenClock:
    """Return a clock that stands still until it is moved."""
    return FrozenClock()


@pytest.fixture
def seeded_ids(frozen_clock: FrozenClock) -> SeededIds:
    """Return a source of ids that are the same in every run."""
    return SeededIds(frozen_clock, seed=0)


@pytest.fixture
def memory_client(frozen_clock: FrozenClock, seeded_ids: SeededIds) -> Iterator[holdfast.Holdfast]:
    """Open a client on a journal in memory. Move its time with `frozen_clock`."""
    with holdfast.open("memory:", clock=frozen_clock, ids=seeded_ids) as hf:
        yield hf


@pytest.fixture
def scripted_model() -> Callable[..., Scripted]:
    """Return the class of models that follow a script: see `holdfast.testing.Scripted`."""
    return testing.Scripted


@pytest.fixture(name="kill_everywhere")
def _kill_everywhere(tmp_path: Path) -> Callable[..., KillReport]:
    """Return `holdfast.testing.kill_everywhere` with its journals in `tmp_path`."""
    return partial(testing.kill_everywhere, folder=tmp_path)
