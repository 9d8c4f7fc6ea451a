"""Frames, budgets, questions, handles and leases against a plain-Python model, through crashes, retries and rebuilds.

After every step what the journal holds is what the model says, and budgets add up.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.model.frames_ops import choose
from tests.model.frames_walk import Walk
from tests.scale import seeded, volume

STEPS = 250


def walk_once(seed: int, backend: str, steps: int = STEPS) -> None:
    """One walk over a new journal. What fails says how to get there again."""
    with tempfile.TemporaryDirectory(prefix="holdfast-frames-") as folder:
        walk = Walk(seed, Path(folder) if backend == "sqlite" else None)
        try:
            for _ in range(steps):
                walk.step(choose)
            walk.finish()
        except Exception as error:
            last = "\n".join(walk.log)
            raise AssertionError(
                f"{type(error).__name__}: {error}\nwalk seed {seed} on {backend}, step {walk.steps}, after:\n{last}"
            ) from error
        finally:
            walk.close()


@pytest.mark.parametrize(("backend", "steps"), [("memory", (6_000, 100_000)), ("sqlite", (4_000, 100_000))])
def test_frames_and_model_agree_after_every_step(backend: str, steps: tuple[int, int]) -> None:
    random = seeded(f"frames on {backend}")
    for _ in range(volume(*steps) // STEPS):
        walk_once(random.randrange(2**32), backend)
