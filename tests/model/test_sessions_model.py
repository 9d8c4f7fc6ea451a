"""Sessions against lists of texts in plain Python: said, branched, taken back, summarised, ended and begun anew.

After every step a thread shows what the model says, whichever client asks; and the journal verifies at the end.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.model import sessions_look as look
from tests.model.sessions_ops_life import choose
from tests.model.sessions_walk import Walk
from tests.scale import seeded, volume

STEPS = 250


def walk_once(seed: int, backend: str, steps: int = STEPS) -> None:
    """One walk over a new journal. What fails says how to get there again."""
    with tempfile.TemporaryDirectory(prefix="holdfast-sessions-") as folder:
        walk = Walk(seed, Path(folder) if backend == "sqlite" else None)
        try:
            for _ in range(steps):
                walk.step(choose, look)
            walk.finish(look)
        except Exception as error:
            last = "\n".join(walk.log)
            raise AssertionError(
                f"{type(error).__name__}: {error}\nwalk seed {seed} on {backend}, step {walk.steps}, after:\n{last}"
            ) from error
        finally:
            walk.close()


@pytest.mark.parametrize(("backend", "steps"), [("memory", (1_500, 70_000)), ("sqlite", (500, 30_000))])
def test_sessions_and_model_agree_after_every_step(backend: str, steps: tuple[int, int]) -> None:
    random = seeded(f"sessions on {backend}")
    for _ in range(volume(*steps) // STEPS):
        walk_once(random.randrange(2**32), backend)
