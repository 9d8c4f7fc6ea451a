"""Old facts read as new ones. Stored events are never rewritten; steps are pure and kept for ever.

A step takes the facts of one schema and returns those of the next. None exist yet:
every event is at schema 1. A new schema adds its step here and a golden journal to the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import Corrupt

Step = Callable[[dict[str, Any]], dict[str, Any]]

STEPS: dict[tuple[str, int], Step] = {}


def upcast(
    type_name: str, schema: int, target: int, facts: dict[str, Any], steps: Mapping[tuple[str, int], Step] = STEPS
) -> dict[str, Any]:
    """Facts of `schema` as facts of `target`, one step at a time."""
    for current in range(schema, target):
        step = steps.get((type_name, current))
        if step is None:
            raise Corrupt(f"{type_name} has schema {schema} and no way up to {target}. Report this as a defect.")
        facts = step(facts)
    return facts
