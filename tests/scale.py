"""Volumes: the same tests run small in `make test` and large in `make soak`."""

from __future__ import annotations

import os
import random

SOAK = os.environ.get("HOLDFAST_SCALE") == "soak"


def volume(test: int, soak: int) -> int:
    """How many, at the scale of this run."""
    return soak if SOAK else test


def seeded(name: str) -> random.Random:
    """A generator whose seed is printed, so that a failure can be repeated with HOLDFAST_SEED."""
    seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"{name}: HOLDFAST_SEED={seed}")
    return random.Random(seed)
